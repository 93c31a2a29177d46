"""Everything that is to be measured, interleaved: repeat by repeat, in each the regimes, in each the schedules.

A failure costs its cell alone: it is told, and the benchmark goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rolloutpipe_core.errors import RolloutPipeError

from .measure import Bench, Run
from .plan import Cell, Regime
from .records import Records
from .summary import TIME


@dataclass(slots=True)
class Loop:
    """Measures what the records lack. Used once."""

    bench: Bench
    records: Records
    regimes: Sequence[Regime]
    cells: Sequence[Cell]
    repeats: int
    tell: Callable[[str], None]
    changed: Callable[[], None]  # called after each run: what was measured so far can be written
    failures: list[str] = field(default_factory=list)
    _recorded: dict[tuple[str, int], Run] = field(default_factory=dict)  # by regime and U: waiting for their replay
    _done: int = 0
    _since: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """All repeats; what failed is in `failures` afterwards."""
        try:
            for repeat in range(self.repeats):
                self._repeat(repeat)
        finally:
            for recorded in self._recorded.values():
                recorded.close()

    def _repeat(self, repeat: int) -> None:
        for regime in self.regimes:
            cells = [cell for cell in self.cells if cell.regime == regime.name]
            for cell in rotated(cells, repeat * len(cells) // self.repeats):
                if not self.records.has(cell, repeat):
                    self._cell(regime, cell, repeat)
            updates = sorted({cell.groups_per_update for cell in cells})
            for place, update in enumerate(updates):
                if not self.records.has_floor(regime.name, update, repeat):
                    self._floor(regime, update, updates[(place + 1) % len(updates)], repeat)

    def _cell(self, regime: Regime, cell: Cell, repeat: int) -> None:
        with self._told(f"{cell.told}, repeat {repeat + 1}") as say:
            measured = self.bench.cell(regime, cell, repeat)
            self.records.add(measured)
            metrics = measured.metrics
            say(
                f"{metrics[TIME]:.1f} s (rollout {metrics['rollout_s']:.1f} s, "
                f"trainer busy {metrics['trainer_busy_s']:.1f} s)"
            )

    def _floor(self, regime: Regime, update: int, following: int, repeat: int) -> None:
        """One link of a chain: each replay runs beside the rollout that records for the next one."""
        with self._told(f"{regime.name}, U={update}, floor, repeat {repeat + 1}") as say:
            recorded = self._recorded.pop((regime.name, update), None) or self.bench.record(
                regime, update, f"floor-{regime.name}-u{update}-r{repeat}"
            )
            next_name = f"floor-{regime.name}-u{following}-after-u{update}-r{repeat}"
            floor, self._recorded[regime.name, following] = self.bench.replay(
                regime, recorded, following, next_name, repeat
            )
            self.records.add(floor)
            say(f"{floor.floor_s:.1f} s (rollout {floor.rollout_s:.1f} s, training {floor.training_s:.1f} s)")

    @contextmanager
    def _told(self, what: str) -> Iterator[Callable[[str], None]]:
        """Tell what came out and how long the rest will take; a failure is told and kept."""
        said: list[str] = []
        try:
            yield said.append
        except RolloutPipeError as error:
            said.append(f"FAILED: {error}")
            self.failures.append(f"{what}: {error}")
        self._done += 1
        self.tell(f"{what}: {said[0]}; {self._left()}")
        self.changed()

    def _left(self) -> str:
        floors = len({(cell.regime, cell.groups_per_update) for cell in self.cells})
        todo = (len(self.cells) + floors) * self.repeats - len(self.records.measured) - len(self.records.floors)
        todo -= len(self.failures)
        seconds = (time.monotonic() - self._since) / self._done * todo
        return f"{todo} runs left, about {seconds / 60:.0f} min"


def rotated(cells: Sequence[Cell], by: int) -> list[Cell]:
    """Another first one each repeat: what a run finds behind another one averages out."""
    return [*cells[by:], *cells[:by]]
