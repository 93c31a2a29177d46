"""One round's picture: the trainer's lane above one lane a group, on a common time axis."""

from __future__ import annotations

from collections.abc import Iterator

from rolloutpipe_core.domain import ENDED_STATES, GroupState
from rolloutpipe_core.observe.measures import RoundMetrics
from rolloutpipe_core.observe.svg import Scale, element, figure, label, tip
from rolloutpipe_core.observe.timeline import GroupTimeline, RoundTimeline, clip
from rolloutpipe_core.observe.words import group_words, percent, seconds

WIDTH, LEFT, RIGHT = 1000, 66, 20
HEAD, TRAINER, FOOT = 62, 24, 62
KIND = {
    GroupState.ADMITTED: "decode",
    GroupState.SERVING_COMPLETE: "score",
    GroupState.MATERIALIZED: "score",
    GroupState.QUEUED: "ready",
}
LEGEND = (
    ("decode", "decoding"),
    ("score", "scoring and upload"),
    ("ready", "ready in the FIFO"),
    ("train", "in an update"),
    ("hatch", "trainer waits"),
)


def timeline_svg(line: RoundTimeline, metrics: RoundMetrics, run: str, standalone: bool = True) -> str:
    """The round as an SVG: a file of its own (`standalone`), or a part of the report."""
    groups = [line.groups[index] for index in sorted(line.groups)]
    pitch = 17 if len(groups) <= 24 else 11 if len(groups) <= 64 else 7
    top = HEAD + TRAINER + 14
    bottom = top + pitch * len(groups)
    zero = line.rollout_start_ms or line.opened_ms or 0
    end = max(line.end_ms() or zero, zero + 1)
    x = Scale(min(line.opened_ms or zero, zero), end, LEFT, WIDTH - RIGHT)
    lanes = [_lane(line, group, x, top + pitch * place, pitch, end) for place, group in enumerate(groups)]
    parts = [
        *_head(line, metrics, run),
        *_grid(x, zero, top - TRAINER - 14, bottom),
        *_trainer(line, x, end),
        *lanes,
        *_marks(line, x, bottom),
        *_legend(bottom + 46),
    ]
    return figure(WIDTH, bottom + FOOT, *parts, name=f"timeline of round {line.round}", standalone=standalone)


def _head(line: RoundTimeline, metrics: RoundMetrics, run: str) -> Iterator[str]:
    version = "?" if line.version is None else line.version
    yield label(LEFT, 24, f"{run}, round {line.round}: {line.schedule}, sampled by v{version}", "title")
    facts = [
        ("rollout-to-train-end {}", metrics.rollout_to_train_end_s, seconds),
        ("first dispatch {}", metrics.first_dispatch_s, seconds),
        ("trainer waits {} (Eq. 4)", metrics.waiting_ratio_eq4, percent),
        ("{} (section 5.1)", metrics.waiting_ratio_s51, percent),
        ("period {}", metrics.round_period_s, seconds),
    ]
    known = [text.format(words(value)) for text, value, words in facts if value is not None]
    yield label(LEFT, 43, " · ".join(known) or f"{line.state}, nothing measured yet")


def _grid(x: Scale, zero: int, top: int, bottom: int) -> Iterator[str]:
    in_seconds = Scale((x.low - zero) / 1000, (x.high - zero) / 1000, x.start, x.end)
    for tick in in_seconds.ticks(10):
        at = in_seconds(tick)
        yield element("line", x1=at, x2=at, y1=top, y2=bottom, class_="grid")
        yield label(at, bottom + 14, f"{tick:g} s", "middle")


def _trainer(line: RoundTimeline, x: Scale, end: int) -> Iterator[str]:
    yield label(LEFT - 8, HEAD + 16, "trainer", "strong right")
    if line.rollout_start_ms is None:
        return
    until = line.trained_ms or end
    yield _bar(x, line.rollout_start_ms, until, HEAD, TRAINER, "hatch", tip("the trainer waits"))
    for update in sorted(line.updates.values(), key=lambda update: update.update):
        kind = "train2" if update.update % 2 else "train"
        words = f"update {update.update}: {update.groups} groups, {update.tokens} tokens"
        words += ", replayed" if update.replay else ""
        for a, b in clip(update.busy, line.rollout_start_ms, until):
            yield _bar(x, a, b, HEAD, TRAINER, kind, tip(f"{words}, {seconds((b - a) / 1000)}"))
        widest = max(clip(update.busy, line.rollout_start_ms, until), key=lambda i: i[1] - i[0], default=None)
        if widest and x(widest[1]) - x(widest[0]) > 24:
            yield label((x(widest[0]) + x(widest[1])) / 2, HEAD + 16, f"u{update.update}", "on")


def _lane(line: RoundTimeline, group: GroupTimeline, x: Scale, y: int, pitch: int, end: int) -> str:
    height = pitch - (4 if pitch > 10 else 2)
    parts = [element("rect", tip(group_words(line, group)), x=0, y=y - 1, width=WIDTH, height=pitch, class_="row")]
    if pitch > 10:
        parts.insert(0, label(LEFT - 8, y + height - 2, f"g{group.index}", "right"))
    for stay in line.stays(group, end):
        lost = " lost" if stay.attempt < group.attempts else ""
        if stay.state in KIND and stay.end > stay.start:
            parts.insert(0, _bar(x, stay.start, stay.end, y, height, KIND[stay.state] + lost))
        elif stay.state is GroupState.CLAIMED:
            kind = "train2" if (group.update or 0) % 2 else "train"
            parts.insert(0, _bar(x, stay.start, stay.end, y, height, kind + lost))
    if group.state in ENDED_STATES:
        parts.insert(0, label(x(group.moves[-1].at_ms) + 4, y + height - 2, f"× {group.state.value}", "strong"))
    return element("g", *parts)


def _marks(line: RoundTimeline, x: Scale, bottom: int) -> Iterator[str]:
    marks = [("published", line.published_ms), ("train end", line.trained_ms), ("drained", line.drained_ms)]
    edge = float(WIDTH - 4)
    for words, at_ms in marks:  # from the right, each pushed left of the one before
        if at_ms is None:
            continue
        at, half = x(at_ms), 3.4 * len(words)
        yield element("line", x1=at, x2=at, y1=HEAD - 4, y2=bottom, class_="mark")
        middle = min(at, edge - half)
        yield label(middle, bottom + 28, words, "middle strong")
        edge = middle - half - 8


def _legend(y: int) -> Iterator[str]:
    x = float(LEFT)
    for kind, words in LEGEND:
        yield element("rect", x=x, y=y - 9, width=14, height=10, rx=2, class_=kind)
        yield label(x + 19, y, words)
        x += 40 + 6.0 * len(words)


def _bar(x: Scale, start: int, end: int, y: int, height: int, kind: str, *inside: str) -> str:
    left = x(start)
    width = max(x(end) - left, 0.8)
    return element("rect", *inside, x=left, y=y, width=width, height=height, rx=min(2.0, width / 3), class_=kind)
