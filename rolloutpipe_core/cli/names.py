"""Which name a repeated quickstart takes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rolloutpipe_core.config.identity import config_sha
from rolloutpipe_core.config.models import RunConfig


def next_name(config: RunConfig, runs: Mapping[str, Mapping[str, str]]) -> str:
    """The name of the newest of `walk`, `walk-2`, `walk-3`, ... if it can go on, else the next one.

    `runs`: what Redis knows (see `list_runs`). A run goes on when it is of the same configuration, was not stopped
    and lacks rounds.
    """
    numbered = re.compile(rf"{re.escape(config.run)}(?:-(\d+))?")
    numbers = [int(match[1] or 1) for name in runs if (match := numbered.fullmatch(name))]
    newest = max(numbers, default=0)
    if newest and _goes_on(config, _name(config.run, newest), runs):
        return _name(config.run, newest)
    return _name(config.run, newest + 1)


def _name(base: str, number: int) -> str:
    return base if number == 1 else f"{base}-{number}"


def _goes_on(config: RunConfig, name: str, runs: Mapping[str, Mapping[str, str]]) -> bool:
    state = runs[name]
    same = state.get("config_sha") == config_sha(config.model_copy(update={"run": name}))
    return same and state.get("state") == "active" and int(state.get("version", 0)) < config.schedule.rounds
