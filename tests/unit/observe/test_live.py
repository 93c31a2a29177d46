from io import StringIO

from rich.console import Console

from rolloutpipe_core.errors import StoreUnavailable
from rolloutpipe_core.observe.live import Follower, watch
from rolloutpipe_core.observe.timeline import Timelines


class GrowingLedger:
    """Tells `step` more events at each look, as a ledger that is being written."""

    def __init__(self, events, step):
        self._events, self._step, self._end = events, step, 0

    def events(self, after="0-0"):
        self._end = min(self._end + self._step, len(self._events))
        start = 0 if after == "0-0" else 1 + [event.id for event in self._events].index(after)
        return iter(self._events[start : self._end])

    @property
    def told(self):
        return self._end == len(self._events)


def test_a_follower_finds_each_published_round_once(undisturbed):
    follower = Follower(GrowingLedger(undisturbed.events, 30))
    found = [metrics.round for _ in range(6) for metrics in follower.follow()]
    assert found == [0, 1]
    assert follower.finished[1].round_period_s == 15.5


def test_without_a_terminal_each_round_is_one_line(undisturbed):
    ledger = GrowingLedger(undisturbed.events, 30)
    console = Console(file=StringIO(), width=140)
    timelines = watch(ledger, console, lambda: not ledger.told, poll_s=0)
    text = console.file.getvalue()
    assert text.splitlines()[0].startswith("round 0: reward 0.500")
    assert text.splitlines()[1].startswith("round 1: reward 0.500")
    assert "first" in text and "\x1b" not in text
    assert len(timelines.rounds()) == 2


def test_a_server_that_is_away_is_borne(undisturbed):
    class Failing(GrowingLedger):
        looks = 0

        def events(self, after="0-0"):
            self.looks += 1
            for place, event in enumerate(super().events(after)):
                if self.looks == 1 and place == 20:
                    raise StoreUnavailable("the store of the archive is away")
                yield event

    ledger = Failing(undisturbed.events, 30)
    console = Console(file=StringIO(), width=140)
    timelines = watch(ledger, console, lambda: not ledger.told, poll_s=0)
    assert timelines.rounds() == Timelines(undisturbed.events).rounds()
