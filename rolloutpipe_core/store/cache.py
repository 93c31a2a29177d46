"""A cache of downloaded directories that several processes of a node share: one download a node.

    <directory>/<name>/        a whole entry, or absent
    <directory>/<name>.part/   a download under way, or what a killed one left
    <directory>/<name>.lock    held exclusively while filling or removing, shared while in use

A process uses the entry that it fetched last. Entries beyond the newest `keep` are removed unless in use, and so is
what a killed download left.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import IO

from rolloutpipe_core.errors import DeadlineExceeded

POLL_S = 0.05
PARTIAL = ".part"
FILL_DEADLINE_S = 600.0
"""Longest wait for another process that is filling an entry."""


class DirectoryCache:
    """One process's hold on the cache. Not thread-safe; close it, or use it as a context manager."""

    def __init__(self, directory: Path, keep: int = 2, deadline_s: float = FILL_DEADLINE_S) -> None:
        self._directory = directory
        self._keep = keep
        self._deadline_s = deadline_s
        self._held: IO[bytes] | None = None

    def fetch(self, name: str, fill: Callable[[Path], None]) -> Path:
        """The entry's directory, filled by `fill(empty directory)` when it is absent.

        It stays until the next fetch or `close`. Raises DeadlineExceeded, and whatever `fill` raises.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        entry = self._directory / name
        self.close()
        self._held = self._filled(entry, fill)
        os.utime(entry)
        self._remove_old(entry)
        return entry

    def close(self) -> None:
        """Let go of the entry in use."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> DirectoryCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _filled(self, entry: Path, fill: Callable[[Path], None]) -> IO[bytes]:
        """The shared lock of a whole entry."""
        end = time.monotonic() + self._deadline_s
        while True:
            lock = _try_lock(entry, LOCK_SH)
            if lock is not None and entry.is_dir():
                return lock
            if lock is not None:
                lock.close()
                # Tried, never waited for: another may fill the entry first, and then keeps it in use for long.
                if (exclusive := _try_lock(entry, LOCK_EX)) is not None:
                    with exclusive:
                        if not entry.is_dir():
                            _fill(entry, fill)
                    continue
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    "another process holds an entry of the cache",
                    given=str(entry),
                    expected=f"within {self._deadline_s:g} s",
                    remedy="look at what holds its .lock file (`lsof`)",
                )
            time.sleep(POLL_S)

    def _remove_old(self, newest: Path) -> None:
        """Remove entries beyond the newest, and what killed and failed downloads left; what is locked is in use."""
        entries = [path for path in self._directory.iterdir() if path.is_dir() and path.suffix != PARTIAL]
        entries.sort(key=_modified, reverse=True)
        old = set(entries[self._keep :])
        partial = {path.with_suffix("") for path in self._directory.glob(f"*{PARTIAL}")}
        failed = {path.with_suffix("") for path in self._directory.glob("*.lock")}.difference(entries)
        for entry in old | partial | failed:
            lock = _try_lock(entry, LOCK_EX) if entry != newest else None
            if lock is not None:
                with lock:
                    shutil.rmtree(_partial(entry), ignore_errors=True)
                    if entry in old:
                        shutil.rmtree(entry, ignore_errors=True)
                    if not entry.is_dir():  # else another has just filled it
                        _lock_path(entry).unlink(missing_ok=True)


def _fill(entry: Path, fill: Callable[[Path], None]) -> None:
    partial = _partial(entry)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        fill(partial)
        partial.rename(entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _partial(entry: Path) -> Path:
    return entry.with_name(entry.name + PARTIAL)


def _lock_path(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.lock")


def _try_lock(entry: Path, kind: int) -> IO[bytes] | None:
    """The locked file, or None when another holds it. Closing it lets go."""
    path = _lock_path(entry)
    lock = path.open("ab")
    try:
        flock(lock, kind | LOCK_NB)
        # A lock on a file that was removed meanwhile keeps nobody out.
        if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
