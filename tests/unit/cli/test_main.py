"""The command line as a user meets it: exit codes, one line on stderr, and `--help` that imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rolloutpipe_core import __version__
from rolloutpipe_core.cli.connect import report_paths
from rolloutpipe_core.cli.main import app
from rolloutpipe_core.errors import BadInput

HEAVY = {"torch", "transformers", "numpy", "boto3", "pyarrow", "redis", "yaml", "prometheus_client"}
SMALL = "run: walk\nmodel:\n  path: builtin:pointer-walk\n"


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name)
        yield from leaves(inner, (*words, name))


COMMANDS = list(leaves(typer.main.get_command(app)))


def rolloutpipe(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTPIPE", "AWS"))}
    return subprocess.run(
        [sys.executable, "-c", "from rolloutpipe_core.cli.main import main; main()", *arguments],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_command_of_the_readers_contract_is_there() -> None:
    expected = (
        "quickstart up down run rollout train status groups show why audit timeline report metrics certify doctor"
    )
    assert {words[0] for words in COMMANDS} == {*expected.split(), "pin", "unpin", "pins", "config", "bench"}
    assert {("config", "check"), ("config", "reference"), ("bench", "engine")} <= set(COMMANDS)


def test_help_imports_nothing_heavy() -> None:
    """One process asks for the help of every command; what it imported is what each would at most."""
    code = f"""
import sys
from typer.testing import CliRunner
from rolloutpipe_core.cli.main import app
for words in {COMMANDS!r}:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0 and "Usage" in result.output, words
print(*sorted({HEAVY!r} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.stdout.split(), result.stderr) == ([], "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["run"],
        ["run", "a.yaml", "--nosuch"],
        ["run", "none.yaml"],
        ["rollout", "none.yaml"],
        ["train", "none.yaml"],
        ["config", "check", "none.yaml"],
        ["show", "no-group"],
        ["why", "r1-g1"],
        ["status"],
        ["audit", "walk"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_bad_input_exits_2_without_a_traceback(arguments: Sequence[str], tmp_path: Path) -> None:
    result = rolloutpipe(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_errors_are_lines_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SMALL + "schedule: {rouns: 3, kind: fast}\n")
    result = rolloutpipe("run", "run.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    kind, rouns = sorted(result.stderr.splitlines())
    assert rouns == "error: run.yaml: schedule.rouns: unknown key; do: did you mean schedule.rounds?"
    assert kind.startswith("error: run.yaml: schedule.kind; given: 'fast'; expected: 'serial', 'cgp'")


def test_a_server_away_has_its_own_exit_code(tmp_path: Path) -> None:
    environment = {
        "ROLLOUTPIPE_REDIS_URL": "redis://:hunter2@127.0.0.1:1",
        "ROLLOUTPIPE_S3_ENDPOINT": "http://127.0.0.1:1",
    }
    result = rolloutpipe("status", cwd=tmp_path, **environment)
    assert result.returncode == 6
    assert result.stderr.startswith("error: Redis stayed away")
    assert "hunter2" not in result.stderr + result.stdout


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(SMALL)
    return path


def test_config_check_shows_warnings_and_memory(config: Path) -> None:
    result = CliRunner().invoke(app, ["config", "check", str(config), "--set", "sampling.top_p=0.9", "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [problem["key"] for problem in shown["problems"]] == ["sampling.top_p"]
    assert {use["service"] for use in shown["memory"]} == {"rollout", "trainer"}
    assert all(use["bytes"] > 0 for use in shown["memory"])
    plain = CliRunner().invoke(app, ["config", "check", str(config), "--set", "sampling.top_p=0.9"])
    assert "warning: sampling.top_p" in plain.output
    assert "AdamW moments" in plain.output


def test_config_check_of_a_model_that_is_not_there(config: Path) -> None:
    result = CliRunner().invoke(app, ["config", "check", str(config), "--set", "model.path=/no/such/folder"])
    assert result.exit_code == 2
    assert "not a model folder" in result.stderr


@pytest.mark.parametrize("command", [["quickstart"], ["run", "run.yaml", "--local"]], ids=" ".join)
def test_a_report_that_cannot_be_written_is_told_before_anything_starts(command: list[str], config: Path) -> None:
    folder = config.parent
    result = rolloutpipe(*command, "--report", "none/report.html", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    line = "cannot write the report; given: none/report.html; expected: an existing, writable folder none"
    assert result.stderr == f"error: {line}\n"
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("output", "page", "data"),
    [("x.html", "x.html", "x.json"), ("x.json", "x.html", "x.json"), ("x", "x", "x.json")],
)
def test_a_report_is_two_files(tmp_path: Path, output: str, page: str, data: str) -> None:
    assert report_paths(tmp_path / output) == (tmp_path / page, tmp_path / data)


def test_a_report_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the report is a file, not a folder"):
        report_paths(tmp_path)


def test_a_system_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".rolloutpipe").write_text("a file where the folder should be")
    result = rolloutpipe("up", cwd=tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and ".rolloutpipe" in line


@pytest.mark.parametrize(
    "arguments", [[], ["--output", "run.yaml", "--local"]], ids=["no servers", "the config itself"]
)
def test_certify_that_cannot_begin_removes_no_file(arguments: list[str], config: Path) -> None:
    earlier = config.with_name("certificate.json")
    earlier.write_text("{}")
    result = rolloutpipe("certify", "run.yaml", *arguments, cwd=config.parent)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert (earlier.read_text(), config.read_text()) == ("{}", SMALL)


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"rolloutpipe {__version__}\n")


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -c 'from rolloutpipe_core.cli.main import main; main()' config reference | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("# Configuration\n", "")


def test_the_shipped_configurations_have_no_problem() -> None:
    from rolloutpipe_core.config.checks import check
    from rolloutpipe_core.config.load import load_config

    for path in sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml")):
        assert check(load_config(path)) == [], path
