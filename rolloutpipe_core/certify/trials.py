"""The runs of a certification, each with its whole configuration, checked before the first one starts."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.certify.variants import SCHEDULES, Variant, all_variants, run_name, settings
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput

COUNT = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Trial:
    variant: Variant
    config: RunConfig
    overrides: tuple[str, ...]  # of the user's file, which make `config` of it


def plan_trials(
    base: RunConfig, file: Path, overrides: Sequence[str], kinds: Sequence[str], workers: str
) -> list[Trial]:
    """A run of `base` for every schedule of these kinds (none: all) and each of `workers`, as in "1,2".

    Their names are new, so that none goes on with what an earlier certification left. Raises BadInput for what is no
    schedule or number, and for a configuration with which one of them could not run.
    """
    nonce = secrets.token_hex(3)
    trials = [
        _trial(base, file, overrides, variant, run_name(base.run, nonce, variant))
        for variant in all_variants(_kinds(kinds), _counts(workers, base.schedule.groups_per_round))
    ]
    if len(trials) < 2:
        raise BadInput(
            "nothing to compare", given=f"{len(trials)} run", expected="schedules or workers for two or more"
        )
    return trials


def _trial(base: RunConfig, file: Path, overrides: Sequence[str], variant: Variant, name: str) -> Trial:
    made = [*overrides, *settings(variant, name, base.schedule.rounds, base.deterministic)]
    return Trial(variant, load_config(file, made), tuple(made))


def _kinds(kinds: Sequence[str]) -> Sequence[str]:
    known = {schedule.kind for schedule in SCHEDULES}
    for kind in kinds:
        if kind not in known:
            raise BadInput("no such schedule", given=kind, expected=f"one of: {', '.join(sorted(known))}")
    return kinds


def _counts(text: str, groups: int) -> list[int]:
    """At most one worker a group: more would stay idle."""
    parts = [part.strip() for part in text.split(",")]
    if not all(COUNT.fullmatch(part) and 0 < int(part) <= groups for part in parts):
        raise BadInput(
            "not numbers of rollout workers",
            given=repr(text[:80]),
            expected=f"a form like 1,2, each at most groups_per_round = {groups}",
        )
    return sorted({int(part) for part in parts})
