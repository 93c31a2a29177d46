"""Where the trainer's time goes, with a clock worked by hand."""

from __future__ import annotations

from rolloutpipe_components.trainer.stopwatch import Stopwatch


class HandClock:
    """Returns the given server times, one a call."""

    def __init__(self, *times_ms: int) -> None:
        self._times = iter(times_ms)

    def now_ms(self) -> int:
        return next(self._times)


def test_touching_intervals_of_compute_are_joined() -> None:
    watch = Stopwatch(HandClock(100, 150, 151, 160, 300, 310))  # type: ignore[arg-type]
    for _ in range(3):
        with watch.busy():
            pass
    assert watch.busy_ms == [(100, 160), (300, 310)]


def test_a_wait_is_blocked_time_only_when_a_group_was_on_its_way() -> None:
    watch = Stopwatch(HandClock(0, 100, 107))  # type: ignore[arg-type]
    with watch.blocked(counts=False):
        pass
    with watch.blocked(counts=True):
        pass
    assert watch.blocked_ms == 7
    watch.reset()
    assert (watch.busy_ms, watch.blocked_ms) == ([], 0)


def test_an_interval_that_ends_in_an_error_counts() -> None:
    watch = Stopwatch(HandClock(5, 9))  # type: ignore[arg-type]
    try:
        with watch.busy():
            raise ValueError
    except ValueError:
        pass
    assert watch.busy_ms == [(5, 9)]
