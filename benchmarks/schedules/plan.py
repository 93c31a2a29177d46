"""What is measured: the regimes, the schedules in each, and how a run of each is configured. Pure.

A regime is a model's shape, the lengths of prompts and responses, and what an update computes; nobody sleeps. A model
with random weights chooses its next id nearly uniformly, so its responses have geometric lengths whose mean, before the
cap, is the size of its vocabulary. Deep and narrow models make the cost of a decode step grow little with its rows, as
it is on a GPU; prompts are prefilled once a group and trained once a sample, so long ones make work for the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GROUPS, QUICK_GROUPS = 32, 16  # R
SAMPLES = 8  # K
SLOTS = 64
WIDTH = 8  # F_w where it is not swept: the frontier fills all slots
SWEEP = {"hard": (2, 8), "fill": (2, 8)}  # F_w
SWEPT = ("balanced", 2)
SEED = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 with random weights."""

    vocabulary: int  # also the mean length of a response in tokens, before the cap
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Regime:
    name: str
    shape: Shape
    prompt_tokens: int
    max_new_tokens: int  # the cap: 1.8 to 2.5 times the mean
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the run's configuration, by section


REGIMES = (
    Regime("rollout-bound", Shape(320, 32, 64, 15, 1, 1, 16), 32, 800),
    Regime("balanced", Shape(288, 32, 64, 15, 1, 1, 16), 512, 512),
    Regime(
        "trainer-bound",
        Shape(96, 32, 64, 14, 1, 1, 16),
        416,
        240,
        {"loss": {"kl_coefficient": 0.01}, "trainer": {"gradient_checkpointing": True}},
    ),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One schedule in one regime at one U: one row of the table."""

    regime: str
    groups_per_update: int  # U
    schedule: str  # as it is told: serial, cgp, cgp+fgd hard, cgp+fgd fill, stream
    frontier_width: int | None

    @property
    def id(self) -> str:
        """Part of the run's name: `balanced-u2-cgp-fgd-hard-w4`."""
        words = [self.regime, f"u{self.groups_per_update}", self.schedule.replace("+", "-").replace(" ", "-")]
        return "-".join([*words, *([f"w{self.frontier_width}"] if self.frontier_width else [])])

    @property
    def told(self) -> str:
        width = f" F_w={self.frontier_width}" if self.frontier_width else ""
        return f"{self.regime}, U={self.groups_per_update}, {self.schedule}{width}"


def cells(groups: int, regimes: Sequence[str], quick: bool) -> list[Cell]:
    """All rows, those of one regime and U together: they are measured one after another, and compared."""
    return [
        Cell(regime, update, schedule, width)
        for regime in regimes
        for update in (2, groups)
        for schedule, width in _schedules(sweep=(regime, update) == SWEPT and not quick, whole=update == groups)
    ]


def _schedules(sweep: bool, whole: bool) -> list[tuple[str, int | None]]:
    """`whole`: an update is the round, so that only `stream` trains before the drain; the hard frontier is left out."""
    modes = ("fill",) if whole else ("hard", "fill")
    frontier = [(f"cgp+fgd {mode}", width) for mode in modes for width in (SWEEP[mode] if sweep else (WIDTH,))]
    return [("serial", None), ("cgp", None), *frontier, ("stream", WIDTH)]


def configuration(regime: Regime, model: str, prompts: str, groups: int) -> dict[str, Any]:
    """The regime's run, but for its name and its schedule: one round from version 0. `prompts` is a JSONL file."""
    settings: dict[str, Any] = {
        "run": "bench",
        "seed": SEED,
        "bucket": "rolloutpipe-bench",
        "model": {"path": model},
        "data": {"source": "jsonl", "path": prompts},
        "schedule": {"rounds": 1, "groups_per_round": groups, "samples_per_group": SAMPLES},
        "sampling": {"max_new_tokens": regime.max_new_tokens},
        "engine": {"slots": SLOTS},
        "rewards": {"verifier": "rolloutpipe_benchmarks.schedules.verifier:verify"},
        # Small micro-batches: on one CPU core they cost hardly more a token, and they pad less.
        "trainer": {"microbatch_tokens": 1024},
    }
    for section, keys in regime.settings.items():
        settings[section] = {**settings.get(section, {}), **keys}
    return settings


def overrides(cell: Cell, run: str) -> list[str]:
    """`--set` options that make a cell's run of its regime's configuration."""
    kind, _, mode = cell.schedule.partition(" ")
    options = {"run": run, "schedule.kind": kind, "schedule.update_batch_size": cell.groups_per_update * SAMPLES}
    if cell.frontier_width:
        options["schedule.frontier_width"] = cell.frontier_width
    if mode:
        options["schedule.frontier_mode"] = mode
    return [f"{key}={value}" for key, value in options.items()]
