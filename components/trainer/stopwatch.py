"""Where the trainer's time goes: intervals of compute, and time blocked by fetch or verification."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rolloutpipe_core.clock import ServerClock


class Stopwatch:
    """Collects one update's intervals, in server time (ms)."""

    def __init__(self, clock: ServerClock) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self.busy_ms: list[tuple[int, int]] = []
        self.blocked_ms = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Compute. Intervals that touch are joined."""
        start = self._clock.now_ms()
        try:
            yield
        finally:
            end = self._clock.now_ms()
            if self.busy_ms and start - self.busy_ms[-1][1] <= 1:
                start = self.busy_ms.pop()[0]
            self.busy_ms.append((start, end))

    @contextmanager
    def blocked(self, counts: bool) -> Iterator[None]:
        """A wait; it counts as blocked when only fetching and verifying kept the trainer from going on."""
        start = self._clock.now_ms()
        try:
            yield
        finally:
            if counts:
                self.blocked_ms += self._clock.now_ms() - start
