"""The command line as a user meets it: `quickstart` from start to report, Ctrl-C, kill -9; `up`, `run`, `down`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local.state import credentials_path, servers_path

from .conftest import SMALL

ROLLOUTPIPE = str(Path(sys.executable).with_name("rolloutpipe"))
RUN = "walk-quickstart"
FEW = ["groups_per_round=4", "samples_per_group=4", "update_batch_size=8", "frontier_width=2"]
SETTINGS = [word for setting in FEW for word in ("--set", f"schedule.{setting}")]
CONFIG = {section: value for section, value in SMALL.items() if section != "deadlines"}  # none that is warned of
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}  # as /proc/net has them
MEASURES = (
    "round",
    "weight_version",
    "reward_mean",
    "rollout_to_train_end_s",
    "round_period_s",
    "waiting_ratio_eq4",
    "waiting_ratio_s51",
    "first_dispatch_s",
)


def environment() -> dict[str, str]:
    """Ours without the addresses and keys of servers."""
    servers = ("ROLLOUTPIPE_REDIS", "ROLLOUTPIPE_S3", "AWS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(servers)}


def rolloutpipe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROLLOUTPIPE, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


def succeed(folder: Path, *arguments: str) -> str:
    """What a command prints on standard output; it must exit with 0 and print nothing on standard error."""
    result = rolloutpipe(folder, *arguments)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([ROLLOUTPIPE, *arguments], cwd=folder, env=environment(), **options)


def of_process(pid: str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""  # it has ended


def inhabitants(folder: Path) -> dict[str, str]:
    """Command lines, by pid, of the live processes that work in a folder: ours, its services, servers and verifiers."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended, or only its zombie left
            if (entry / "cwd").readlink().is_relative_to(folder.resolve()):
                found[entry.name] = of_process(entry.name, "cmdline").replace("\0", " ")
    return found


def listening(pid: str) -> set[str]:
    """Addresses on which a process listens for TCP, in hexadecimal."""
    sockets = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(str(entry.readlink()))
    tables = of_process(pid, "net/tcp").splitlines() + of_process(pid, "net/tcp6").splitlines()
    rows = [line.split() for line in tables]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def wait_for(
    condition: Callable[[], bool], what: str, timeout_s: float = 240, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait for a condition, as long as the process that is to bring it about runs."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert process is None or process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)


def version_of(folder: Path, run: str = RUN) -> int:
    """The run's published version; -1 when it, or its Redis, is not there yet."""
    try:
        state = LedgerReader(Connections.of_embedded(folder).redis.client(), run, deadline_s=0.1).run_state()
    except (RolloutPipeError, redis.RedisError):
        return -1
    return int(state.get("version", -1))


@dataclass
class Observed:
    """What could be seen of a quickstart while it ran."""

    secrets: set[str] = field(default_factory=set)
    modes: set[int] = field(default_factory=set)  # of the credentials file
    command_lines: set[str] = field(default_factory=set)  # of all processes of the machine
    programs: set[str] = field(default_factory=set)  # of this folder that listen
    addresses: set[str] = field(default_factory=set)

    def look(self, folder: Path) -> None:
        path = credentials_path(folder)
        with suppress(FileNotFoundError):
            self.modes.add(path.stat().st_mode & 0o777)
            kept = json.loads(path.read_text())
            self.secrets |= {kept["redis_password"], kept["s3_secret_key"]}  # the access key is a name
        self.command_lines |= {of_process(entry.name, "cmdline") for entry in Path("/proc").glob("[0-9]*")}
        for pid, command in inhabitants(folder).items():
            if addresses := listening(pid):
                self.addresses |= addresses
                self.programs.add(Path(command.split()[0]).name)


@dataclass(frozen=True)
class Finished:
    folder: Path
    exit_code: int
    output: str
    seen: Observed

    @property
    def report(self) -> Any:
        return json.loads((self.folder / "report.json").read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """`rolloutpipe quickstart --rounds 3`, watched until its end."""
    folder, seen = tmp_path_factory.mktemp("quickstart"), Observed()
    with (folder / "output").open("wb") as output:
        process = start(folder, "quickstart", "--rounds", "3", stdout=output, stderr=output)
        try:
            end = time.monotonic() + 200
            while process.poll() is None and time.monotonic() < end:
                seen.look(folder)
                time.sleep(0.2)
        finally:
            process.kill()
    return Finished(folder, process.wait(), (folder / "output").read_text(), seen)


def test_it_ends_with_a_table_and_names_its_report(finished: Finished) -> None:
    assert finished.exit_code == 0, finished.output
    assert re.findall(r"^round (\d): reward 0\.\d+", finished.output, re.MULTILINE) == ["0", "1", "2"]
    assert re.findall(r"^ +(\d) +v\d ", finished.output, re.MULTILINE) == ["0", "1", "2"]
    assert finished.output.endswith("report: report.html, report.json\n")


def test_its_report_has_every_measure_of_every_round(finished: Finished) -> None:
    rounds = finished.report["rounds"]
    assert [(round["round"], round["weight_version"]) for round in rounds] == [(0, 0), (1, 1), (2, 2)]
    for round in rounds:
        assert {name for name in MEASURES if round[name] is None} == set()
        assert 0 <= round["reward_mean"] <= 1
        assert 0 < round["rollout_to_train_end_s"] < round["round_period_s"]
        assert 0 < round["first_dispatch_s"] < round["rollout_to_train_end_s"]


class References(HTMLParser):
    """What a page would have to load, and what it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.external: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        loads = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")
        self.external += [
            value for name, value in attrs if name in loads and value and not value.startswith(("#", "data:"))
        ]


def test_its_page_needs_nothing_but_itself(finished: Finished) -> None:
    page = (finished.folder / "report.html").read_text()
    references = References()
    references.feed(page)
    assert references.external == []
    assert references.tags.isdisjoint({"link", "iframe", "object", "embed", "base"})
    assert "<svg" in page
    assert not re.search(r"@import|url\((?!['\"]?(?:#|data:))", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}  # a name, never loaded


def test_its_secrets_are_in_one_private_file_alone(finished: Finished) -> None:
    seen, folder = finished.seen, finished.folder
    assert seen.modes == {0o600}
    assert len(seen.secrets) == 2
    texts = [path.read_text() for path in [*folder.glob("report.*"), *folder.glob(".rolloutpipe/logs/**/*.log")]]
    assert len(texts) == 6  # both reports, both services, both servers
    for text in [*seen.command_lines, *texts, finished.output]:
        assert not any(secret in text for secret in seen.secrets)
    assert not credentials_path(folder).exists()


def test_its_servers_listen_on_the_loopback_alone_and_are_gone(finished: Finished) -> None:
    assert {"valkey-server", "weed"} <= finished.seen.programs
    assert finished.seen.addresses
    assert finished.seen.addresses <= LOOPBACK
    assert inhabitants(finished.folder) == {}
    assert not servers_path(finished.folder).exists()


def test_a_finished_quickstart_is_followed_by_a_new_run(finished: Finished) -> None:
    output = succeed(finished.folder, "quickstart", "--rounds", "1")
    assert output.startswith("round 0: ")
    assert finished.report["run"] == f"{RUN}-2"


class Terminal:
    """A terminal with a process as its foreground job."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 120))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", ROLLOUTPIPE, *arguments],
            cwd=folder,
            env={**environment(), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def type(self, key: bytes) -> None:
        os.write(self._master, key)

    def finish(self, timeout_s: float = 240) -> tuple[int, str]:
        """Exit code, and all that was shown."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code, self._shown.decode(errors="replace")

    def _read(self) -> None:
        with suppress(OSError), os.fdopen(self._master, "rb", buffering=0) as terminal:  # EIO: the job has closed it
            while piece := terminal.read(65536):
                self._shown += piece


def test_ctrl_c_ends_everything_and_a_later_start_goes_on(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "quickstart", "--rounds", "1000", *SETTINGS)
    try:
        wait_for(lambda: version_of(tmp_path) >= 2, "version 2", process=terminal.process)
        terminal.type(b"\x03")
        code, shown = terminal.finish()
    finally:
        terminal.process.kill()
    assert code == 130, shown
    assert "Traceback" not in shown
    assert "error" not in shown
    assert inhabitants(tmp_path) == {}
    assert not servers_path(tmp_path).exists()

    succeed(tmp_path, "up")
    try:
        reached = version_of(tmp_path)
        assert reached >= 2
        output = succeed(tmp_path, "quickstart", "--rounds", str(reached + 1), *SETTINGS)
        report = json.loads((tmp_path / "report.json").read_text())
        assert (report["run"], len(report["rounds"])) == (RUN, reached + 1)
        assert f"round {reached}: " in output
        succeed(tmp_path, "audit", RUN)
    finally:
        succeed(tmp_path, "down")


def test_a_killed_quickstart_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "quickstart", "--rounds", "1000", *SETTINGS, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: version_of(tmp_path) >= 1, "version 1", process=process)
        programs = " ".join(inhabitants(tmp_path).values())
    finally:
        process.kill()
        process.wait()
    for name in ("valkey-server", "weed", "_components.trainer", "_components.rollout", "rewards.worker"):
        assert name in programs
    wait_for(lambda: not inhabitants(tmp_path), "the end of all it had started", 20)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `up`, then `run CONFIG` to its end; its servers still run."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "run": "walk"}))
    succeed(folder, "up")
    try:
        output = succeed(folder, "run", "run.yaml")
        assert output.endswith("report: report.html, report.json\n")
        yield folder
    finally:
        assert succeed(folder, "down") == "stopped\n"
        assert inhabitants(folder) == {}


BUCKET = ["--bucket", str(SMALL["bucket"])]
GROUP = "r000001-g0003"


@dataclass(frozen=True)
class Look:
    """A command that looks: what its text shows, and what its JSON holds."""

    words: list[str]
    shows: str
    pick: Callable[[Any], Any]
    holds: Any


LOOKS = [
    Look(
        ["status", "walk"], "walk", lambda told: (told["version"], told["round"], told["groups"]["trained"]), (2, 1, 6)
    ),
    Look(["groups", "--round", "1"], GROUP, lambda told: {row["state"] for row in told["groups"]}, {"trained"}),
    Look(["show", GROUP, *BUCKET], GROUP, lambda told: (told["id"], len(told["sample_list"])), (GROUP, 4)),
    Look(["why", GROUP], GROUP, lambda told: told["verdict"], f"{GROUP} was trained, with the first attempt"),
    Look(["audit", "walk", *BUCKET], "walk", lambda told: (told["passed"], told["groups_trained"]), (True, 12)),
    Look(["timeline", "--last", "2"], "sampled by v1", lambda told: [row["metrics"]["round"] for row in told], [0, 1]),
    Look(
        ["report", *BUCKET], "report.html, report.json", lambda told: [row["round"] for row in told["rounds"]], [0, 1]
    ),
]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.words[0])
def test_a_command_that_looks_speaks_to_people_and_to_programs(ran: Path, look: Look) -> None:
    assert look.shows in succeed(ran, *look.words)
    assert look.pick(json.loads(succeed(ran, *look.words, "--json"))) == look.holds


def test_a_service_that_fails_ends_the_run_with_its_reason_and_code(ran: Path) -> None:
    (ran / "bad.yaml").write_text(yaml.safe_dump({**CONFIG, "run": "bad", "model": {"path": "/no/such/model"}}))
    result = rolloutpipe(ran, "run", "bad.yaml")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert re.match("error: (trainer|rollout) exited with 2; given: ", line)
    assert "not a model folder; given: /no/such/model" in line
    assert line.endswith("do: see .rolloutpipe/logs/bad/rollout.log")
    assert "Traceback" not in result.stdout + result.stderr
    assert not any("_components" in command for command in inhabitants(ran).values())
