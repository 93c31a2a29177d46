"""How servers get other weights, in this order:

    close admission, drain -> pause -> load -> compare checksums -> confirm the version -> continue -> reopen

Admission is closed and drained by the caller. Every step has a deadline. A server that fails one is out, with its
reason; the others go on. The weights' files are checked before (weights.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rolloutpipe_core.errors import EngineFailure

from .completion import completion_of, request_body
from .failures import WrongVersion
from .replica import Replica
from .weights import Weights

log = logging.getLogger("rolloutpipe.sglang")

ONE_TOKEN: dict[str, Any] = {"max_new_tokens": 1, "temperature": 1.0}
PROMPT = (0,)
"""Of the token that proves that a scheduler works: every vocabulary has this id."""

Checksums = tuple[str, ...]


async def hand_over(replicas: Sequence[Replica], weights: Weights) -> list[EngineFailure]:
    """Bring these weights to servers that are out of service with nothing in flight; those that have them come back.

    Returns what went wrong with the others, which stay out.
    """
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.changing)
            replica.tried = True
        taken = await _each({replica: _take(replica, weights) for replica in replicas})
        loaded = [replica for replica, failure in taken.items() if failure is None]
        sums = dict(zip(loaded, await asyncio.gather(*map(_checksums, loaded)), strict=True))
        opened = await _each({replica: _reopen(replica, weights, _odd(replica, sums)) for replica in loaded})
        for replica, failure in opened.items():
            if failure is None:
                replica.held = weights
                replica.back()
    return [failure for failure in {**taken, **opened}.values() if failure is not None]


async def prove(replica: Replica, weights: Weights) -> None:
    """Show that a server which held these weights still does, and samples. Raises EngineFailure."""
    async with replica.changing:
        if replica.hung:
            await replica.http.abort_all(replica.deadlines.step_s)
            replica.hung = False
        await replica.confirm(weights)
        await _sample_one(replica, weights)
        replica.back()


def odd_ones(checksums: Mapping[str, Checksums]) -> dict[str, str]:
    """Why which servers cannot be trusted, by name: their checksums are not those of more than half of them.

    Where no majority agrees, nobody can be trusted.
    """
    counts = Counter(checksums.values())
    common, times = counts.most_common(1)[0] if counts else ((), 0)
    if len(counts) > 1 and 2 * times <= len(checksums):
        common = ()
    told = "; ".join(f"{name} {' '.join(sums)[:80]}" for name, sums in sorted(checksums.items()))
    return {name: told for name, sums in checksums.items() if sums != common}


async def _take(replica: Replica, weights: Weights) -> None:
    """Pause and load, or start with these weights."""
    deadlines = replica.deadlines
    if replica.server is not None and (replica.client is None or not replica.server.running):
        await replica.start(weights)
    else:
        replica.held = None
        await replica.http.pause(deadlines.step_s)
        await replica.http.update_weights(weights.directory, weights.tag, deadlines.load_s)
        replica.hung = False
    replica.info = await replica.http.server_info(deadlines.step_s)


async def _reopen(replica: Replica, weights: Weights, odd: str | None) -> None:
    """Confirm, continue, and see a token come."""
    if odd is not None:
        raise WrongVersion(f"{replica.name} holds weights that differ from the others'", given=f"checksums: {odd}")
    await replica.confirm(weights)
    await replica.http.resume(replica.deadlines.step_s)
    await _sample_one(replica, weights)


async def _checksums(replica: Replica) -> Checksums | None:
    try:
        return await replica.checksums()
    except EngineFailure as error:
        log.warning("%s: no checksums: %s", replica.name, error)
        return ()  # equal to nobody's


def _odd(replica: Replica, sums: Mapping[Replica, Checksums | None]) -> str | None:
    offered = {each.name: found for each, found in sums.items() if found is not None}
    return odd_ones(offered).get(replica.name)


async def _sample_one(replica: Replica, weights: Weights) -> None:
    """One token, sampled by these weights: an answer over HTTP alone does not show that the scheduler works."""
    try:
        async with asyncio.timeout(replica.deadlines.load_s):
            answer = await replica.ask(request_body(PROMPT, ONE_TOKEN, rid=f"prove-{id(replica)}-{replica.fence}"))
    except TimeoutError:
        expected = f"one within {replica.deadlines.load_s:g} s"
        raise EngineFailure(f"{replica.name} samples no token", expected=expected) from None
    completion_of(answer, weights.version, fenced=True)


async def _each(steps: Mapping[Replica, Coroutine[Any, Any, None]]) -> dict[Replica, EngineFailure | None]:
    """Run one step of each server at once; one that fails is out."""

    async def guarded(replica: Replica, step: Coroutine[Any, Any, None]) -> EngineFailure | None:
        try:
            await step
        except EngineFailure as failure:
            replica.out(str(failure))
            return failure
        return None

    results = await asyncio.gather(*(guarded(replica, step) for replica, step in steps.items()))
    return dict(zip(steps, results, strict=True))
