from __future__ import annotations

from typing import Any

import pytest

from rolloutpipe_core.config.identity import MAY_CHANGE, config_sha, difference, immutable
from rolloutpipe_core.config.keys import keys
from rolloutpipe_core.config.models import RunConfig


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"run": "walk", "model": {"path": "builtin:pointer-walk"}} | sections)


def test_every_key_that_may_change_exists() -> None:
    assert set(MAY_CHANGE) <= {key.path for key in keys()}


@pytest.mark.parametrize(
    "sections",
    [
        {"schedule": {"rounds": 80, "kind": "serial"}},
        {"deadlines": {"group_s": 5.0}},
        {"leases": {"lease_s": 30.0}},
        {"retention": {"keep_rounds": None}},
        {"rollout_workers": 3},
        {"engine": {"slots": 8}},
        {"trainer": {"kind": "megatron", "data_parallel": 2, "tensor_parallel": 2}},
        {"engine": {"launch": {"replicas": 2}, "stall_s": 60.0}},
        {"engine": {"urls": ["http://gpu-1:30000"], "frontier_by": "priority"}},
    ],
)
def test_what_may_change_keeps_the_run(sections: dict[str, Any]) -> None:
    assert difference(config(), config(**sections)) == []
    assert config_sha(config()) == config_sha(config(**sections))


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"seed": 1}, "seed: was 0, now 1"),
        ({"schedule": {"groups_per_round": 32}}, "schedule.groups_per_round: was 16, now 32"),
        ({"schedule": {"order": "submission"}}, "schedule.order: was 'completion', now 'submission'"),
        ({"model": {"path": "other"}}, "model.path: was 'builtin:pointer-walk', now 'other'"),
        ({"deterministic": True}, "deterministic: was False, now True"),
        ({"optimizer": {"betas": [0.9, 0.99]}}, "optimizer.betas: was [0.9, 0.95], now [0.9, 0.99]"),
    ],
)
def test_what_may_not_change_is_named(sections: dict[str, Any], line: str) -> None:
    assert difference(config(), config(**sections)) == [line]
    assert config_sha(config()) != config_sha(config(**sections))


def test_a_config_that_was_stored_as_json_is_the_same() -> None:
    stored = config(sampling={"stop_ids": [3]}).model_dump_json()
    assert difference(RunConfig.model_validate_json(stored), config(sampling={"stop_ids": [3]})) == []


def test_the_immutable_part_is_flat() -> None:
    part = immutable(config())
    assert part["schedule.samples_per_group"] == 8
    assert not any(key.startswith(("deadlines", "leases")) or key == "schedule.rounds" for key in part)
