"""The trainer's state as objects: one directory an attempt, with the same manifest as weights.

What a crashed attempt left is no one's: only a commit makes a checkpoint count, and it holds the manifest's hash.
"""

from __future__ import annotations

import re
from pathlib import Path

from rolloutpipe_core.domain import validate_run_name
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.commits import Checkpoint
from rolloutpipe_core.store.directories import describe_directory, download_directory, upload_directory
from rolloutpipe_core.store.objects import ObjectStore

ATTEMPT = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


def checkpoint_prefix(run: str, attempt: str) -> str:
    """`attempt` must be used by one trainer for one round only, for example `r000012-e3-5f1c9a`."""
    if ATTEMPT.fullmatch(attempt) is None:
        raise BadInput("not an attempt", given=repr(attempt), expected="1 to 128 of a-z, 0-9 and '-'")
    return f"runs/{validate_run_name(run)}/checkpoints/{attempt}"


def upload_checkpoint(store: ObjectStore, run: str, attempt: str, directory: Path) -> Checkpoint:
    """Upload a directory that `Trainer.save` wrote; repeating it for the same attempt is harmless."""
    manifest = describe_directory(directory)
    prefix = checkpoint_prefix(run, attempt)
    upload_directory(store, prefix, directory, manifest)
    return Checkpoint(prefix=prefix, manifest_sha=sha256_hex(manifest.to_bytes()))


def download_checkpoint(store: ObjectStore, checkpoint: Checkpoint, directory: Path) -> None:
    """Download a committed checkpoint into an empty directory. Raises Damaged on any wrong hash."""
    download_directory(store, checkpoint.prefix, checkpoint.manifest_sha, directory)
