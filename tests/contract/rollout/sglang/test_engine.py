"""What the engine promises, on two real servers: samples, weights, refusals."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from transformers import AutoModelForCausalLM

from rolloutpipe_core.config.models import EngineConfig, ModelConfig
from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan
from rolloutpipe_core.errors import BadInput, EngineFailure

from .conftest import DEADLINES, PROMPT, SLOTS, Fleet, Version, sample, scheduler_of, until, version_of
from .proxy import Proxy

EOS_ID = 1
TOLERANCE = 1e-5


def logprobs_of(model: Path, prompt: Sequence[int], response: Sequence[int], temperature: float) -> torch.Tensor:
    """log-softmax(logits / T) of each response id under a plain float32 forward of transformers, [T]."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = policy(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def mismatch(completions: Sequence[Completion], model: Path, temperature: float) -> float:
    """Largest difference between the engine's log-probabilities and transformers'."""
    differences = [
        (
            torch.from_numpy(completion.behavior_logprobs)
            - logprobs_of(model, PROMPT, completion.response_ids.tolist(), temperature)
        ).abs()
        for completion in completions
    ]
    return max(float(each.max()) for each in differences)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_of_the_scaled_logits(fleet: Fleet, v0: Version, temperature: float) -> None:
    async def scenario() -> list[Completion]:
        await fleet.load(v0)
        return await sample(fleet.engine, 6, temperature=temperature, max_new_tokens=40)

    completions = fleet.run(scenario())
    assert len(completions) == 6
    assert all(
        completion.spans == (VersionSpan(v0.version, 0, len(completion.response_ids)),) for completion in completions
    )
    assert mismatch(completions, v0.directory, temperature) < TOLERANCE


@pytest.mark.parametrize("truncation", [{"top_k": 5}, {"top_p": 0.7}])
def test_logprobs_are_those_before_truncation(fleet: Fleet, v0: Version, truncation: dict[str, float]) -> None:
    async def scenario() -> list[Completion]:
        await fleet.load(v0)
        return await sample(fleet.engine, 4, temperature=0.8, max_new_tokens=30, **truncation)

    assert mismatch(fleet.run(scenario()), v0.directory, 0.8) < TOLERANCE


def test_a_response_ends_at_its_stop_id_or_its_length(fleet: Fleet, v0: Version) -> None:
    def seen(completions: Sequence[Completion]) -> set[int]:
        """What the model samples, but for the id that ends a response anyway: many, since each alone may be rare."""
        return {id for each in completions for id in each.response_ids.tolist()} - {EOS_ID}

    async def scenario() -> tuple[list[Completion], list[Completion], list[Completion]]:
        await fleet.load(v0)
        long = await sample(fleet.engine, 8, max_new_tokens=96)
        short = await sample(fleet.engine, 8, max_new_tokens=3)
        return long, short, await sample(fleet.engine, 8, max_new_tokens=96, stop_ids=sorted(seen(long)))

    long, short, stopped = fleet.run(scenario())
    for completion in [*long, *short, *stopped]:
        ids, limit = completion.response_ids.tolist(), 3 if completion in short else 96
        by_stop = completion.finish_reason is FinishReason.STOP
        assert by_stop or (completion.finish_reason is FinishReason.LENGTH and len(ids) == limit)
        if completion not in stopped:
            assert by_stop == (ids[-1] == EOS_ID)
            assert EOS_ID not in ids[:-1]
    stops = seen(long)
    assert any(completion.response_ids[-1] in stops for completion in stopped)
    assert all(stops.isdisjoint(completion.response_ids[:-1].tolist()) for completion in stopped)


def test_more_samples_than_slots_all_come_and_use_both_servers(fleet: Fleet, v0: Version) -> None:
    async def scenario() -> tuple[list[list[Completion]], int]:
        await fleet.load(v0)
        calls = [
            asyncio.create_task(sample(fleet.engine, 8, group, max_new_tokens=48, temperature=20.0))
            for group in range(5)
        ]
        await asyncio.sleep(0.05)
        busy = sum(replica.in_flight for replica in fleet.engine.replicas)
        assert fleet.engine.spare_slots() == 0
        assert all(0 < replica.in_flight <= SLOTS for replica in fleet.engine.replicas)
        return await asyncio.gather(*calls), busy

    groups, busy = fleet.run(scenario())
    assert busy == 2 * SLOTS
    assert [len(group) for group in groups] == [8] * 5
    assert fleet.engine.spare_slots() == 2 * SLOTS


def test_other_weights_are_served_after_a_load_and_no_prefix_of_the_old(fleet: Fleet, v0: Version, v1: Version) -> None:
    async def scenario() -> list[list[Completion]]:
        found = []
        for version in (v0, v1, v0):
            await fleet.load(version)
            found.append(await sample(fleet.engine, 6, max_new_tokens=24))
        return found

    for version, completions in zip((v0, v1, v0), fleet.run(scenario()), strict=True):
        assert {span.version for completion in completions for span in completion.spans} == {version.version}
        assert mismatch(completions, version.directory, 1.0) < TOLERANCE


def test_servers_tell_the_same_weights_by_their_checksums(fleet: Fleet, v0: Version, v1: Version) -> None:
    async def scenario() -> list[list[tuple[str, ...] | None]]:
        found = []
        for version in (v0, v1):
            await fleet.load(version)
            found.append([await replica.checksums() for replica in fleet.engine.replicas])
        return found

    (first, second), (third, fourth) = fleet.run(scenario())
    assert first is not None
    assert first == second
    assert third == fourth
    assert first != third


@pytest.mark.parametrize(
    ("prompt", "sampling", "reason"),
    [
        ([5, 58], {}, "not in the model's vocabulary"),
        ([5, -1], {}, "not in the model's vocabulary"),
        ([5], {"stop_ids": [58]}, "not in the model's vocabulary"),
        ([5] * 500, {"max_new_tokens": 96}, "positions"),
        ([], {}, "nothing to sample"),
    ],
)
def test_what_a_server_would_die_of_is_not_sent(
    fleet: Fleet, v0: Version, prompt: list[int], sampling: dict[str, object], reason: str
) -> None:
    async def scenario() -> None:
        await fleet.load(v0)
        with pytest.raises(BadInput, match=reason):
            await sample(fleet.engine, 2, prompt=prompt, **sampling)
        assert len(await sample(fleet.engine, 2, max_new_tokens=4)) == 2

    fleet.run(scenario())


def test_a_truncated_file_never_reaches_a_server(fleet: Fleet, v0: Version, v1: Version, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    shutil.copytree(v1.directory, folder)
    published = version_of(1, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])

    async def scenario() -> list[Completion]:
        await fleet.load(v0)
        with pytest.raises(EngineFailure, match="not what was published"):
            await fleet.engine.load(published.version, published.directory)
        return await sample(fleet.engine, 4, max_new_tokens=4)

    assert {span.version for each in fleet.run(scenario()) for span in each.spans} == {v0.version}


def test_weights_that_no_server_takes_fail_the_load_and_the_servers_live(
    fleet: Fleet, v0: Version, tmp_path: Path
) -> None:
    """A whole folder, without any weights: 400 from `/update_weights_from_disk`."""
    folder = tmp_path / "weights"
    shutil.copytree(v0.directory, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    empty = version_of(2, folder)

    async def scenario() -> None:
        await fleet.load(v0)
        pids = [replica.server and replica.server.pid for replica in fleet.engine.replicas]
        with pytest.raises(EngineFailure, match=r"no server takes v2.*400"):
            await fleet.engine.load(empty.version, empty.directory)
        assert fleet.engine.version is None
        with pytest.raises(EngineFailure, match="holds no weights"):
            await sample(fleet.engine)
        await fleet.engine.load(v0.version, v0.directory)
        assert len(await sample(fleet.engine, 2, max_new_tokens=4)) == 2
        assert pids == [replica.server and replica.server.pid for replica in fleet.engine.replicas]

    fleet.run(scenario())


def test_a_call_that_is_dropped_frees_its_slots_and_its_server(fleet: Fleet, v0: Version) -> None:
    async def scenario() -> None:
        await fleet.load(v0)
        call = asyncio.create_task(sample(fleet.engine, 12, max_new_tokens=400, temperature=20.0))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert fleet.engine.spare_slots() == 2 * SLOTS
        assert len(await sample(fleet.engine, 4, max_new_tokens=4)) == 4

    fleet.run(scenario())


def test_what_a_dropped_call_had_at_a_server_is_ended_there(fleet: Fleet, v0: Version) -> None:
    """By name: what is between does not hang up as the caller does, so that the server's own answers tell."""
    sent: set[str] = set()
    ended: dict[str, str] = {}

    def request(path: str, message: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate":
            sent.add(message["rid"])
        return message

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate":
            ended[message["meta_info"]["id"]] = message["meta_info"]["finish_reason"]["type"]
        return message

    async def scenario() -> None:
        await fleet.load(v0)
        async with Proxy(fleet.urls[0], request, answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url,), slots=SLOTS)
            engine = SglangEngine(config, ModelConfig(path="unused"), DEADLINES)
            try:
                await engine.load(v0.version, v0.directory)
                before = set(sent)
                call = asyncio.create_task(sample(engine, SLOTS, max_new_tokens=400, temperature=20.0))
                await until(lambda: len(sent - before) == SLOTS)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await until(lambda: ended.keys() >= sent)
                assert "abort" in {ended[rid] for rid in sent - before}
                assert {ended[rid] for rid in before} == {"length"}
            finally:
                await engine.close()

    fleet.run(scenario())


def test_by_priority_the_server_itself_puts_the_frontier_first(fleet: Fleet, v0: Version) -> None:
    config = EngineConfig(kind="sglang", urls=fleet.urls[:1], slots=SLOTS, frontier_by="priority")

    async def scenario() -> list[int]:
        await fleet.load(v0)
        engine = SglangEngine(config, ModelConfig(path="unused"), DEADLINES)
        await engine.load(v0.version, v0.directory)
        ended: list[int] = []

        async def group(index: int) -> None:
            await sample(engine, SLOTS, index, max_new_tokens=12, temperature=20.0)
            ended.append(index)

        try:
            assert engine.spare_slots() > 1000  # all groups are sent
            scheduler = scheduler_of(fleet.engine.replicas[0])
            os.kill(scheduler, signal.SIGSTOP)  # until it can choose among all of them
            groups = [asyncio.create_task(group(index)) for index in (6, 2, 7, 1, 8)]
            await asyncio.sleep(1)
            os.kill(scheduler, signal.SIGCONT)
            await asyncio.gather(*groups)
        finally:
            await engine.close()
        return ended

    ended = fleet.run(scenario())
    assert set(ended[:2]) == {1, 2}
    assert set(ended[-2:]) == {7, 8}


def test_a_server_that_cannot_schedule_by_priority_is_refused(fleet: Fleet, v0: Version) -> None:
    """At the first load it ends the worker; later such a server is out, and the others go on without."""
    plain = True

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "enable_priority_scheduling": False} if path == "/server_info" and plain else message

    async def scenario() -> tuple[str, str]:
        nonlocal plain
        await fleet.load(v0)
        async with fleet.lent(v0) as urls, Proxy(urls[0], answer=answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url, urls[1]), slots=2 * SLOTS, frontier_by="priority")
            engine = SglangEngine(config, ModelConfig(path="unused"), DEADLINES)
            first, second = engine.replicas
            try:
                with pytest.raises(BadInput, match=r"does not schedule by priority.*engine.frontier_by"):
                    await engine.load(v0.version, v0.directory)
                plain = False
                await engine.load(v0.version, v0.directory)
                assert first.serving
                plain = True
                await engine.load(v0.version, v0.directory)
                assert len(await sample(engine, 4, max_new_tokens=4)) == 4
                assert (first.serving, second.serving) == (False, True)
                return url, first.reason
            finally:
                await engine.close()

    url, reason = fleet.run(scenario())
    assert reason.startswith(f"{url} does not schedule by priority; ")


def test_entropy_of_samples_is_the_models(fleet: Fleet, v0: Version) -> None:
    """Samples of one call differ, and their mean log-probability is about the model's own negative entropy."""

    async def scenario() -> list[Completion]:
        await fleet.load(v0)
        return await sample(fleet.engine, 64, max_new_tokens=1, temperature=2.0)

    completions = fleet.run(scenario())
    policy = AutoModelForCausalLM.from_pretrained(v0.directory).eval()
    with torch.inference_mode():
        probabilities = (policy(torch.tensor([PROMPT])).logits[0, -1] / 2.0).softmax(-1)
    entropy = float(-(probabilities * probabilities.log()).sum())
    variance = float((probabilities * (probabilities.log() + entropy) ** 2).sum())
    mean = sum(float(completion.behavior_logprobs[0]) for completion in completions) / len(completions)
    assert abs(mean + entropy) < 5 * math.sqrt(variance / len(completions)) + 1e-6
    assert len({int(completion.response_ids[0]) for completion in completions}) > 1
