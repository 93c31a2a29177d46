"""Who gets the next free slot: the waiting sample of the lowest priority, at the least loaded server."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from .replica import Replica
from .routing import choose


@dataclass(eq=False, slots=True)
class Family:
    """Samples that share a prompt. `together`: the prompt is long enough to be worth one server's prefix cache."""

    priority: int
    together: bool
    home: Replica | None = None


@dataclass(order=True, slots=True)
class _Waiting:
    priority: int
    ticket: int  # among equals: first come, first served
    family: Family = field(compare=False)
    place: asyncio.Future[Replica] = field(compare=False)


class Admission:
    """Slots of all replicas. Used from one event loop."""

    def __init__(self, replicas: Sequence[Replica], slots_each: int | None) -> None:
        """`slots_each`: samples one replica takes at once; None: any number, its own scheduler queues them."""
        self._replicas = replicas
        self._slots_each = slots_each
        self._queue: list[_Waiting] = []
        self._tickets = count()

    def spare(self) -> int | None:
        """Slots that would idle now; None: without a limit."""
        if self._slots_each is None:
            return None
        free = sum(max(0, self._slots_each - replica.in_flight) for replica in self._replicas if replica.serving)
        return max(0, free - sum(not waiting.place.done() for waiting in self._queue))

    async def enter(self, family: Family) -> Replica:
        """Wait for a slot, and hold it: `leave` must follow."""
        place: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, _Waiting(family.priority, next(self._tickets), family, place))
        self.dispatch()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(place.result())  # it was handed the slot just before
            raise

    def leave(self, replica: Replica) -> None:
        """Give a slot back."""
        replica.release()
        self.dispatch()

    def dispatch(self) -> None:
        """Hand out what is free. To be called whenever a replica comes back."""
        while self._queue:
            if self._queue[0].place.done():
                heapq.heappop(self._queue)  # cancelled
                continue
            family = self._queue[0].family
            loads = [replica.in_flight if replica.serving else None for replica in self._replicas]
            home = self._replicas.index(family.home) if family.together and family.home else None
            chosen = choose(loads, self._slots_each, home)
            if chosen is None:
                return
            waiting, replica = heapq.heappop(self._queue), self._replicas[chosen]
            family.home = replica
            replica.take_in()
            waiting.place.set_result(replica)
