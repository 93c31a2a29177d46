"""Real SGLang servers on the CPU: two that all tests share, since a start takes half a minute and three processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from rolloutpipe_components.rollout.engines.sglang.replica import Note, Replica

from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.domain import Completion, WeightVersion
from rolloutpipe_core.noise import sample_seed
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory

T = TypeVar("T")

SLOTS = 8
"""Of one server."""
ARGUMENTS = (
    *("--mem-fraction-static", "0.1", "--max-total-tokens", "16384", "--context-length", "512"),
    *("--enable-priority-scheduling", "--schedule-low-priority-values-first", "--disable-priority-preemption"),
)
DEADLINES = Deadlines(answer_s=360, load_s=60, start_s=300, stall_s=10, silent_s=6, probe_s=0.5)
"""Short where a test waits for one; the machine may be busy."""
PROMPT = [5, 9, 14, 20, 7, 11]
DEADLINE_S = 400.0
"""Of a test's own waits; only a failing test reaches it."""


@dataclass(frozen=True)
class Version:
    """Weights as they are published: the version's sha is that of its manifest."""

    version: WeightVersion
    directory: Path


def version_of(number: int, directory: Path) -> Version:
    return Version(WeightVersion(number, sha256_hex(describe_directory(directory).to_bytes())), directory)


@pytest.fixture(scope="session")
def v0(walk_model: Path) -> Version:
    return version_of(0, walk_model)


@pytest.fixture(scope="session")
def v1(next_walk_model: Path) -> Version:
    return version_of(1, next_walk_model)


class Fleet:
    """The shared servers, and the loop in which the engine that started them lives."""

    def __init__(self, config: EngineConfig, logs: Path, runner: asyncio.Runner) -> None:
        self.notes: list[str] = []
        self.note: Note = lambda server, what: self.notes.append(f"{server}: {what}")
        self._runner = runner
        note: Note = lambda server, what: self.note(server, what)  # noqa: E731 - whatever it is by then
        self.engine = SglangEngine(config, ModelConfig(path="unused"), DEADLINES, "test", logs, note=note)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """A wait that nobody ends fails the test instead of hanging it."""
        return self._runner.run(asyncio.wait_for(work, DEADLINE_S))

    async def load(self, version: Version) -> None:
        """As at the start of a round: with all servers there."""
        await until(lambda: all(replica.serving or not replica.tried for replica in self.engine.replicas))
        await self.engine.load(version.version, version.directory)
        await until(lambda: all(replica.serving for replica in self.engine.replicas))

    @asynccontextmanager
    async def lent(self, version: Version) -> AsyncIterator[tuple[str, ...]]:
        """The servers' URLs, for an engine of the test's own that changes their weights: nobody else looks after them.

        Afterwards they get `version`.
        """
        kept, fleet = self.engine._fleet._keepers, self.engine._fleet
        fleet._keepers = []
        for keeper in kept:
            keeper.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        try:
            yield self.urls
        finally:
            await self.load(version)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(replica.http.url for replica in self.engine.replicas)


@pytest.fixture(scope="session")
def fleet(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory, v0: Version) -> Iterator[Fleet]:
    launch = {"replicas": 2, "python": str(sglang_python), "arguments": ARGUMENTS}
    config = EngineConfig.model_validate({"kind": "sglang", "launch": launch, "slots": 2 * SLOTS})
    with asyncio.Runner() as runner:
        fleet = Fleet(config, tmp_path_factory.mktemp("sglang"), runner)
        try:
            fleet.run(fleet.load(v0))
            yield fleet
        finally:
            runner.run(fleet.engine.close())


def seeds(count: int, group: int = 0) -> list[int]:
    return [sample_seed(0, 0, group, place) for place in range(count)]


async def sample(
    engine: SglangEngine, count: int = 4, group: int = 0, prompt: Sequence[int] = PROMPT, **sampling: Any
) -> list[Completion]:
    """One group's samples."""
    return await engine.generate(prompt, SamplingConfig.model_validate(sampling), seeds(count, group), group)


async def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.05)


def process_of(replica: Replica) -> int:
    assert replica.server is not None
    assert replica.server.pid is not None
    return replica.server.pid


def kill(replica: Replica) -> None:
    """kill -9 of the server's main process, the one with the HTTP side; the kernel ends the other two with it."""
    leader = process_of(replica)
    (main,) = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    os.kill(int(main), signal.SIGKILL)


def send(replica: Replica, number: signal.Signals) -> None:
    """To all of its processes."""
    os.killpg(process_of(replica), number)


def scheduler_of(replica: Replica) -> int:
    """The process that runs the model; the one with the HTTP side is another."""
    group = process_of(replica)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_text()
            if command.startswith("sglang::scheduler") and os.getpgid(int(entry.name)) == group:
                return int(entry.name)
        except (OSError, ProcessLookupError):
            continue
    raise AssertionError(f"{replica.name} has no scheduler")
