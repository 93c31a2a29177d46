"""The server's time, extrapolated: the clock is set by hand."""

from rolloutpipe_core import clock as clock_module
from rolloutpipe_core.clock import ServerClock


class Clock:
    """A monotonic clock, in seconds, and no other; asking the server takes `trip_s`."""

    def __init__(self, monotonic_s: float, trip_s: float) -> None:
        self.monotonic_s, self.trip_s = monotonic_s, trip_s

    def monotonic(self) -> float:
        return self.monotonic_s

    def ask(self, server_ms: int) -> int:
        """The server reads its clock half way through the round trip."""
        self.monotonic_s += self.trip_s
        return server_ms


def test_the_measurement_holds_for_the_middle_of_the_round_trip(monkeypatch):
    """Asked at 100 s, answered at 100.2 s with 5,000,000 ms: that was at 100.1 s, so at 100.2 s it is 5,000,100 ms."""
    own = Clock(monotonic_s=100.0, trip_s=0.2)
    monkeypatch.setattr(clock_module, "time", own)
    clock = ServerClock(lambda: own.ask(5_000_000))
    assert clock.now_ms() == 5_000_100
    own.monotonic_s += 2.5
    assert clock.now_ms() == 5_002_600
