"""How servers get other weights, in this order:

    close admission, drain -> pause -> load -> compare checksums -> confirm the version -> continue -> reopen

Admission is closed and drained by the caller. Every step has a deadline. A server that fails one, or that does not meet
the version's terms (terms.py), is out, with its reason; the others go on. The weights' files are checked before
(weights.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from rolloutpipe_core.errors import EngineFailure

from .completion import completion_of, request_body
from .failures import Disagreement
from .replica import Replica
from .terms import Checksums, Terms
from .weights import Weights

T = TypeVar("T")

ONE_TOKEN: dict[str, Any] = {"max_new_tokens": 1, "temperature": 1.0}
PROMPT = (0,)
"""Of the token that proves that a scheduler works: every vocabulary has this id."""


async def hand_over(replicas: Sequence[Replica], terms: Terms) -> list[EngineFailure]:
    """Bring these weights to servers that are out of service with nothing in flight; those that have them come back.

    Returns what went wrong with the others, which stay out. Raises BadInput when there is nothing to start one with.
    """
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.changing)
            replica.tried = True
        taken = await _each({replica: _take(replica, terms) for replica in replicas})
        sums = {replica: found for replica, found in taken.items() if not isinstance(found, EngineFailure)}
        odd = terms.disagreeing({replica.name: found for replica, found in sums.items()})
        opened = await _each({replica: _reopen(replica, terms.weights, odd.get(replica.name)) for replica in sums})
        for replica, failure in opened.items():
            if failure is None:
                terms.settled = True
                replica.held = terms.weights
                replica.back()
    return [outcome for outcome in {**taken, **opened}.values() if isinstance(outcome, EngineFailure)]


async def prove(replica: Replica, weights: Weights) -> None:
    """Show that a server which held these weights still does, and samples. Raises EngineFailure."""
    async with replica.changing:
        if replica.hung:
            await replica.http.abort_all(replica.deadlines.step_s)
            replica.hung = False
        await replica.confirm(weights)
        await _sample_one(replica, weights)
        replica.back()


async def _take(replica: Replica, terms: Terms) -> Checksums | None:
    """Pause and load, or start with these weights; the checksums of what it holds then, where it offers any."""
    deadlines = replica.deadlines
    starts = replica.server is not None and (replica.client is None or not replica.server.running)
    replica.held = None
    if starts:
        await replica.start(terms.weights)
    replica.info = await replica.http.server_info(deadlines.step_s)
    terms.check(replica.name, replica.info)
    if not starts:
        await replica.http.pause(deadlines.step_s)
        await replica.http.update_weights(terms.weights.directory, terms.weights.tag, deadlines.load_s)
        replica.hung = False
    return await replica.checksums()


async def _reopen(replica: Replica, weights: Weights, odd: str | None) -> None:
    """Confirm, continue, and see a token come."""
    if odd is not None:
        raise Disagreement(f"{replica.name} holds weights that differ from the others'", given=f"checksums: {odd}")
    await replica.confirm(weights)
    await replica.http.resume(replica.deadlines.step_s)
    await _sample_one(replica, weights)


async def _sample_one(replica: Replica, weights: Weights) -> None:
    """One token, sampled by these weights: an answer over HTTP alone does not show that the scheduler works."""
    try:
        async with asyncio.timeout(replica.deadlines.load_s):
            answer = await replica.ask(request_body(PROMPT, ONE_TOKEN, rid=f"prove-{id(replica)}-{replica.fence}"))
    except TimeoutError:
        expected = f"one within {replica.deadlines.load_s:g} s"
        raise EngineFailure(f"{replica.name} samples no token", expected=expected) from None
    completion_of(answer, weights.version, fenced=True)


async def _each(steps: Mapping[Replica, Coroutine[Any, Any, T]]) -> dict[Replica, T | EngineFailure]:
    """Run one step of each server at once; one that fails is out."""

    async def guarded(replica: Replica, step: Coroutine[Any, Any, T]) -> T | EngineFailure:
        try:
            return await step
        except EngineFailure as failure:
            replica.out(str(failure))
            return failure

    results = await asyncio.gather(*(guarded(replica, step) for replica, step in steps.items()))
    return dict(zip(steps, results, strict=True))
