"""Rollout workers over real SGLang servers: what the ledger says when servers die, stand still, or take nothing."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rolloutpipe_components.rollout.engine import Engine
from rolloutpipe_components.rollout.engines.sglang.client import SglangClient
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from rolloutpipe_components.rollout.engines.sglang.failures import Refused
from rolloutpipe_components.rollout.engines.sglang.weights import Weights
from rolloutpipe_components.rollout.tokenize import PromptTokenizer

from rolloutpipe_core.config.models import EngineConfig, ModelConfig
from rolloutpipe_core.domain import GroupState, WeightVersion
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.ledger.events import EngineNoted
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.observe.why import group_history

from ..conftest import MakeRig, R, Rig, WrappedEngine
from .conftest import DEADLINES, Fleet, Version, kill, process_of, sample, send, until
from .proxy import Proxy

K = 4
UNUSED = ModelConfig(path="unused")
LONG: dict[str, Any] = {
    "sampling": {"max_new_tokens": 250, "temperature": 20.0},
    "deadlines": {"engine_s": 380, "publish_s": 380, "group_s": 380},
    "schedule": {"kind": "cgp"},
    "data": {"max_prompt_tokens": 200},
}
Deed = Callable[[], Awaitable[None]]


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


async def serve(rig: Rig, engine: SglangEngine, deed: Deed, close: bool = False) -> None:
    """One round, with a deed in the middle of it."""
    async with rig.worker(wrap=lambda unused: Over(unused, engine, close)) as worker:
        await rig.until(lambda: any(replica.in_flight for replica in engine.replicas))
        await deed()
        async with asyncio.timeout(380):
            while not rig.round_is("drained"):
                if worker.task.done():
                    worker.task.result()
                await asyncio.sleep(0.05)
        rig.trainer.train()
        await worker.finish()


def ledger_of(rig: Rig) -> RolloutLedger:
    """As the worker's own: what its engine notes is in the run's history."""
    return RolloutLedger(rig.client, "worker-0", rig.config.leases.lease_s, rig.config.leases.max_attempts)


def notes(rig: Rig) -> list[tuple[str, str]]:
    """(server, what)"""
    return [(event.server, event.what) for event in rig.reader.events() if isinstance(event, EngineNoted)]


def check_complete_once(rig: Rig, round: int = 0) -> None:
    """Every group whole and trained, announced once, at its first attempt, by the round's version alone."""
    rows = rig.reader.groups(round)
    assert [(row["state"], row["attempt"]) for row in rows] == [(GroupState.TRAINED, "1")] * R
    for index in range(R):
        (group,) = rig.stored(index, round)
        assert len(group.samples) == K
        assert {span.version for each in group.samples for span in each.spans} == {group.version}
        assert group.version.number == round
        assert len([move for move in rig.moves(index, round) if move.after is GroupState.QUEUED]) == 1


@pytest.fixture(autouse=True)
def as_before(fleet: Fleet) -> Iterator[None]:
    """The shared servers run, and nobody writes into a run that is over."""
    note = fleet.note
    yield
    fleet.note = note
    for replica in fleet.engine.replicas:
        if replica.server is not None and replica.server.running:
            send(replica, signal.SIGCONT)


def test_a_round_outlives_the_death_of_all_its_servers(fleet: Fleet, make_rig: MakeRig) -> None:
    """Its samples wait for the restart; every group ends complete, once, at its first attempt."""
    rig = make_rig(**LONG)
    fleet.note = ledger_of(rig).note
    names = [replica.name for replica in fleet.engine.replicas]

    async def deed() -> None:
        for replica in fleet.engine.replicas:
            kill(replica)

    async def scenario() -> None:
        await serve(rig, fleet.engine, deed)
        await until(lambda: all(replica.serving for replica in fleet.engine.replicas))

    fleet.run(scenario())
    check_complete_once(rig)
    found = notes(rig)
    for name in names:
        whats = [what for server, what in found if server == name]
        assert any(what.startswith("out of service: ") for what in whats)
        assert any(what.startswith("is started again: it was ended by SIGKILL; ") for what in whats)
        assert "serves v0" in whats[-1]
    told = [step.words for step in group_history(rig.reader.events(), "r000000-g0000").steps]
    assert any("out of service" in words for words in told), told


Told = Callable[[], bool]
"""Whether the ledger says already what was done."""


async def stand_still(fleet: Fleet, _other: Version, _told: Told) -> None:
    send(fleet.engine.replicas[0], signal.SIGSTOP)


async def abort(fleet: Fleet, _other: Version, told: Told) -> None:
    while not told():  # a request may still be on its way when the first abort comes
        await fleet.engine.replicas[0].http.abort_all(5)
        await asyncio.sleep(0.02)


async def change_weights(fleet: Fleet, other: Version, _told: Told) -> None:
    stranger = SglangClient(fleet.urls[0])
    with suppress(Refused):  # 400 where samples kept it from emptying its cache: the weights are changed all the same
        await stranger.update_weights(other.directory, Weights(other.version, other.directory).tag, 30)
    await stranger.close()


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        (stand_still, r"out of service: .*gave no answer"),
        (abort, r"a sample is tried again: a sample did not end by itself; given: finish reason abort"),
        (change_weights, r"out of service: .*other weights"),
    ],
)
def test_a_round_outlives_what_happens_to_one_of_its_servers(
    fleet: Fleet,
    make_rig: MakeRig,
    v0: Version,
    v1: Version,
    deed: Callable[[Fleet, Version, Told], Awaitable[None]],
    words: str,
) -> None:
    """The other serves what it lost; the ledger says why."""
    rig = make_rig(**LONG)
    fleet.note = ledger_of(rig).note
    first = fleet.engine.replicas[0]

    def told() -> bool:
        return any(re.search(words, what) for server, what in notes(rig) if server == first.name)

    async def scenario() -> None:
        await fleet.load(v0)
        await serve(rig, fleet.engine, lambda: deed(fleet, v1, told))
        await until(told, 60)
        send(first, signal.SIGCONT)
        await until(lambda: first.serving)

    fleet.run(scenario())
    check_complete_once(rig)


def test_an_answer_that_never_arrives_is_in_the_ledger(fleet: Fleet, make_rig: MakeRig, v0: Version) -> None:
    """Fewer than K answers."""
    rig = make_rig(**LONG)
    lost: list[bool] = []

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/generate" and len(message["output_ids"]) > 1 and not lost:
            lost.append(True)
            return None
        return message

    async def deed() -> None:
        await until(lambda: lost)

    async def scenario() -> None:
        await fleet.load(v0)
        async with Proxy(fleet.urls[0], answer=answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url, fleet.urls[1]), slots=16)
            engine = SglangEngine(config, UNUSED, DEADLINES, note=ledger_of(rig).note)
            await serve(rig, engine, deed, close=True)

    fleet.run(scenario())
    check_complete_once(rig)
    assert any("gave no answer; given: RemoteProtocolError" in what for _, what in notes(rig))


def test_the_ledger_says_what_the_servers_did(fleet: Fleet, make_rig: MakeRig) -> None:
    """Both stand still past every deadline: the groups fail, with the reason."""
    rig = make_rig(**{**LONG, "leases": {"max_attempts": 1}})
    hasty = Deadlines(answer_s=5, load_s=30, start_s=30, stall_s=60, silent_s=2, probe_s=0.2)
    servers = fleet.engine.replicas

    async def deed() -> None:
        for replica in servers:
            send(replica, signal.SIGSTOP)

    async def scenario() -> None:
        config = EngineConfig(kind="sglang", urls=fleet.urls, slots=16)
        engine = SglangEngine(config, UNUSED, hasty)
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


def test_a_server_that_alone_refuses_an_update_has_no_part_in_the_round(
    fleet: Fleet, make_rig: MakeRig, v0: Version
) -> None:
    """Its machine does not see the folder of version 1: 400. The round is served by the other, of one version."""
    rig = make_rig(**{**LONG, "schedule": {"kind": "cgp", "rounds": 2}, "sampling": {"max_new_tokens": 24}})
    mounted = False
    generated: list[str] = []

    def request(path: str, message: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate":
            generated.append(message["rid"])
        if path == "/update_weights_from_disk" and message["weight_version"].startswith("v1@") and not mounted:
            return {**message, "model_path": message["model_path"] + "-not-mounted"}
        return message

    async def scenario() -> str:
        nonlocal mounted
        await fleet.load(v0)
        async with fleet.lent(v0) as urls, Proxy(urls[0], request).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url, urls[1]), slots=16)
            engine = SglangEngine(config, UNUSED, DEADLINES, note=ledger_of(rig).note)
            first, second = engine.replicas
            async with rig.worker(wrap=lambda unused: Over(unused, engine, close=True)) as worker:
                await rig.until(lambda: rig.round_is("drained"))
                before = len(generated)
                assert before > 1
                rig.trainer.train()
                await rig.until(lambda: rig.round_is("drained", round=1))
                assert (first.serving, second.serving) == (False, True)
                assert len(generated) == before, "nothing was sent to the server that refused"
                mounted = True
                await until(lambda: first.serving)
                told = await first.http.model_info(5)
                rig.trainer.train(round=1)
                await worker.finish()
                assert (first.held, told.weight_version) == (second.held, second.held and second.held.tag)
                return url

    url = fleet.run(scenario())
    check_complete_once(rig, round=0)
    check_complete_once(rig, round=1)
    out, again = [what for server, what in notes(rig) if server == url]
    assert re.search(r"^out of service: .*/update_weights_from_disk refused; given: 400 ", out)
    assert again.startswith("serves v1@")


def test_a_prompt_id_outside_the_vocabulary_ends_the_worker_and_no_server(
    fleet: Fleet, make_rig: MakeRig, v0: Version, tmp_path: Path
) -> None:
    """A tokenizer with one id more than the model: the user's to mend. A server would die of it."""
    rig = make_rig(**LONG)
    folder = tmp_path / "larger"
    shutil.copytree(v0.directory, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["?"] = len(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rig.tokenizer = PromptTokenizer(folder, rig.config.data)

    async def scenario() -> None:
        await fleet.load(v0)
        pids = [process_of(replica) for replica in fleet.engine.replicas]
        async with rig.worker(wrap=lambda unused: Over(unused, fleet.engine, close=False)) as worker:
            with pytest.raises(BadInput, match="a prompt id is not in the model's vocabulary; given: 58"):
                await worker.finish()
        assert len(await sample(fleet.engine, 4, max_new_tokens=4)) == 4
        assert pids == [process_of(replica) for replica in fleet.engine.replicas]

    fleet.run(scenario())
    assert rig.states() == [GroupState.DEFERRED] * R
    (reason,) = {row["reason"] for row in rig.reader.groups(0) if row.get("reason")}
    assert reason.startswith("the worker ended: a prompt id is not in the model's vocabulary; given: 58")
