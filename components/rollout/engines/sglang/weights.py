"""A version and where its files are; checked once more before a server reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import BadInput, EngineFailure
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory

from .completion import version_tag


@dataclass(frozen=True, slots=True)
class Weights:
    version: WeightVersion
    directory: Path  # absolute, and the same on every server's machine

    @property
    def tag(self) -> str:
        """What a server that holds them reports."""
        return version_tag(self.version)


def check_files(weights: Weights) -> None:
    """Hash every file: a truncated one would end the server that reads it, and its samples with it.

    The version's sha is that of the manifest, which names every file's size and hash: the folder's own manifest must
    come to the same. Raises EngineFailure.
    """
    try:
        manifest = describe_directory(weights.directory)
    except (BadInput, OSError) as error:
        raise EngineFailure("the weights' files cannot be read", given=f"{weights.directory}: {error}") from error
    found = sha256_hex(manifest.to_bytes())
    if found != weights.version.sha:
        files = ", ".join(f"{entry.name} ({entry.bytes} bytes)" for entry in manifest.files)
        raise EngineFailure(
            f"the files of {weights.version} are not what was published",
            given=f"{weights.directory}: {files}; manifest sha256 {found}",
            expected=f"manifest sha256 {weights.version.sha}",
            remedy="remove this folder: it is downloaded again",
        )
