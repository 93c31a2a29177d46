"""infra/setup/venv on machines that lack something. The commands it calls are small scripts on its PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "infra" / "setup" / "venv"
TOOLS = ("bash", "dirname", "tail", "tee", "sed", "mkdir")

# A Python of Debian without python3-venv: it knows its version, and has no ensurepip.
BARE_PYTHON = """
case "$2" in
    *"sys.exit(not"*) exit 0 ;;
    *python3.%d-venv*) echo python3.11-venv ;;
    *ensurepip*) exit 1 ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A tree with the script and a PATH of its own, tree/bin."""
    (tmp_path / "infra" / "setup").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "infra" / "setup" / "venv")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def put(machine: Path, name: str, body: str) -> None:
    path = machine / "bin" / name
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)


def set_up(machine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", machine / "infra" / "setup" / "venv", "torch"],
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_python_the_line_to_run_is_printed(machine: Path) -> None:
    result = set_up(machine)
    assert result.returncode == 2
    assert "sudo apt-get install -y python3 python3-venv" in result.stderr


def test_a_python_too_old_is_not_taken(machine: Path) -> None:
    put(machine, "python3", "exit 1")
    assert set_up(machine).returncode == 2


def test_without_venv_a_user_is_told_the_line_to_run(machine: Path) -> None:
    put(machine, "python3.11", BARE_PYTHON)
    put(machine, "id", "echo 1000")
    result = set_up(machine)
    assert result.returncode == 2
    assert result.stderr == "Python's venv module is missing. Run: sudo apt-get install -y python3.11-venv\n"


def test_without_venv_root_installs_it(machine: Path) -> None:
    put(machine, "python3.11", BARE_PYTHON)
    put(machine, "id", "echo 0")
    put(machine, "apt-get", f'echo "$@" >> {machine}/asked; [ "$1" = update ]')  # the installation itself fails here
    assert set_up(machine).returncode != 0
    asked = (machine / "asked").read_text().splitlines()
    assert asked[0].startswith("update")
    assert asked[1].endswith("python3.11-venv")


def test_a_failed_installation_shows_the_end_of_the_log(machine: Path) -> None:
    python = machine / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    put(machine, "venv-python", 'case "$*" in *install*) echo "no matching torch"; exit 1 ;; esac')
    python.symlink_to(machine / "bin" / "venv-python")
    result = set_up(machine)
    assert result.returncode == 1
    assert "no matching torch" in result.stderr
    assert ".venv/install.log" in result.stderr
