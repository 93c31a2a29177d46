"""docs/redis-cli.md: every recipe, run against a live run, answers in the shape that the page shows.

The page's ```bash blocks set up; in its ```console blocks lines with `$ ` are commands, the rest is their output.
`python tests/e2e/test_redis_cli.py` writes the outputs of a fresh run into the page.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.keys import RunKeys
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.retention import Pins
from rolloutpipe_core.local.servers import LocalServers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "redis-cli.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REDIS_CLI = shutil.which("redis-cli")
RUN = "walk"
CONFIG = {
    "run": RUN,
    "model": {"path": "builtin:pointer-walk"},
    "schedule": {
        "kind": "cgp+fgd",
        "frontier_mode": "hard",
        "rounds": 1000,
        "groups_per_round": 48,
        "samples_per_group": 4,
        "update_batch_size": 16,
        "frontier_width": 4,
        "zero_variance": "drop",
        "max_unusable_fraction": 1.0,
    },
    "engine": {"slots": 2},  # slow, so that the trainer waits and there is time to look
    # A heartbeat lives for ten of these, also when its service is frozen.
    "leases": {"lease_s": 120, "heartbeat_s": 5},
}


@dataclass(frozen=True)
class Recipe:
    commands: str
    output: str

    @classmethod
    def of(cls, block: str) -> Recipe:
        lines = block.splitlines()
        commands = [line[2:] for line in lines if line.startswith("$ ")]
        return cls("\n".join(commands), "\n".join(line for line in lines if not line.startswith("$ ")))


@dataclass(frozen=True)
class LiveRun:
    """A run whose services are frozen in the middle of a round: groups are open, leased, queued and claimed."""

    folder: Path
    group: str
    environment: dict[str, str]

    def answer(self, commands: str) -> str:
        """What a terminal shows; every command, also one within a pipe, must succeed."""
        ours, theirs = pty.openpty()
        setup = with_names("".join(SETUP.findall(PAGE.read_text())), self.group)
        with subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail\n{setup}\n{commands}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ) as bash:
            os.close(theirs)
            shown = b"".join(read_all(ours))
        text = shown.decode().replace("\r\n", "\n")
        assert bash.returncode == 0, text
        return text.rstrip("\n")


def read_all(terminal: int) -> Iterator[bytes]:
    with open(terminal, "rb", buffering=0) as file:
        while True:
            try:
                if not (piece := file.read(65536)):
                    return
            except OSError:  # EIO: nobody has it open any more
                return
            yield piece


def recipes() -> list[Recipe]:
    return [Recipe.of(block) for block in BLOCK.findall(PAGE.read_text())]


def shape(text: str) -> set[str]:
    """The kinds of its lines: names stay; numbers, hashes, ids and states do not."""
    return {line_kind(line) for line in text.splitlines()}


def line_kind(line: str) -> str:
    line = re.sub(r"^(?:\s*\d+[)#] ?)+", "", line)
    if names := re.findall(r"(?:^| )(\w+)=", line):
        return " ".join(names)
    if field := re.match(r'\s*("[\w-]+") ?(?:=>|:)', line):
        return re.sub(r"\d+", "N", field[1])
    line = re.sub(r"r\d{6}-g\d{4}", "GROUP", line)
    line = re.sub(rf"\b(?:{'|'.join(GroupState)})\b", "STATE", line)
    return re.sub(r"-?\b\d[\d.]*\b", "N", line)


@contextmanager
def live_run(folder: Path) -> Iterator[LiveRun]:
    assert REDIS_CLI, "these recipes need redis-cli: install redis-tools"
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTPIPE", "AWS"))}
    services: list[subprocess.Popen[bytes]] = []
    with LocalServers.start(folder, die_with_parent=True) as servers:
        try:
            for role in ("trainer", "rollout"):
                command = [sys.executable, "-m", f"rolloutpipe_components.{role}", "run.yaml", "--name", role]
                # Their logs go to our standard error, which pytest shows when this fails.
                services.append(subprocess.Popen(command, cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}))
            client = servers.connections.redis.client()
            reader = LedgerReader(client, RUN)
            group = freeze(reader, *services)
            Pins(LedgerClient(client, RUN, 10)).pin(reader.versions()[0][0], "evaluation of math", 7200)
            client.close()
            yield LiveRun(folder, group, environment | servers.connections.environment())
        finally:
            for service in services:
                service.kill()
                service.wait()
            # A polite end takes SeaweedFS a second.
            servers.s3.kill()


def freeze(reader: LedgerReader, trainer: subprocess.Popen[bytes], rollout: subprocess.Popen[bytes]) -> str:
    """Stop both services where there is something of everything to see; returns a group that the trainer has claimed.

    The trainer first: then its entries stay pending, and what rollout announces meanwhile stays unread.
    """
    end = time.monotonic() + 120
    while True:
        when(lambda: busy(reader), end, trainer, rollout)
        trainer.send_signal(signal.SIGSTOP)
        when(lambda: unread(reader) > 1 or not reader.open_groups(newest(reader)), end, trainer, rollout)
        rollout.send_signal(signal.SIGSTOP)
        rows = reader.groups(newest(reader))
        if busy(reader) and unread(reader) > 1 and any(row["state"] == GroupState.ADMITTED for row in rows):
            return next(row["id"] for row in rows if row["state"] == GroupState.CLAIMED)
        for service in (trainer, rollout):
            service.send_signal(signal.SIGCONT)


def newest(reader: LedgerReader) -> int:
    return reader.current_round() or 0


def busy(reader: LedgerReader) -> bool:
    """Whether a round behind the first has groups in every place, and both services have said what they do."""
    round, doing = newest(reader), [service["doing"] for service in reader.services()]
    if round == 0 or len(doing) < 2 or "starting" in doing:
        return False
    state = reader.round_state(round)
    counts = {name: int(value) for name, value in state.items() if value.isdigit()}
    return "stepped" in state and counts.get("n_filtered", 0) > 0 and counts["n_deferred"] > 3


def unread(reader: LedgerReader) -> int:
    return reader.fifo_depth() - len(reader.pending())


def when(condition: Callable[[], bool], end: float, *services: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert all(service.poll() is None for service in services), "a service ended"
        assert time.monotonic() < end, "the run never had something of everything"
        time.sleep(0.01)


def with_names(text: str, group: str) -> str:
    """The page's set-up with the names of this run."""
    for name, value in {"RUN": RUN, "ROUND": str(int(group[1:7])), "GROUP": group}.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, f"the page sets {name} once"
    return text


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    with live_run(tmp_path_factory.mktemp("redis-cli")) as live:
        yield live


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.commands.splitlines()[-1][:60])
def test_a_recipe_answers_as_the_page_says(live: LiveRun, recipe: Recipe) -> None:
    answer = live.answer(recipe.commands)
    assert not re.search(r"^\W*(ERR|WRONGTYPE|NOAUTH|NOPERM)|\(nil\)|\(empty |\(error\)|Warning:", answer, re.MULTILINE)
    assert shape(answer) == shape(recipe.output)


def test_the_recipes_look_at_every_kind_of_key() -> None:
    keys = RunKeys(RUN)
    round, group = 1, "r000001-g0003"
    every = [keys.run, keys.fifo, keys.ledger, keys.weights, keys.services, *keys.of_round(round), keys.group(group)]
    names = {key.removeprefix(keys.prefix) for key in [*every, keys.service("trainer")]}
    commands = "\n".join(recipe.commands for recipe in recipes()).replace("$ROUND", "1").replace("$GROUP", group)
    assert {name for name in names if f'"$K:{name}"' not in commands} == set()


def test_the_shape_tells_names_from_values() -> None:
    assert shape('1) 1# "lag" => (integer) 2') == shape('3# "lag" => "17"') == {'"lag"'}
    assert shape('1# "sealed_0" => "4 16 736"') == {'"sealed_N"'}
    assert shape("1795988290722-0 to=queued reason=no answer at all index=1") == {"to reason index"}
    assert shape("1) (integer) 12\n2) (integer) 9") == {"(integer) N"}
    assert shape(' 4) "r000001-g0018"') == {'"GROUP"'} != shape('"x"')


def refreshed(live: LiveRun) -> str:
    """The page with this run's outputs; long hashes are cut."""

    def block(match: re.Match[str]) -> str:
        recipe = Recipe.of(match[1])
        commands = "".join(f"$ {line}\n" for line in recipe.commands.splitlines())
        output = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", live.answer(recipe.commands))
        return f"```console\n{commands}{output}\n```"

    page = with_names(PAGE.read_text(), live.group)
    return BLOCK.sub(block, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, live_run(Path(folder)) as live:
        PAGE.write_text(refreshed(live))
