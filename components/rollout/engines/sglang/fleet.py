"""All servers of a worker: one version on all of them, and a keeper for each that looks after it.

    load ──> hand-off to all that serve, at once
    keeper, one a server:   in service   ──> does its HTTP side answer, is it stalled, is its version right?
                            out          ──> start it again if it is ours and ended; hand it the present weights

A keeper never ends a server that runs: one that is busy, compiling or paused only loses its samples to the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from rolloutpipe_core.errors import BadInput, EngineFailure, RolloutPipeError

from .deadlines import Deadlines
from .failures import Disagreement, Ended, Refused, Unfit, Unreachable, WrongVersion
from .handoff import hand_over, prove
from .replica import Replica
from .terms import Terms
from .weights import check_files

log = logging.getLogger("rolloutpipe.sglang")

LONGEST_PAUSE_S = 10.0
"""Between two tries to bring a server back."""


class Fleet:
    """Used from one event loop, in the main thread when it starts servers."""

    def __init__(self, replicas: Sequence[Replica], deadlines: Deadlines, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever a server comes back."""
        self.replicas = list(replicas)
        self.terms: Terms | None = None  # what all should hold, and how; None after a load that failed
        self._deadlines = deadlines
        self._on_change = on_change
        self._back = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return "; ".join(map(str, self.replicas))

    async def load(self, terms: Terms) -> None:
        """Serve these weights from now on.

        Raises EngineFailure when no server does within `answer_s`, or at once when none ever will; BadInput for a
        server that was started in a way in which it cannot serve this run.
        """
        await asyncio.to_thread(check_files, terms.weights)
        # After a load that failed nobody has looked after them.
        ready = [replica for replica in self.replicas if self.terms is None or replica.serving or not replica.tried]
        self.terms = terms
        try:
            async with asyncio.timeout(self._deadlines.answer_s):
                await self._bring(ready, terms)
        except BaseException as error:
            self.terms = None
            if isinstance(error, TimeoutError):
                given, remedy = str(self), "see the servers' logs, or raise deadlines.engine_s"
                what = f"no server serves {terms.weights.version} after {self._deadlines.answer_s:g} s"
                raise EngineFailure(what, given, remedy=remedy) from None
            raise

    async def close(self) -> None:
        """End the keepers, then all servers that are ours."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _bring(self, ready: Sequence[Replica], terms: Terms) -> None:
        """Hand them the weights, and wait until one of all servers has them."""
        for replica in ready:
            replica.serving, replica.reason = False, f"{terms.weights.version} is being loaded"
            replica.fence += 1
        failures = await hand_over(ready, terms)
        self._tell()
        first = not self._keepers
        for unfit in failures:
            if first and isinstance(unfit, Unfit):
                raise BadInput(unfit.what, unfit.given, unfit.expected, unfit.remedy)
        final = (Refused, Ended) if first else Refused
        if len(failures) == len(self.replicas) and all(isinstance(failure, final) for failure in failures):
            raise EngineFailure(f"no server takes {terms.weights.version}", given=str(self))
        if terms.checksums is None and any(isinstance(failure, Disagreement) for failure in failures):
            raise EngineFailure(f"the servers disagree about {terms.weights.version}", given=str(self))
        if first:
            self._keepers = [asyncio.create_task(self._keep(replica), name=replica.name) for replica in self.replicas]
        while not any(replica.serving for replica in self.replicas):
            self._back.clear()
            await self._back.wait()

    def _tell(self) -> None:
        self._back.set()
        self._on_change()

    async def _keep(self, replica: Replica) -> None:
        """Look after one server until cancelled."""
        pause = self._deadlines.probe_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await replica.changed.wait()
            replica.changed.clear()
            try:
                if replica.serving:
                    await self._probe(replica)
                    pause = self._deadlines.probe_s
                elif self.terms is not None and not replica.changing.locked():
                    pause = await self._bring_back(replica, self.terms, pause)
            except RolloutPipeError as error:
                if isinstance(error, WrongVersion):
                    replica.held = None
                replica.give_up(str(error))
            except Exception:
                log.exception("looking after %s", replica.name)  # and look again

    async def _probe(self, replica: Replica) -> None:
        """Take a server out of service when it ended, is silent, is stalled, or holds other weights."""
        weights, fence = replica.held, replica.fence
        if replica.server is not None and not replica.server.running:
            replica.give_up(replica.server.state)
            return
        told = await replica.http.model_info(self._deadlines.silent_s)
        if weights is not None and replica.fence == fence and told.weight_version != weights.tag:
            raise WrongVersion(f"{replica.name} holds other weights", given=str(told.weight_version))
        await replica.feel_pulse()
        if replica.stalled_s > self._deadlines.stall_s:
            replica.give_up(f"its {replica.in_flight} samples have made no step for {replica.stalled_s:.0f} s")

    async def _bring_back(self, replica: Replica, terms: Terms, pause: float) -> float:
        """Try to have a server serve the present weights; the pause, in seconds, before the next look."""
        weights = terms.weights
        try:
            running = replica.server is None or replica.server.running
            if running and replica.held == weights and replica.client is not None:
                await prove(replica, weights)
            else:
                failures = await hand_over([replica], terms)
                if failures:
                    raise failures[0]
        except RolloutPipeError as failure:
            if isinstance(failure, WrongVersion | Refused):
                replica.held = None  # whatever it holds, it gets the weights again
            reason = str(failure)
            if isinstance(failure, Unreachable) and replica.server is not None and not replica.server.running:
                reason = replica.server.state
            replica.out(reason)
            replica.changed.clear()
            return min(LONGEST_PAUSE_S, 2 * pause)
        if self.terms is not terms:
            replica.out("newer weights came meanwhile")
        else:
            self._tell()
        return self._deadlines.probe_s
