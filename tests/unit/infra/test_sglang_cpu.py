"""infra/sglang-cpu/install, as far as it goes without installing: the real thing is a fixture of the contract tests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "infra" / "sglang-cpu"
TOOLS = ("bash", "dirname", "cat", "sha256sum", "cut", "flock")
RECIPE = (
    "install",
    "requirements.txt",
    "unbundled.txt",
    "sglang_on_cpu.py",
    "sgl_kernel.py",
    "left_out_models.txt",
)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH without any Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    return folder


def install(tools: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", FOLDER / "install", target], env={"PATH": str(tools)}, capture_output=True, text=True, timeout=60
    )


def environment(folder: Path, recipe: str) -> Path:
    """What the installer takes for an environment of this recipe."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/false\n")
    (folder / "bin" / "python").chmod(0o755)
    (folder / ".rolloutpipe-sglang-cpu").write_text(f"{recipe}\n")
    return folder


def test_without_python_the_line_to_run_is_printed(tools: Path, tmp_path: Path) -> None:
    result = install(tools, tmp_path / "env")
    assert result.returncode == 2
    assert "sudo apt-get install -y python3 python3-venv" in result.stderr


def test_a_current_environment_is_left_alone(tools: Path, tmp_path: Path) -> None:
    recipe = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in RECIPE)).hexdigest()
    target = environment(tmp_path / "env", recipe)
    assert install(tools, target).returncode == 0
    assert (target / "bin" / "python").exists()


def test_an_older_environment_stays_until_it_can_be_made_anew(tools: Path, tmp_path: Path) -> None:
    target = environment(tmp_path / "env", "of an older recipe")
    assert install(tools, target).returncode == 2
    assert (target / "bin" / "python").exists()
