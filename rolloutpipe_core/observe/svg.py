"""What our pictures share: elements as text, axes, and one palette for light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

# One set of names for report and pictures. A standalone picture follows the viewer's colour scheme too.
LIGHT = (
    "--ink:#1b2330;--soft:#5c6675;--faint:#e6e9ee;--line:#d5dae1;--page:#f6f7f9;--card:#ffffff;"
    "--decode:#3f74d1;--score:#8f6fd0;--ready:#cfd5de;--train:#e5832f;--train2:#f0a860;--wait:#d9534f;--good:#1f9d6b;"
    "--warn:#fdf1e3"
)
DARK = (
    "--ink:#e8ecf2;--soft:#98a3b3;--faint:#262d38;--line:#343d4a;--page:#10141a;--card:#181e26;"
    "--decode:#6a9bf0;--score:#ab91ea;--ready:#4a5564;--train:#f0954a;--train2:#c46f2c;--wait:#ef7a76;--good:#3fc48e;"
    "--warn:#3a2c1b"
)
SHAPES = """
svg.figure{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:11px}
svg.figure text{fill:var(--soft)} svg.figure .strong{fill:var(--ink);font-weight:600}
svg.figure .title{fill:var(--ink);font-size:15px;font-weight:600} svg.figure .right{text-anchor:end}
svg.figure .middle{text-anchor:middle} svg.figure .grid{stroke:var(--faint);stroke-width:1}
svg.figure .axis{stroke:var(--line);stroke-width:1} svg.figure .mark{stroke:var(--soft);stroke-dasharray:3 3}
svg.figure .on{fill:#fff;font-weight:600;text-anchor:middle}
.decode{fill:var(--decode)} .score{fill:var(--score)} .ready{fill:var(--ready)} .train{fill:var(--train)}
.train2{fill:var(--train2)} .wait{fill:var(--wait)} .good{fill:var(--good)} .hatch{fill:url(#hatch)}
.lost{opacity:.45} .row:hover{fill:var(--soft);fill-opacity:.12} .row{fill:transparent}
.path{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round} .band{opacity:.14}
.path.decode{stroke:var(--decode);fill:none} .path.train{stroke:var(--train);fill:none}
.path.score{stroke:var(--score);fill:none} .path.good{stroke:var(--good);fill:none}
"""
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" style="fill:var(--wait)" opacity=".1"/>'
    '<rect width="2" height="6" style="fill:var(--wait)" opacity=".38"/></pattern></defs>'
)


def element(tag: str, *children: str, **attributes: object) -> str:
    """`element("rect", x=1.04, class_="wait") == '<rect x="1" class="wait"/>'`; children are markup already."""
    written = "".join(f' {name.rstrip("_").replace("_", "-")}="{_value(v)}"' for name, v in attributes.items())
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def label(x: float, y: float, words: str, kind: str = "") -> str:
    return element("text", escape(words), x=x, y=y, **({"class_": kind} if kind else {}))


def tip(words: str) -> str:
    """What a pointer shows over the element that holds it."""
    return element("title", escape(words))


def figure(width: int, height: int, *children: str, name: str, standalone: bool = False) -> str:
    """An <svg>. Standalone, it brings its own colours and a background; inside the report the page has them."""
    facts = f'viewBox="0 0 {width} {height}" class="figure" role="img" aria-label="{escape(name)}"'
    if not standalone:
        return f"<svg {facts}>{''.join(children)}</svg>"
    style = f"<style>svg{{{LIGHT}}}@media (prefers-color-scheme:dark){{svg{{{DARK}}}}}{SHAPES}</style>"
    back = '<rect width="100%" height="100%" rx="10" style="fill:var(--card)"/>'
    size = f'width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {facts}>{style}{HATCH}{back}{"".join(children)}</svg>\n'


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [start, end] of the picture, linearly or by the logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        change: Callable[[float], float] = math.log10 if self.log else float
        low, high = change(self.low), change(self.high)
        part = (change(value) - low) / (high - low) if high > low else 0.5
        return self.start + part * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers inside the scale: powers of ten, or about `count` steps of 1, 2 or 5."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1, 1 + (last - first) // count)]
        step = nice_step((self.high - self.low) / count)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _value(value: object) -> str:
    return f"{round(value, 1):g}" if isinstance(value, float) else escape(str(value))
