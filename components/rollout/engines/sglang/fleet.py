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

from rolloutpipe_core.errors import EngineFailure, RolloutPipeError

from .deadlines import Deadlines
from .failures import Refused, Unreachable, WrongVersion
from .handoff import hand_over, prove
from .replica import Replica
from .weights import Weights, check_files

log = logging.getLogger("rolloutpipe.sglang")

LONGEST_PAUSE_S = 10.0
"""Between two tries to bring a server back."""


class Fleet:
    """Used from one event loop, in the main thread when it starts servers."""

    def __init__(self, replicas: Sequence[Replica], deadlines: Deadlines, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever a server comes back."""
        self.replicas = list(replicas)
        self.weights: Weights | None = None  # what all should hold
        self._deadlines = deadlines
        self._on_change = on_change
        self._back = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return "; ".join(map(str, self.replicas))

    async def load(self, weights: Weights) -> None:
        """Serve these weights from now on. Raises EngineFailure when no server does within `answer_s`."""
        await asyncio.to_thread(check_files, weights)
        self.weights = weights
        ready = [replica for replica in self.replicas if replica.serving or not replica.tried]
        for replica in ready:
            replica.serving, replica.reason = False, f"{weights.version} is being loaded"
            replica.fence += 1
        failures = await hand_over(ready, weights)
        self._tell()
        if len(failures) == len(self.replicas) and all(isinstance(failure, Refused) for failure in failures):
            self.weights = None
            raise EngineFailure(f"no server takes {weights.version}", given=str(self))
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(replica), name=replica.name) for replica in self.replicas]
        await self._until_served(weights)

    async def close(self) -> None:
        """End the keepers, then all servers that are ours."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _until_served(self, weights: Weights) -> None:
        try:
            async with asyncio.timeout(self._deadlines.answer_s):
                while not any(replica.serving for replica in self.replicas):
                    self._back.clear()
                    await self._back.wait()
        except TimeoutError:
            self.weights = None
            raise EngineFailure(f"no server serves {weights.version}", given=str(self)) from None

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
                elif self.weights is not None and not replica.changing.locked():
                    pause = await self._bring_back(replica, self.weights, pause)
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
            replica.give_up(replica.server.ended)
            return
        told = await replica.http.model_info(self._deadlines.silent_s)
        if weights is not None and replica.fence == fence and told.weight_version != weights.tag:
            raise WrongVersion(f"{replica.name} holds other weights", given=str(told.weight_version))
        await replica.feel_pulse()
        if replica.stalled_s > self._deadlines.stall_s:
            replica.give_up(f"its {replica.in_flight} samples have made no step for {replica.stalled_s:.0f} s")

    async def _bring_back(self, replica: Replica, weights: Weights, pause: float) -> float:
        """Try to have a server serve the present weights; the pause, in seconds, before the next look."""
        try:
            running = replica.server is None or replica.server.running
            if running and replica.held == weights and replica.client is not None:
                await prove(replica, weights)
            else:
                failures = await hand_over([replica], weights)
                if failures:
                    raise failures[0]
        except EngineFailure as failure:
            if isinstance(failure, WrongVersion | Refused):
                replica.held = None  # whatever it holds, it gets the weights again
            reason = str(failure)
            if isinstance(failure, Unreachable) and replica.server is not None and not replica.server.running:
                reason = replica.server.ended
            replica.out(reason)
            replica.changed.clear()
            return min(LONGEST_PAUSE_S, 2 * pause)
        if self.weights is not weights:
            replica.out("newer weights came meanwhile")
        else:
            self._tell()
        return self._deadlines.probe_s
