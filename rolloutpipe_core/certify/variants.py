"""The runs that are compared: each schedule with each number of rollout workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import validate_run_name

Promise = Literal["every round", "first round"]


class Schedule(NamedTuple):
    kind: str
    frontier_mode: str | None  # None: it means nothing there

    def __str__(self) -> str:
        return f"{self.kind} {self.frontier_mode}" if self.frontier_mode else self.kind


SCHEDULES = (
    Schedule("serial", None),
    Schedule("cgp", None),
    Schedule("cgp+fgd", "hard"),
    Schedule("cgp+fgd", "fill"),
    Schedule("stream", None),
)
"""The baseline first: the others are compared with it."""


class Variant(NamedTuple):
    schedule: Schedule
    workers: int

    def __str__(self) -> str:
        return f"{self.schedule}, {self.workers} worker{'s' * (self.workers > 1)}"


def all_variants(kinds: Sequence[str], workers: Sequence[int]) -> list[Variant]:
    """Every schedule of these kinds (none: all) with every number of workers, the run to compare with first."""
    chosen = [schedule for schedule in SCHEDULES if not kinds or schedule.kind in kinds]
    return [Variant(schedule, count) for count in workers for schedule in chosen]


def run_name(base: str, nonce: str, variant: Variant) -> str:
    """`run_name("walk", "3f9a", Variant(Schedule("cgp+fgd", "hard"), 2)) == "walk-certify-3f9a-cgp-fgd-hard-2w"`."""
    schedule = str(variant.schedule).replace("+", "-").replace(" ", "-")
    tail = f"-certify-{nonce}-{schedule}-{variant.workers}w"
    return validate_run_name(base[: 63 - len(tail)].rstrip("-") + tail)


def settings(variant: Variant, name: str, rounds: int, deterministic: bool) -> list[str]:
    """What makes a configuration this variant, as `key=value`."""
    schedule = variant.schedule
    made = [
        f"run={name}",
        f"schedule.kind={schedule.kind}",
        f"schedule.rounds={rounds}",
        f"rollout_workers={variant.workers}",
        f"deterministic={str(deterministic).lower()}",
        "retention.keep_rounds=null",  # the groups are compared after the run
    ]
    if schedule.frontier_mode is not None:
        made.append(f"schedule.frontier_mode={schedule.frontier_mode}")
    return made


def promise(config: RunConfig) -> Promise:
    """How far runs under different schedules must agree.

    With one update a round, or groups taken in submission order, every update holds the same groups. Groups taken as
    they complete meet in other updates, so that only the first round, sampled with version 0, must be the same.
    """
    schedule = config.schedule
    one_update = schedule.groups_per_update == schedule.groups_per_round
    return "every round" if one_update or schedule.order == "submission" else "first round"
