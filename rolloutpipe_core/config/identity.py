"""What makes a run the same run: all of its configuration but what may change between two starts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rolloutpipe_core.config.keys import flatten
from rolloutpipe_core.config.models import RunConfig

MAY_CHANGE = (
    "bucket",
    "model.device",
    "data.path",  # the data's fingerprint, which every round checks, is what counts
    "schedule.rounds",
    "schedule.kind",  # the schedule changes only time
    "schedule.frontier_mode",
    "schedule.frontier_width",
    "schedule.stream_min_groups",
    "schedule.max_unusable_fraction",
    "engine.slots",
    "engine.urls",
    "engine.launch",
    "engine.stall_s",
    "engine.frontier_by",
    "rewards.workers",
    "rewards.deadline_s",
    "rewards.memory_mb",
    "rewards.infrastructure_retries",
    "trainer",  # checkpoints are the same for every backend and number of ranks
    "leases",
    "deadlines",
    "retention",
    "rollout_workers",
    "rollout_module",
    "trainer_module",
)


def immutable(config: RunConfig) -> dict[str, Any]:
    """The part that stays as it is for the whole life of a run, flat: {"schedule.samples_per_group": 8, ...}."""
    flat = flatten(config.model_dump(mode="json"))
    return {key: value for key, value in flat.items() if not f"{key}.".startswith(_PREFIXES)}


_PREFIXES = tuple(f"{key}." for key in MAY_CHANGE)


def config_sha(config: RunConfig) -> str:
    """sha256 of the immutable part, 64 hex digits."""
    return hashlib.sha256(json.dumps(immutable(config), sort_keys=True).encode()).hexdigest()


def difference(old: RunConfig, new: RunConfig) -> list[str]:
    """What of the immutable part differs, one line a key; a run with any may not be resumed."""
    before, after = immutable(old), immutable(new)
    return [f"{key}: was {before[key]!r}, now {after[key]!r}" for key in before if before[key] != after[key]]
