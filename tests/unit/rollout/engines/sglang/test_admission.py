"""Slots in the order of priorities, with replicas that talk to nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from rolloutpipe_components.rollout.engines.sglang.admission import Admission, Family
from rolloutpipe_components.rollout.engines.sglang.deadlines import Deadlines
from rolloutpipe_components.rollout.engines.sglang.replica import Replica

DEADLINES = Deadlines(answer_s=60, load_s=30, start_s=60, stall_s=60)


def replica(name: str) -> Replica:
    made = Replica(name, DEADLINES, lambda _what, _deadline_s: nullcontext(), lambda _server, _what: None, None, None)
    made.serving = True
    return made


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), timeout=60))


async def turns() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_lower_priority_gets_the_next_slot() -> None:
    async def scenario() -> None:
        server, order = replica("a"), list[int]()
        admission = Admission([server], 1)

        async def sample(priority: int) -> None:
            await admission.enter(Family(priority, together=False))
            order.append(priority)

        await admission.enter(Family(9, together=False))  # takes the only slot
        waiting = [asyncio.create_task(sample(priority)) for priority in (5, 2, 7)]
        await turns()
        assert order == []
        for _ in waiting:
            admission.leave(server)
            await turns()
        assert order == [2, 5, 7]
        assert server.in_flight == 1

    run(scenario)


def test_spare_slots_are_free_ones_less_who_waits() -> None:
    async def scenario() -> None:
        servers = [replica("a"), replica("b")]
        admission = Admission(servers, 2)
        assert admission.spare() == 4
        await admission.enter(Family(0, together=False))
        assert admission.spare() == 3
        servers[1].serving = False
        assert admission.spare() == 1
        await admission.enter(Family(0, together=False))
        waiting = asyncio.create_task(admission.enter(Family(0, together=False)))
        await turns()
        assert admission.spare() == 0
        servers[1].serving = True
        admission.dispatch()  # as when it comes back
        assert await waiting is servers[1]
        assert admission.spare() == 1
        assert Admission(servers, None).spare() is None

    run(scenario)


def test_a_group_with_a_long_prompt_stays_at_one_server_while_it_has_slots() -> None:
    async def scenario() -> None:
        servers = [replica("a"), replica("b")]
        admission = Admission(servers, 3)
        together, apart = Family(0, together=True), Family(1, together=False)
        assert [await admission.enter(together) for _ in range(4)] == [servers[0]] * 3 + [servers[1]]
        assert [await admission.enter(apart) for _ in range(2)] == [servers[1]] * 2

    run(scenario)


def test_short_prompts_are_spread() -> None:
    async def scenario() -> None:
        servers = [replica("a"), replica("b")]
        family = Family(0, together=False)
        admission = Admission(servers, None)
        assert [await admission.enter(family) for _ in range(4)] == servers * 2

    run(scenario)


def test_who_stops_waiting_takes_no_slot() -> None:
    async def scenario() -> None:
        server = replica("a")
        admission = Admission([server], 1)
        await admission.enter(Family(0, together=False))
        gone = asyncio.create_task(admission.enter(Family(1, together=False)))
        handed = asyncio.create_task(admission.enter(Family(2, together=False)))
        await turns()
        gone.cancel()
        await turns()
        admission.leave(server)
        handed.cancel()  # in the moment in which it was handed the slot
        await asyncio.gather(gone, handed, return_exceptions=True)
        assert server.in_flight == 0
        assert admission.spare() == 1

    run(scenario)
