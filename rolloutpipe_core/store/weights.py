"""Published weights: a directory named by its content, so that equal weights are stored once.

A version is (number, manifest sha256); the number is only in the commit and the announcement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.domain import validate_run_name
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory, download_directory, upload_directory
from rolloutpipe_core.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class WeightsObject:
    prefix: str  # "runs/<run>/weights/<manifest_sha[:16]>"
    manifest_sha: str
    bytes: int  # of all files


def weights_prefix(run: str, manifest_sha: str) -> str:
    return f"runs/{validate_run_name(run)}/weights/{manifest_sha[:16]}"


def publish_weights(store: ObjectStore, run: str, directory: Path) -> WeightsObject:
    """Upload a directory of weights; announcing them is the caller's, afterwards. Repeating it is harmless."""
    manifest = describe_directory(directory)
    manifest_sha = sha256_hex(manifest.to_bytes())
    prefix = weights_prefix(run, manifest_sha)
    upload_directory(store, prefix, directory, manifest)
    return WeightsObject(prefix, manifest_sha, manifest.total_bytes)


def fetch_weights(store: ObjectStore, run: str, manifest_sha: str, cache: DirectoryCache) -> Path:
    """The directory of these weights, downloaded unless this node has it; in use until the cache's next fetch.

    Raises Damaged on any wrong hash, ObjectMissing when they are not in the store, DeadlineExceeded when another
    process's download takes too long.
    """
    prefix = weights_prefix(run, manifest_sha)

    def fill(directory: Path) -> None:
        download_directory(store, prefix, manifest_sha, directory)

    # The whole hash: what is in the cache was checked against it, whichever run it came from.
    return cache.fetch(manifest_sha, fill)
