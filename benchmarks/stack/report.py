"""The measurements as tables: for a terminal, and as Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group

from ..handoff.real_run import RealRun
from ..handoff.report import Table, critical_paths
from .pairs import Paired
from .rollout_half import Shape
from .trainer_half import RANKS, Updates


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured."""

    machine: Mapping[str, str]
    shape: Shape
    rollout: Paired
    updates: Updates
    trainer: Paired
    run: RealRun


def tables(report: Report) -> list[Table]:
    shape, updates = report.shape, report.updates
    rollout = f"Rollout: {shape.groups} groups of {shape.samples}, {shape.slots} samples at once, {shape.turns} turns"
    trainer = (
        f"Trainer: {updates.each} updates of {updates.groups} groups of {updates.samples} a turn, "
        f"{RANKS} tensor parallel ranks, {updates.turns} turns"
    )
    return [
        _paired(rollout, "rollout service over SGLang", "bare client of the same server", report.rollout),
        _paired(trainer, "megatron backend", "bare megatron-core loop", report.trainer),
        critical_paths("The added critical path of real rounds of configs/stack-cpu.yaml", [report.run]),
    ]


def markdown(report: Report) -> str:
    return "\n".join(one.markdown() for one in tables(report))


def view(report: Report) -> Group:
    return Group(*(one.rich() for one in tables(report)))


def _paired(title: str, ours: str, bare: str, found: Paired) -> Table:
    ratio = f"{found.ratio:.3f} ({found.least:.3f} to {found.most:.3f})"
    rows = (
        (ours, f"{found.ours:.0f}"),
        (bare, f"{found.bare:.0f}"),
        ("ratio, median (least to most)", ratio),
    )
    return Table(title, ("", "tokens/s"), rows)
