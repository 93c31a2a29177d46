"""Charts over rounds: lines, and stacked bars. Pure: numbers in, markup out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rolloutpipe_core.observe.svg import Scale, element, figure, label, tip
from rolloutpipe_core.observe.words import number

Values = Sequence[float | None]
Size = tuple[int, int]

SMALL: Size = (540, 230)
WIDE: Size = (1110, 280)
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 30, 26


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    kind: str  # colour: a class of svg.py
    values: Values  # one a round; None leaves a gap


def line_chart(
    name: str,
    rounds: Sequence[int],
    series: Sequence[Series],
    *,
    size: Size = SMALL,
    top: float | None = None,
    log: bool = False,
    band: tuple[Values, Values] | None = None,
    words: Callable[[float | None], str] = number,
) -> str:
    """Lines over rounds, from 0 to `top` (None: the largest value) or on a logarithmic axis.

    `band`: lower and upper values shaded behind the first series.
    """
    known = [value for line in series for value in line.values if value is not None and (value > 0 or not log)]
    if not rounds or not known:
        return figure(*size, label(size[0] / 2, size[1] / 2, "nothing measured yet", "middle"), name=name)
    x = Scale(rounds[0], max(rounds[-1], rounds[0] + 1), LEFT + 6, size[0] - RIGHT)
    y = _y_scale(known, top, log, size)
    parts = [*_axes(x, y, size), *_legend(series, size)]
    if band is not None:
        parts.append(_band(x, y, rounds, band, series[0].kind))
    for line in series:
        parts += _line(x, y, rounds, line, log)
    parts += _tips(x, rounds, series, size, words)
    return figure(*size, *parts, name=name)


def stacked_bars(
    name: str,
    rounds: Sequence[int],
    series: Sequence[Series],
    *,
    size: Size = SMALL,
    words: Callable[[float | None], str] = number,
) -> str:
    """One bar a round, the first series at the bottom. A round that lacks any value has no bar."""
    stacks = [values if None not in values else () for values in zip(*(line.values for line in series), strict=True)]
    totals = [sum(value for value in stack if value is not None) for stack in stacks if stack]
    if not totals:
        return figure(*size, label(size[0] / 2, size[1] / 2, "nothing measured yet", "middle"), name=name)
    slot = (size[0] - LEFT - RIGHT) / len(rounds)
    x = Scale(rounds[0], rounds[0] + len(rounds), LEFT, size[0] - RIGHT)
    y = _y_scale(totals, None, False, size)
    parts = [*_axes(x, y, size, shift=slot / 2), *_legend(series, size)]
    for at, stack in zip(rounds, stacks, strict=True):
        base = 0.0
        for line, value in zip(series, stack, strict=False):
            low, high = y(base), y(base + max(value or 0.0, 0.0))
            bar = {"x": x(at) + slot * 0.1, "y": high, "width": slot * 0.8, "height": low - high}
            parts.append(element("rect", **bar, class_=line.kind))
            base += max(value or 0.0, 0.0)
    parts += _tips(x, rounds, series, size, words, shift=slot / 2)
    return figure(*size, *parts, name=name)


def _y_scale(known: Sequence[float], top: float | None, log: bool, size: Size) -> Scale:
    start, end = size[1] - BOTTOM, TOP
    if log:
        return Scale(min(known) * 0.8, max(known) * 1.25, start, end, log=True)
    high = top if top is not None else max(max(known) * 1.08, 1e-12)
    return Scale(min(0.0, *known, 0.0), high, start, end)


def _axes(x: Scale, y: Scale, size: Size, shift: float = 0.0) -> Iterator[str]:
    for tick in y.ticks(5):
        yield element("line", x1=LEFT, x2=size[0] - RIGHT, y1=y(tick), y2=y(tick), class_="grid")
        yield label(LEFT - 7, y(tick) + 4, f"{tick:.6g}" if not y.log else f"{tick:.0e}", "right")
    for tick in x.ticks(10):
        if tick == int(tick) and x(tick) + shift <= size[0] - RIGHT:
            yield label(x(tick) + shift, size[1] - 8, f"{tick:g}", "middle")
    base = size[1] - BOTTOM
    yield element("line", x1=LEFT, x2=size[0] - RIGHT, y1=base, y2=base, class_="axis")


def _legend(series: Sequence[Series], size: Size) -> Iterator[str]:
    x = size[0] - RIGHT - sum(34 + 6.2 * len(line.name) for line in series)
    for line in series:
        yield element("rect", x=x, y=6, width=12, height=10, rx=2, class_=line.kind)
        yield label(x + 17, 15, line.name)
        x += 34 + 6.2 * len(line.name)


def _line(x: Scale, y: Scale, rounds: Sequence[int], line: Series, log: bool) -> Iterator[str]:
    points = [
        (r, v if v is not None and (v > 0 or not log) else None) for r, v in zip(rounds, line.values, strict=True)
    ]
    for missing, run in groupby(points, key=lambda point: point[1] is None):
        if missing:
            continue
        spots = [(x(r), y(min(v, y.high))) for r, v in run if v is not None]
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in spots)
        yield element("path", d=path, class_=f"path {line.kind}")
        if len(spots) == 1 or len(rounds) <= 60:
            yield from (element("circle", cx=a, cy=b, r=2.4, class_=line.kind) for a, b in spots)


def _band(x: Scale, y: Scale, rounds: Sequence[int], band: tuple[Values, Values], kind: str) -> str:
    spots = [
        (x(r), low, high) for r, low, high in zip(rounds, *band, strict=True) if low is not None and high is not None
    ]
    there = [f"{a:.1f} {y(high):.1f}" for a, _, high in spots if high is not None]
    back = [f"{a:.1f} {y(low):.1f}" for a, low, _ in reversed(spots) if low is not None]
    return element("path", d="M" + "L".join(there + back) + "Z", class_=f"band {kind}") if spots else ""


def _tips(
    x: Scale,
    rounds: Sequence[int],
    series: Sequence[Series],
    size: Size,
    words: Callable[[float | None], str],
    shift: float = 0.0,
) -> Iterator[str]:
    """Invisible columns that name a round's values under the pointer."""
    width = (x(rounds[0] + 1) - x(rounds[0])) if len(rounds) > 1 else size[0] - LEFT - RIGHT
    for place, at in enumerate(rounds):
        values = [f"{line.name} {words(line.values[place])}" for line in series]
        left = max(x(at) + shift - width / 2, LEFT)
        shape = {"x": left, "y": TOP, "width": width, "height": size[1] - TOP - BOTTOM}
        yield element("rect", tip("\n".join([f"round {at}", *values])), **shape, class_="row")
