"""Rollout workers over real SGLang servers: what the ledger says when servers die, stand still, or take nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from rolloutpipe_components.rollout.engine import Engine
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine

from rolloutpipe_core.config.models import EngineConfig, ModelConfig
from rolloutpipe_core.domain import GroupState, WeightVersion

from ..conftest import MakeRig, R, Rig, WrappedEngine
from .conftest import Fleet, kill, send

K = 4


class Over(WrappedEngine):
    """The worker's engine is the one over SGLang; that of the rig stays unused."""

    def __init__(self, unused: Engine, engine: SglangEngine, close: bool) -> None:
        super().__init__(engine)
        self._unused, self._close = unused, close

    async def load(self, version: WeightVersion, directory: Path) -> None:
        await self.engine.load(version, directory)

    async def close(self) -> None:
        await self._unused.close()
        if self._close:
            await self.engine.close()


async def serve(rig: Rig, engine: SglangEngine, deed: Any, close: bool = False) -> None:
    """One round, with a deed in the middle of it."""
    async with rig.worker(wrap=lambda unused: Over(unused, engine, close)) as worker:
        await rig.until(lambda: any(replica.in_flight for replica in engine.replicas))
        deed()
        async with asyncio.timeout(380):
            while not rig.round_is("drained"):
                if worker.task.done():
                    worker.task.result()
                await asyncio.sleep(0.05)
        rig.trainer.train()
        await worker.finish()


LONG: dict[str, Any] = {
    "sampling": {"max_new_tokens": 250, "temperature": 20.0},
    "deadlines": {"engine_s": 380, "publish_s": 380, "group_s": 380},
    "schedule": {"kind": "cgp"},
    "data": {"max_prompt_tokens": 200},
}


def test_a_round_outlives_the_death_of_all_its_servers(fleet: Fleet, make_rig: MakeRig) -> None:
    """Its samples wait for the restart; every group ends complete, once, at its first attempt."""
    rig = make_rig(**LONG)

    def deed() -> None:
        for replica in fleet.engine.replicas:
            kill(replica)

    fleet.run(serve(rig, fleet.engine, deed))
    rows = rig.reader.groups(0)
    assert [(row["state"], row["attempt"]) for row in rows] == [(GroupState.TRAINED, "1")] * R
    for index in range(R):
        (group,) = rig.stored(index)
        assert len(group.samples) == K
        queued = [move for move in rig.moves(index) if move.after is GroupState.QUEUED]
        assert len(queued) == 1


def test_the_ledger_says_what_the_servers_did(fleet: Fleet, make_rig: MakeRig) -> None:
    """Both stand still past every deadline: the groups fail, with the reason."""
    rig = make_rig(**{**LONG, "leases": {"max_attempts": 1}})
    hasty = Deadlines(answer_s=5, load_s=30, start_s=30, stall_s=60, silent_s=2, probe_s=0.2)
    servers = fleet.engine.replicas

    async def scenario() -> None:
        config = EngineConfig(kind="sglang", urls=fleet.urls, slots=16)
        engine = SglangEngine(config, ModelConfig(path="unused"), hasty)

        def deed() -> None:
            for replica in servers:
                send(replica, signal.SIGSTOP)

        try:
            await serve(rig, engine, deed, close=True)
        finally:
            for replica in servers:
                send(replica, signal.SIGCONT)

    fleet.run(scenario())
    failed = [row for row in rig.reader.groups(0) if row["state"] == GroupState.FAILED]
    assert failed
    for row in failed:
        assert "samples have no answer after 5 s" in row["reason"]
        assert "gave no answer; expected: one within 2 s" in row["reason"]


@pytest.fixture(autouse=True)
def all_servers_run(fleet: Fleet) -> Any:
    yield
    for replica in fleet.engine.replicas:
        if replica.server is not None and replica.server.running:
            send(replica, signal.SIGCONT)
