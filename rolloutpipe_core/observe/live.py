"""The live display of a run, and its closing table.

ledger ──new events──> Timelines ──> finished rounds ─┐
Redis ──────────────────────────────> Status ─────────┴─> terminal: a panel; a file: one line a round
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.reader import BEGINNING, LedgerReader
from rolloutpipe_core.observe.measures import RoundMetrics, round_metrics
from rolloutpipe_core.observe.status import read_status
from rolloutpipe_core.observe.terminal import round_line, rounds_table, status_view
from rolloutpipe_core.observe.timeline import Timelines


class Follower:
    """Reads a growing ledger and knows the rounds that were published."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        self._last = BEGINNING
        self.timelines = Timelines()
        self.finished: list[RoundMetrics] = []

    def follow(self) -> list[RoundMetrics]:
        """Take what the ledger has gained; returns the rounds that were published meanwhile."""
        for event in self._reader.events(self._last):
            self.timelines.add(event)
            self._last = event.id
        known = {metrics.round for metrics in self.finished}
        lines = (line for line in self.timelines.rounds() if line.published_ms is not None and line.round not in known)
        new = [round_metrics(line, self.timelines.round(line.round - 1)) for line in lines]
        self.finished += new
        return new


def watch(
    reader: LedgerReader, console: Console, running: Callable[[], bool], poll_s: float = 0.25, table: bool = True
) -> Timelines:
    """Show the run while `running()`, then its table. Returns all that the ledger told.

    A server that is away, or an archive that can't be read, is shown and borne: the services' own deadlines decide
    what becomes of the run.
    """
    follower = Follower(reader)
    if console.is_terminal:
        _show_panel(reader, follower, console, running, poll_s)
    else:
        _print_lines(follower, console, running, poll_s)
    if table:
        console.print(rounds_table(follower.finished))
    return follower.timelines


def _show_panel(
    reader: LedgerReader, follower: Follower, console: Console, running: Callable[[], bool], poll_s: float
) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        go_on = True
        while go_on:
            go_on = running()  # asked before the last look, so that nothing of the end is missed
            try:
                follower.follow()
                rewards = [m.reward_mean for m in follower.finished if m.reward_mean is not None]
                live.update(status_view(read_status(reader), rewards), refresh=True)
            except RolloutPipeError as error:
                live.update(Text(str(error), "yellow"), refresh=True)
            if go_on:
                time.sleep(poll_s)


def _print_lines(follower: Follower, console: Console, running: Callable[[], bool], poll_s: float) -> None:
    go_on = True
    while go_on:
        go_on = running()
        with suppress(RolloutPipeError):
            for metrics in follower.follow():
                console.print(round_line(metrics), highlight=False, soft_wrap=True)
        if go_on:
            time.sleep(poll_s)
