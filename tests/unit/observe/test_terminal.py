from io import StringIO

from rich.console import Console

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.status import build_status
from rolloutpipe_core.observe.terminal import round_line, round_view, rounds_table, sparkline, status_view
from rolloutpipe_core.observe.timeline import Timelines


def shown(renderable, width=120):
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()


def test_sparkline():
    assert sparkline([0, 0.5, 1]) == "▁▅█"
    assert sparkline([0, 0.5, 1], width=2) == "▅█"


def test_a_rounds_lanes(undisturbed):
    """From the rollout's start at 1 to the publishing at 15.5: 29 columns behind the gutter, two a second."""
    timelines = Timelines(undisturbed.events)
    lines = shown(round_view(timelines.round(0), all_round_metrics(timelines.rounds())[0], width=38))
    lines = [line.rstrip() for line in lines.splitlines()]
    assert lines[2] == " trainer ----------▆▆▆▆▆▆--▆▆▆▆▆▆▆▆"
    assert lines[3] == "      g0 ██████▓▓··▆▆▆▆▆▆"
    assert lines[4] == "      g1 ████████████▓▓····▆▆▆▆▆▆▆▆"
    assert lines[5] == "      g2       ██▓▓▆▆▆▆▆▆"
    assert lines[6] == "      g3         ████████▓▓▆▆▆▆▆▆▆▆"


def test_an_ended_group_is_marked(history):
    history.open(0, 0)
    history.group(0, "r000000-g0000", GroupState.ADMITTED)
    history.group(5, "r000000-g0000", GroupState.FAILED, reason="engine")
    timelines = Timelines(history.events)
    text = shown(round_view(timelines.round(0), all_round_metrics(timelines.rounds())[0]))
    assert "×" in text


def test_the_table_has_a_row_a_round_and_names_what_is_unknown(undisturbed):
    undisturbed.open(31, 2)
    text = shown(rounds_table(all_round_metrics(Timelines(undisturbed.events).rounds())))
    rows = text.splitlines()[-3:]
    assert rows[0].split() == [
        "0",
        "v0",
        "0.500",
        "13.0",
        "s",
        "15.5",
        "s",
        "38",
        "%",
        "46",
        "%",
        "5.00",
        "s",
        "4",
        "2",
        "20",
        "0.0025",
    ]
    assert rows[2].split()[:4] == ["2", "v2", "-", "-"]


def test_a_line_a_round(undisturbed):
    metrics = all_round_metrics(Timelines(undisturbed.events).rounds())[1]
    assert round_line(metrics) == (
        "round 1: reward 0.500, rollout-to-train-end 13.0 s, period 15.5 s, "
        "waiting 38 % (Eq. 4) 46 % (5.1), first dispatch 5.00 s"
    )


def test_status_shows_who_waits_for_what():
    service = {
        "role": "trainer",
        "name": "trainer-x",
        "host": "box",
        "pid": "7",
        "doing": "round 3",
        "waiting_for": "Redis [away]: a group of round 3",
        "waiting_since_ms": "98500",
        "deadline_ms": "99000",
        "seen_ms": "90000",
    }
    run = {"state": "stopped", "stop_reason": "12 of 16 groups ended unused", "version": "3", "version_sha": "ab" * 32}
    status = build_status("walk", run, {}, [], [service], fifo_depth=5, pending=2, now_ms=100_000)
    text = shown(status_view(status, [0.4, 0.5]), width=160)
    for words in (
        "Redis [away]: a group of round 3",
        "1.50 s",
        "-1.00 s",
        "(stale)",
        "12 of 16 groups",
        "5 not acknowledged",
        "no live service",
    ):
        assert words in text
