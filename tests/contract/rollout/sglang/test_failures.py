"""What goes wrong with real servers: killed, stopped, aborted, cut off, with other weights."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from rolloutpipe_components.rollout.engines.sglang.client import SglangClient
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.engine import SglangEngine
from rolloutpipe_components.rollout.engines.sglang.weights import Weights

from rolloutpipe_core.config.models import EngineConfig, ModelConfig
from rolloutpipe_core.domain import Completion, WeightVersion
from rolloutpipe_core.errors import EngineFailure

from .conftest import DEADLINES, Fleet, Version, kill, process_of, sample, scheduler_of, send, until
from .proxy import Proxy

LONG = {"max_new_tokens": 250, "temperature": 20.0}
"""Nearly uniform: the walk's end is one id of 58."""
GROUPS, K = 6, 8
UNUSED = ModelConfig(path="unused")


def check_whole(groups: Sequence[Sequence[Completion]], version: WeightVersion) -> None:
    """Every sample there, once, by this version alone."""
    assert [len(group) for group in groups] == [K] * len(groups)
    assert {span.version for group in groups for each in group for span in each.spans} == {version}


async def serve(engine: SglangEngine) -> list[asyncio.Task[list[Completion]]]:
    """A round's groups, under way."""
    calls = [asyncio.create_task(sample(engine, K, group, **LONG)) for group in range(GROUPS)]
    await until(lambda: all(replica.in_flight for replica in engine.replicas))
    await asyncio.sleep(0.1)
    return calls


def test_samples_of_a_killed_server_go_elsewhere_and_it_comes_back(fleet: Fleet, v0: Version) -> None:
    before = set(Path("/dev/shm").glob("sglang_loads_*"))

    async def scenario() -> list[list[Completion]]:
        await fleet.load(v0)
        first = fleet.engine.replicas[0]
        pid = process_of(first)
        calls = await serve(fleet.engine)
        kill(first)
        groups = await asyncio.gather(*calls)
        await until(lambda: first.serving)
        assert process_of(first) != pid
        assert (await first.http.model_info(5)).weight_version == Weights(v0.version, v0.directory).tag
        return groups

    check_whole(fleet.run(scenario()), v0.version)
    assert len(set(Path("/dev/shm").glob("sglang_loads_*")) - before) <= 1  # the new server's own


def test_a_server_that_is_stopped_loses_its_samples_and_comes_back(fleet: Fleet, v0: Version, v1: Version) -> None:
    async def scenario() -> list[list[Completion]]:
        await fleet.load(v0)
        first = fleet.engine.replicas[0]
        pid = process_of(first)
        calls = await serve(fleet.engine)
        send(first, signal.SIGSTOP)
        try:
            groups = await asyncio.gather(*calls)
            assert "no answer" in first.reason
            await fleet.engine.load(v1.version, v1.directory)  # it misses a version meanwhile
        finally:
            send(first, signal.SIGCONT)
        await until(lambda: first.serving)
        assert process_of(first) == pid
        assert first.held is not None
        assert first.held.version == v1.version
        check_whole(await asyncio.gather(*await serve(fleet.engine)), v1.version)
        return groups

    check_whole(fleet.run(scenario()), v0.version)


def test_a_server_whose_scheduler_hangs_is_stalled(fleet: Fleet, v0: Version) -> None:
    """Its HTTP side answers all the time."""

    async def scenario() -> list[list[Completion]]:
        await fleet.load(v0)
        first = fleet.engine.replicas[0]
        calls = await serve(fleet.engine)
        scheduler = scheduler_of(first)
        os.kill(scheduler, signal.SIGSTOP)
        try:
            groups = await asyncio.gather(*calls)
            assert "have made no step" in first.reason
        finally:
            os.kill(scheduler, signal.SIGCONT)
        await until(lambda: first.serving)
        return groups

    check_whole(fleet.run(scenario()), v0.version)


@pytest.mark.parametrize("mode", ["in_place", "abort"])
def test_a_server_that_is_paused_is_never_ended(fleet: Fleet, v0: Version, mode: str) -> None:
    """In place its scheduler stands still, and others get its samples. Else it works; they wait in front of it."""

    async def scenario() -> list[list[Completion]]:
        await fleet.load(v0)
        first = fleet.engine.replicas[0]
        pid, fence = process_of(first), first.fence
        calls = await serve(fleet.engine)
        async with httpx.AsyncClient(base_url=first.http.url, timeout=60, trust_env=False) as stranger:
            (await stranger.post("/pause_generation", json={"mode": mode})).raise_for_status()
            try:
                if mode == "in_place":
                    await asyncio.gather(*calls)
                    assert "have made no step" in first.reason
                else:
                    await asyncio.sleep(4 * DEADLINES.probe_s)
                    assert (first.serving, first.fence) == (True, fence)
            finally:
                (await stranger.post("/continue_generation", json={})).raise_for_status()
        groups = await asyncio.gather(*calls)
        await until(lambda: first.serving)
        assert process_of(first) == pid
        return groups

    check_whole(fleet.run(scenario()), v0.version)


def test_aborted_samples_are_sampled_again(fleet: Fleet, v0: Version) -> None:
    async def scenario() -> list[list[Completion]]:
        await fleet.load(v0)
        calls = await serve(fleet.engine)
        await fleet.engine.replicas[0].http.abort_all(5)
        return await asyncio.gather(*calls)

    check_whole(fleet.run(scenario()), v0.version)


def test_weights_change_right_after_a_call_was_dropped(fleet: Fleet, v0: Version, v1: Version) -> None:
    """A server may still be at work on what was dropped; it refuses other weights (400) until that is over."""

    async def scenario() -> None:
        await fleet.load(v0)
        noted = len(fleet.notes)
        for version in (v1, v0) * 3:
            call = asyncio.create_task(sample(fleet.engine, 2 * K, **LONG))
            await until(lambda: all(replica.in_flight for replica in fleet.engine.replicas))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await fleet.engine.load(version.version, version.directory)
            assert all(replica.serving for replica in fleet.engine.replicas), fleet.notes[noted:]
        assert fleet.notes[noted:] == []

    fleet.run(scenario())


def test_a_sample_that_is_aborted_every_time_fails_its_group_with_the_reason(fleet: Fleet, v0: Version) -> None:
    async def scenario() -> str:
        await fleet.load(v0)
        call = asyncio.create_task(sample(fleet.engine, 2 * K, **LONG))  # a few may end before an abort comes
        while not call.done():
            await asyncio.gather(*(replica.http.abort_all(5) for replica in fleet.engine.replicas))
        with pytest.raises(EngineFailure) as failure:
            await call
        return str(failure.value)

    reason = fleet.run(scenario())
    assert "a sample failed 3 times" in reason
    assert "abort" in reason


def test_a_server_that_went_back_to_old_weights_is_out_until_it_has_the_rounds(
    fleet: Fleet, v0: Version, v1: Version
) -> None:
    async def scenario() -> list[list[Completion]]:
        await fleet.load(v1)
        first = fleet.engine.replicas[0]
        old = Weights(v0.version, v0.directory)
        stranger = SglangClient(first.http.url)
        await stranger.update_weights(old.directory, old.tag, 30)
        await stranger.close()
        calls = [asyncio.create_task(sample(fleet.engine, K, group, max_new_tokens=24)) for group in range(GROUPS)]
        groups = await asyncio.gather(*calls)
        assert first.fence > 0
        await until(lambda: first.serving)
        assert (await first.http.model_info(5)).weight_version == Weights(v1.version, v1.directory).tag
        return groups

    check_whole(fleet.run(scenario()), v1.version)


CHECKSUMS = "/weights_checker"


def test_a_server_that_returns_with_other_weights_under_the_same_name_stays_out(
    fleet: Fleet, v0: Version, v1: Version
) -> None:
    """It misses a load, and is handed the weights alone: what it then holds is compared with what the others hold."""
    mounted, corrupt = True, False
    generated: list[str] = []

    def request(path: str, message: dict[str, Any]) -> dict[str, Any]:
        if path == "/generate":
            generated.append(message["rid"])
        if path == "/update_weights_from_disk" and not mounted:
            return {**message, "model_path": message["model_path"] + "-not-mounted"}
        return message

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any]:
        if path == CHECKSUMS and corrupt:
            return {**message, "ranks": [{**rank, "per_gpu_checksum": "0" * 64} for rank in message["ranks"]]}
        return message

    async def scenario() -> list[list[Completion]]:
        nonlocal mounted, corrupt
        await fleet.load(v0)
        async with fleet.lent(v0) as urls, Proxy(urls[0], request, answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url, urls[1]), slots=16)
            engine = SglangEngine(config, UNUSED, DEADLINES)
            first, second = engine.replicas
            try:
                await engine.load(v0.version, v0.directory)
                assert first.serving
                mounted, corrupt = False, True
                await engine.load(v1.version, v1.directory)
                mounted = True
                await until(lambda: "holds weights that differ from the others'" in first.reason)
                generated.clear()
                groups = [await sample(engine, K, group, max_new_tokens=24) for group in range(GROUPS)]
                assert (first.serving, second.serving, generated) == (False, True, [])
                corrupt = False
                await until(lambda: first.serving)
                assert first.held == second.held
                return groups
            finally:
                await engine.close()

    check_whole(fleet.run(scenario()), v1.version)


def test_servers_that_disagree_about_the_weights_fail_the_load(fleet: Fleet, v0: Version) -> None:
    """Two are no majority. One that cannot tell what it holds is out, and has no say."""
    corrupt, mute = True, False

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        if path == CHECKSUMS and mute:
            return None
        if path == CHECKSUMS and corrupt:
            return {**message, "ranks": [{"per_gpu_checksum": "0" * 64}]}
        return message

    async def scenario() -> None:
        nonlocal corrupt, mute
        await fleet.load(v0)
        async with fleet.lent(v0) as urls, Proxy(urls[0], answer=answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url, urls[1]), slots=16)
            engine = SglangEngine(config, UNUSED, DEADLINES)
            first, second = engine.replicas
            try:
                with pytest.raises(EngineFailure, match=r"the servers disagree about v0@.*; given: .*checksums: "):
                    await engine.load(v0.version, v0.directory)
                assert engine.version is None
                corrupt, mute = False, True
                await engine.load(v0.version, v0.directory)
                assert (first.serving, second.serving) == (False, True)
                assert f"{CHECKSUMS} gave no answer" in first.reason
                mute = False
                await until(lambda: first.serving)
            finally:
                await engine.close()

    fleet.run(scenario())


def test_answers_that_never_arrive_are_asked_for_again(fleet: Fleet, v0: Version) -> None:
    """Fewer than K answers: the group waits until it has all."""
    answers: list[str] = []

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/generate":
            answers.append(path)
        return None if path == "/generate" and 2 <= len(answers) < 5 else message

    async def scenario() -> list[Completion]:
        await fleet.load(v0)
        async with Proxy(fleet.urls[0], answer=answer).listening() as url:
            engine = SglangEngine(EngineConfig(kind="sglang", urls=(url,), slots=8), UNUSED, DEADLINES)
            try:
                await engine.load(v0.version, v0.directory)
                return await sample(engine, K, max_new_tokens=24)
            finally:
                await engine.close()

    check_whole([fleet.run(scenario())], v0.version)
    assert len(answers) >= K + 3


def test_a_server_that_tells_the_last_tokens_version_alone_is_believed_while_it_is_fenced(
    fleet: Fleet, v0: Version
) -> None:
    """A real server whose spans are taken out; then one whose connection breaks while it has samples in flight.

    What it answers after that may come from other weights, and is sampled again.
    """
    notes: list[str] = []
    breaks: Iterator[bool] = iter(())

    def answer(path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        if path != "/generate":
            return message
        assert message["meta_info"]["weight_version"] == message["meta_info"].pop("weight_versions")[-1]["version"]
        return None if next(breaks, False) else message

    async def scenario() -> tuple[list[Completion], list[Completion]]:
        nonlocal breaks
        await fleet.load(v0)
        async with Proxy(fleet.urls[0], answer=answer).listening() as url:
            config = EngineConfig(kind="sglang", urls=(url,), slots=16)
            engine = SglangEngine(config, UNUSED, DEADLINES, note=lambda _server, what: notes.append(what))
            try:
                await engine.load(v0.version, v0.directory)
                fenced = await sample(engine, K, max_new_tokens=24)
                assert notes == []
                breaks = iter([True])
                return fenced, await sample(engine, K, **LONG)
            finally:
                await engine.close()

    check_whole(fleet.run(scenario()), v0.version)
    assert any("the server reports no spans" in note for note in notes)


def test_without_any_server_the_reason_is_told_at_the_deadline(fleet: Fleet, v0: Version) -> None:
    hasty = Deadlines(answer_s=6, load_s=30, start_s=30, stall_s=60, silent_s=2, probe_s=0.2)

    async def scenario() -> str:
        await fleet.load(v0)
        second = fleet.engine.replicas[1]
        config = EngineConfig(kind="sglang", urls=(second.http.url,), slots=8)
        engine = SglangEngine(config, UNUSED, hasty)
        try:
            await engine.load(v0.version, v0.directory)
            send(second, signal.SIGSTOP)
            try:
                with pytest.raises(EngineFailure) as failure:
                    await sample(engine, 2, **LONG)
            finally:
                send(second, signal.SIGCONT)
        finally:
            await engine.close()
        return str(failure.value)

    reason = fleet.run(scenario())
    assert "2 of 2 samples have no answer after 6 s" in reason
    assert "gave no answer; expected: one within 2 s" in reason
