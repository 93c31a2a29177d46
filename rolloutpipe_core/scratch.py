"""Scratch folders that go with their process, also with one that is killed: the next process sweeps what it left.

A folder is in use as long as its maker holds the lock on it, and a lock ends with its process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

PREFIX = "rolloutpipe-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder in the system's temporary folder, gone afterwards. Raises OSError where none can be made."""
    _sweep(Path(tempfile.gettempdir()))
    folder, lock = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """The folder and its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        if (lock := _try_lock(folder)) is not None:  # else a sweep came between
            return folder, lock


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        if (lock := _try_lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """The folder, open and locked; None when it is another's, in use, or gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        flock(lock, LOCK_EX | LOCK_NB)
        if folder.exists():  # a sweep between opening and locking it may have removed it
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
