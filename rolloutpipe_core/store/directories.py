"""A directory as objects under one prefix, with a manifest that names every file's size and hash.

    upload:    hash all files -> manifest -> upload what is not there yet -> manifest.json last
    download:  manifest.json, checked against its hash -> every file, checked against the manifest

So a prefix with a manifest is whole, and the manifest's hash stands for all of its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rolloutpipe_core.errors import BadInput, Damaged, ObjectMissing
from rolloutpipe_core.store.canonical import canonical_json, sha256_hex
from rolloutpipe_core.store.objects import ObjectStore

MANIFEST = "manifest.json"
TRANSFERS = 4
"""Files moved at once."""


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name in (".", MANIFEST):
        raise ValueError(f"{name!r} is not a file inside the directory")
    return name


class FileEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_inside)]  # relative, with forward slashes
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """The files of a directory, sorted by name. It holds nothing but content: no time, no version number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    files: tuple[FileEntry, ...]
    total_bytes: Annotated[int, Field(ge=0)]

    def to_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))


def describe_directory(directory: Path) -> Manifest:
    """Hash every file of a directory. Raises BadInput when there is none, or a link that leads elsewhere."""
    paths = sorted(path for path in directory.rglob("*") if not path.is_dir())
    if not paths:
        raise BadInput("no files to upload", given=str(directory), expected="a directory with files")
    for path in paths:
        if not path.is_file():
            raise BadInput("not a file", given=str(path), expected="files only")
    with ThreadPoolExecutor(TRANSFERS) as pool:
        hashes = list(pool.map(_hash_file, paths))
    entries = (
        FileEntry(name=path.relative_to(directory).as_posix(), bytes=path.stat().st_size, sha256=sha256)
        for path, sha256 in zip(paths, hashes, strict=True)
    )
    files = tuple(sorted(entries, key=lambda entry: entry.name))
    return Manifest(files=files, total_bytes=sum(entry.bytes for entry in files))


def upload_directory(store: ObjectStore, prefix: str, directory: Path, manifest: Manifest) -> None:
    """Upload the files that `prefix` doesn't hold yet, then the manifest.

    Raises Damaged when a file is no longer what the manifest says, besides the errors of ObjectStore.
    """

    def upload(entry: FileEntry) -> None:
        key = f"{prefix}/{entry.name}"
        try:
            found = store.head(key)
        except ObjectMissing:
            pass
        else:
            if (found.bytes, found.sha256) == (entry.bytes, entry.sha256):
                return
        store.upload_file(directory / entry.name, key, entry.sha256)

    _each(upload, manifest.files)
    store.put(f"{prefix}/{MANIFEST}", manifest.to_bytes())


def download_directory(store: ObjectStore, prefix: str, manifest_sha: str, directory: Path) -> Manifest:
    """Download a prefix into an empty directory, every byte checked.

    Raises Damaged when a hash is wrong and ObjectMissing when a file or the manifest is gone.
    """
    manifest = read_manifest(store, prefix, manifest_sha)

    def download(entry: FileEntry) -> None:
        path = directory / entry.name
        path.parent.mkdir(parents=True, exist_ok=True)
        store.download_file(f"{prefix}/{entry.name}", path, entry.sha256)

    _each(download, manifest.files)
    return manifest


def read_manifest(store: ObjectStore, prefix: str, manifest_sha: str) -> Manifest:
    """The manifest of a prefix. Raises Damaged unless its bytes have this hash."""
    key = f"{prefix}/{MANIFEST}"
    data = store.get(key)
    if sha256_hex(data) != manifest_sha:
        raise Damaged(f"wrong hash: {key}", given=f"sha256 {sha256_hex(data)}", expected=manifest_sha)
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise Damaged(f"not a manifest: {key}", given=str(error)) from error


def _each(work: Callable[[FileEntry], None], entries: Iterable[FileEntry]) -> None:
    """Do the work for every entry, some at a time. Raises the first error; what has not begun is left out then."""
    with ThreadPoolExecutor(TRANSFERS) as pool:
        futures = [pool.submit(work, entry) for entry in entries]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
