"""The manifest of a directory."""

import hashlib
import json
import os

import pytest
from pydantic import ValidationError

from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.store.directories import FileEntry, describe_directory


def test_a_manifest_is_content_alone(tmp_path):
    for place in ("a", "b"):
        (tmp_path / place / "deep").mkdir(parents=True)
        (tmp_path / place / "model.safetensors").write_bytes(b"weights")
        (tmp_path / place / "deep" / "state.json").write_bytes(b"")
        os.utime(tmp_path / place / "model.safetensors", (len(place), 7))
    manifest = describe_directory(tmp_path / "a")
    assert manifest.to_bytes() == describe_directory(tmp_path / "b").to_bytes()
    assert json.loads(manifest.to_bytes()) == {
        "files": [
            {"bytes": 0, "name": "deep/state.json", "sha256": hashlib.sha256(b"").hexdigest()},
            {"bytes": 7, "name": "model.safetensors", "sha256": hashlib.sha256(b"weights").hexdigest()},
        ],
        "format_version": 1,
        "total_bytes": 7,
    }


def test_an_empty_directory_has_none(tmp_path):
    with pytest.raises(BadInput, match="no files to upload"):
        describe_directory(tmp_path)


def test_a_link_to_nowhere_is_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(BadInput, match="not a file"):
        describe_directory(tmp_path)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/../../b", "", ".", "a//b", "./a", "manifest.json"])
def test_a_manifest_names_only_files_inside(name):
    with pytest.raises(ValidationError, match="not a file inside the directory"):
        FileEntry(name=name, bytes=0, sha256="ab" * 32)
