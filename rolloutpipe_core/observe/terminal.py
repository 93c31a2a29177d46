"""Status, rounds and one round's timeline, drawn for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rolloutpipe_core.domain import ENDED_STATES, GroupState
from rolloutpipe_core.observe.measures import RoundMetrics
from rolloutpipe_core.observe.status import Housekeeping, ServiceStatus, Status
from rolloutpipe_core.observe.timeline import GroupTimeline, Interval, RoundTimeline
from rolloutpipe_core.observe.words import fixed, number, percent, seconds

# A letterform and a colour a state, so that the picture also reads without colours.
CELLS = {
    GroupState.DEFERRED: (" ", ""),
    GroupState.ADMITTED: ("█", "blue"),
    GroupState.SERVING_COMPLETE: ("▓", "magenta"),
    GroupState.MATERIALIZED: ("▓", "magenta"),
    GroupState.QUEUED: ("·", "bright_black"),
    GroupState.CLAIMED: ("▆", "yellow"),
}
BARS = "▁▂▃▄▅▆▇█"
GUTTER = 9


def rounds_table(rounds: Sequence[RoundMetrics]) -> Table:
    """The closing table of a run: one row a round."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    titles = (
        "round",
        "version",
        "reward",
        "rollout to\ntrain end",
        "round\nperiod",
        "waiting\nEq. 4",
        "waiting\nsec. 5.1",
        "first\ndispatch",
        "groups",
        "updates",
        "mean\nlength",
        "mismatch\nKL",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for m in rounds:
        ended = f" -{m.groups_ended}" if m.groups_ended else ""
        table.add_row(
            str(m.round),
            "-" if m.weight_version is None else f"v{m.weight_version}",
            fixed(m.reward_mean),
            seconds(m.rollout_to_train_end_s),
            seconds(m.round_period_s),
            percent(m.waiting_ratio_eq4),
            percent(m.waiting_ratio_s51),
            seconds(m.first_dispatch_s),
            f"{m.groups}{ended}",
            str(m.updates),
            number(m.response_length_mean),
            number(m.mismatch_kl, 2),
        )
    return table


def round_line(m: RoundMetrics) -> str:
    """One plain line about a finished round, for logs."""
    return (
        f"round {m.round}: reward {fixed(m.reward_mean)}, rollout-to-train-end {seconds(m.rollout_to_train_end_s)}, "
        f"period {seconds(m.round_period_s)}, waiting {percent(m.waiting_ratio_eq4)} (Eq. 4) "
        f"{percent(m.waiting_ratio_s51)} (5.1), first dispatch {seconds(m.first_dispatch_s)}"
    )


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last `width` values of [0, 1] as bars: `sparkline([0, 0.5, 1]) == "▁▅█"`."""
    return "".join(BARS[min(int(max(value, 0.0) * len(BARS)), len(BARS) - 1)] for value in values[-width:])


def status_view(status: Status, rewards: Sequence[float] = ()) -> RenderableType:
    """The status as a panel; `rewards`: of the finished rounds, for a sparkline."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bright_black")
    facts.add_column()
    version = "-" if status.version is None else f"v{status.version} @ {status.version_sha[:12]}"
    facts.add_row("weights", version)
    if status.round is not None:
        again = f", generation {status.generation}" if status.generation > 1 else ""
        facts.add_row("round", f"{status.round} {status.round_state} ({status.schedule}{again})")
    facts.add_row("groups", _group_counts(status))
    facts.add_row("FIFO", f"{status.fifo_depth} not acknowledged, {status.pending} of them read by the trainer")
    facts.add_row("updates", f"{status.updates_sealed} sealed")
    facts.add_row("reward", _reward_words(status, rewards))
    if status.housekeeping is not None:
        facts.add_row("housekeeping", _housekeeping_words(status.housekeeping))
    if status.head_of_line is not None:
        head = status.head_of_line
        words = f"{head.group} is {head.state} at {head.worker or 'nobody'} since {seconds(head.since_s)}"
        facts.add_row("head of line", Text(words, style="yellow"))
    for role in status.missing_roles:
        facts.add_row(role, Text("no live service", style="yellow"))
    parts: list[RenderableType] = [facts, Text(), _services_table(status.services)]
    if status.stop_reason:
        parts.insert(0, Text(f"stopped: {status.stop_reason}", style="bold red"))
    return Panel(Group(*parts), title=f"[b]{status.run}[/b] {status.state}", title_align="left", border_style="blue")


def _housekeeping_words(kept: Housekeeping) -> Text:
    if kept.error:
        return Text(f"failed {seconds(kept.last_s)} ago, is tried again: {kept.error}", style="yellow")
    deleted = f"{kept.deleted_objects} objects deleted so far, {kept.deleted_bytes / 1e6:.1f} MB"
    return Text(f"{seconds(kept.last_s)} ago; {deleted}")


def round_view(line: RoundTimeline, metrics: RoundMetrics, width: int = 100) -> Text:
    """One round's timeline: the trainer's lane, then one lane a group, `width` columns wide."""
    start = line.rollout_start_ms or line.opened_ms or 0
    end = max(line.end_ms() or start, start + 1)
    columns = max(width - GUTTER, 20)
    version = "?" if line.version is None else line.version
    text = Text(no_wrap=True, overflow="crop")
    text.append(f"round {line.round}, {line.schedule}, sampled by v{version}, {line.state.value}\n", "bold")
    text.append(f"{round_line(metrics).partition(': ')[2]}\n")
    text.append(f"{'trainer':>{GUTTER - 1}} ", "bold")
    text.append_text(_trainer_lane(line, start, end, columns))
    for index in sorted(line.groups):
        text.append(f"\n{f'g{index}':>{GUTTER - 1}} ", "bright_black")
        text.append_text(_group_lane(line, line.groups[index], start, end, columns))
    right = seconds((end - start) / 1000)
    text.append(f"\n{'':{GUTTER}}0 s{right:>{columns - 3}}\n", "bright_black")
    key = (("█", "blue", "decoding"), ("▓", "magenta", "scoring"), ("·", "bright_black", "in the FIFO"))
    for cell, style, words in (*key, ("▆", "yellow", "in an update"), ("-", "red", "trainer waits")):
        text.append(f"{cell} ", style).append(f"{words}   ", "bright_black")
    return text


def _trainer_lane(line: RoundTimeline, start: int, end: int, columns: int) -> Text:
    cells = [(" ", "")] * columns
    _paint(cells, (start, line.trained_ms or end), start, end, ("-", "red"))
    for interval in line.busy():
        _paint(cells, interval, start, end, ("▆", "yellow"))
    return _text(cells)


def _group_lane(line: RoundTimeline, group: GroupTimeline, start: int, end: int, columns: int) -> Text:
    cells = [(" ", "")] * columns
    for stay in line.stays(group, end):
        if stay.state in CELLS and stay.end > stay.start:
            _paint(cells, (stay.start, stay.end), start, end, CELLS[stay.state])
    if group.state in ENDED_STATES:
        at = _column(group.moves[-1].at_ms, start, end, columns)
        cells[min(at, columns - 1)] = ("×", "bold red")
    return _text(cells)


def _paint(cells: list[tuple[str, str]], span: Interval, start: int, end: int, cell: tuple[str, str]) -> None:
    """Fill the columns of an interval; what happened shows, however short."""
    first = min(_column(span[0], start, end, len(cells)), len(cells) - 1)
    last = max(_column(span[1], start, end, len(cells)), first + 1)
    cells[first:last] = [cell] * (min(last, len(cells)) - first)


def _column(at: int, start: int, end: int, columns: int) -> int:
    return round((min(max(at, start), end) - start) / (end - start) * columns)


def _text(cells: Sequence[tuple[str, str]]) -> Text:
    return Text.assemble(*cells)


def _group_counts(status: Status) -> Text:
    words = Text()
    for state, count in status.groups.items():
        if count:
            words.append(f"{count} ", "bold").append(f"{state}  ", CELLS.get(GroupState(state), ("", "green"))[1])
    return words


def _reward_words(status: Status, rewards: Sequence[float]) -> Text:
    words = Text()
    if rewards:
        words.append(sparkline(rewards), "green").append(f"  {' '.join(map(fixed, rewards[-3:]))}  ")
    return words.append(f"this round so far {fixed(status.reward_mean)}", "bright_black")


def _services_table(services: Sequence[ServiceStatus]) -> Table:
    table = Table(box=None, header_style="bright_black", pad_edge=False)
    for title in ("service", "does", "waits for", "since", "gives up in", "seen"):
        table.add_column(title)
    for service in services:
        late = service.deadline_in_s is not None and service.deadline_in_s < 0
        deadline = Text(seconds(service.deadline_in_s), "red" if late else "")
        seen = Text(f"{seconds(service.seen_s)} ago", "bold red" if service.stale else "bright_black")
        if service.stale:
            seen.append(" (stale)")
        name = f"{service.name} ({service.host}, pid {service.pid})"
        # As Text: what a service says may hold brackets, which rich takes for markup in a str.
        doing, waiting_for = Text(service.doing), Text(service.waiting_for or "-")
        table.add_row(name, doing, waiting_for, seconds(service.waiting_s), deadline, seen)
    return table
