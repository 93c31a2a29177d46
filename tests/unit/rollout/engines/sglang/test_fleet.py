"""Servers that do not come up: what is told, and when. Real processes, none of them SGLang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.fleet import Fleet
from rolloutpipe_components.rollout.engines.sglang.process import LaunchedServer, LaunchPlan
from rolloutpipe_components.rollout.engines.sglang.replica import Replica
from rolloutpipe_components.rollout.engines.sglang.terms import Terms
from rolloutpipe_components.rollout.engines.sglang.weights import Weights

from rolloutpipe_core.config.models import LaunchConfig
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import BadInput, EngineFailure
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory

MakeFleet = Callable[[str, float], Fleet]


@pytest.fixture
def terms(tmp_path: Path) -> Terms:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    sha = sha256_hex(describe_directory(folder).to_bytes())
    return Terms(Weights(WeightVersion(0, sha), folder), by_priority=False, positions=None)


@pytest.fixture
def make_fleet(tmp_path: Path) -> MakeFleet:
    """`make_fleet(script, answer_s)`: two servers that run a shell script instead of SGLang's interpreter."""
    python = tmp_path / "python"

    def make(script: str, answer_s: float) -> Fleet:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        plan = LaunchPlan(LaunchConfig(python=str(python)), (), tmp_path)
        deadlines = Deadlines(answer_s=answer_s, load_s=30, start_s=300, stall_s=60, stop_s=1)
        servers = [LaunchedServer(plan, name) for name in ("a", "b")]
        return Fleet([replica(server, deadlines) for server in servers], deadlines, lambda: None)

    return make


def replica(server: LaunchedServer, deadlines: Deadlines) -> Replica:
    return Replica(
        server.name, deadlines, lambda _what, _deadline_s: nullcontext(), lambda _server, _what: None, None, server
    )


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_servers_that_all_end_at_their_start_fail_the_first_load_with_the_reason(
    make_fleet: MakeFleet, terms: Terms
) -> None:
    """At once: the deadline is longer than this test may take."""
    fleet = make_fleet("echo 'error: unrecognized arguments: --tp-sise' >&2; exit 2", 300)

    async def scenario() -> None:
        with pytest.raises(EngineFailure) as failure:
            await fleet.load(terms)
        await fleet.close()
        for name in ("a", "b"):
            assert f"out: {name} ended at its start; given: it exited with 2; " in str(failure.value)
            assert f"{name}.log ends: error: unrecognized arguments: --tp-sise" in str(failure.value)
        assert fleet.terms is None

    run(scenario())


def test_a_load_ends_at_its_deadline_also_while_servers_start(make_fleet: MakeFleet, terms: Terms) -> None:
    fleet = make_fleet("echo 'compiling' >&2; exec sleep 300", 1)

    async def scenario() -> None:
        with pytest.raises(
            EngineFailure, match=r"no server serves v0@\w+ after 1 s; .* out: v0@\w+ is being loaded: it starts; "
        ):
            await fleet.load(terms)
        assert fleet.terms is None
        await fleet.close()
        assert not any(each.server and each.server.running for each in fleet.replicas)

    run(scenario())


def test_a_missing_interpreter_ends_the_first_load_as_what_the_user_has_to_mend(
    make_fleet: MakeFleet, terms: Terms, tmp_path: Path
) -> None:
    fleet = make_fleet("exit 0", 300)
    (tmp_path / "python").unlink()

    async def scenario() -> None:
        with pytest.raises(BadInput, match="the interpreter of SGLang's environment is missing"):
            await fleet.load(terms)
        await fleet.close()

    run(scenario())


def test_an_interpreter_that_vanishes_later_keeps_its_server_out_with_growing_pauses(
    make_fleet: MakeFleet, terms: Terms, tmp_path: Path
) -> None:
    fleet = make_fleet("exit 0", 300)
    (tmp_path / "python").unlink()
    first = fleet.replicas[0]

    async def scenario() -> None:
        fleet.terms = terms
        assert await fleet._bring_back(first, terms, 2.0) == 4.0
        assert await fleet._bring_back(first, terms, 8.0) == 10.0
        assert not first.changed.is_set(), "the next look waits for the pause"
        assert "the interpreter of SGLang's environment is missing" in first.reason
        await fleet.close()

    run(scenario())
