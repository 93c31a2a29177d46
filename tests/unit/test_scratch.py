"""Scratch folders: one's own, gone afterwards, swept after a kill, and never swept while in use."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rolloutpipe_core.scratch import PREFIX, scratch_folder

HOLD = """
from rolloutpipe_core.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "half").write_text("written")
    print(folder, flush=True)
    input()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_is_empty_at_first_and_gone_afterwards(parent: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == parent
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("content")
    assert list(parent.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_is_in_use_is_not(parent: Path) -> None:
    with scratch_folder() as ours:
        other = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder():
            assert ours.is_dir(), "in use by this very process"
            assert (theirs / "half").is_file(), "in use by another one"
        other.kill()
        other.communicate()
        assert theirs.is_dir(), "a killed process cleans nothing up"
        with scratch_folder():
            assert not theirs.exists()
            assert ours.is_dir()


def test_only_scratch_folders_are_swept(parent: Path) -> None:
    (parent / f"{PREFIX}file").write_text("not a folder")
    (parent / "rolloutpipe-else").mkdir()
    (parent / f"{PREFIX}link").symlink_to(parent / "rolloutpipe-else")
    before = set(parent.iterdir())
    with scratch_folder():
        pass
    assert set(parent.iterdir()) == before
