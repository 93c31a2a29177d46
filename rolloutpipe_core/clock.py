"""Times that processes compare are the Redis server's; durations are monotonic."""

from __future__ import annotations

import time
from collections.abc import Callable


class ServerClock:
    """The server's time, extrapolated by the monotonic clock from one measurement.

    The measurement is off by at most half of its round trip.
    """

    def __init__(self, server_time_ms: Callable[[], int]) -> None:
        before = time.monotonic()
        server_ms = server_time_ms()
        after = time.monotonic()
        self._base_ms = server_ms - (before + after) / 2 * 1000

    def now_ms(self) -> int:
        """Server time, in ms since 1970."""
        return round(self._base_ms + time.monotonic() * 1000)
