from __future__ import annotations

from typing import Any

import pytest

from rolloutpipe_core.config.checks import check
from rolloutpipe_core.config.models import RunConfig, ScheduleConfig
from rolloutpipe_core.config.problems import Problem

BUILTIN = {"path": "builtin:pointer-walk"}


def problems(**sections: Any) -> list[Problem]:
    return check(RunConfig.model_validate({"run": "walk", "model": BUILTIN} | sections))


def only(**sections: Any) -> tuple[str, str]:
    (problem,) = problems(**sections)
    assert problem.remedy
    return problem.severity, problem.key


def test_the_defaults_have_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize("name", ["Walk", "a{b}", "-a", "", "a" * 64])
def test_run_names(name: str) -> None:
    assert only(run=name) == ("error", "run")


SCHEDULE_ERRORS = [
    ({"update_batch_size": 12}, "update_batch_size"),
    ({"update_batch_size": 4}, "update_batch_size"),
    ({"update_batch_size": 136}, "update_batch_size"),
    ({"contract": "strict"}, "contract"),
    ({"frontier_width": 17}, "frontier_width"),
    ({"kind": "stream", "frontier_width": 17}, "frontier_width"),
    ({"kind": "stream", "stream_min_groups": 3}, "stream_min_groups"),
    ({"samples_per_group": 1}, "samples_per_group"),
]
SCHEDULE_WARNINGS = [
    ({"groups_per_round": 15}, "groups_per_round"),
    ({"kind": "serial", "frontier_width": 2}, "frontier_width"),
    ({"kind": "cgp", "frontier_mode": "hard"}, "frontier_mode"),
    ({"kind": "stream", "frontier_mode": "hard"}, "frontier_mode"),
    ({"stream_min_groups": 2}, "stream_min_groups"),
    ({"zero_variance": "drop", "refill_limit": 8}, "refill_limit"),
]


@pytest.mark.parametrize(("schedule", "key"), SCHEDULE_ERRORS)
def test_schedules_that_cannot_run(schedule: dict[str, Any], key: str) -> None:
    assert only(schedule=schedule) == ("error", f"schedule.{key}")


@pytest.mark.parametrize(("schedule", "key"), SCHEDULE_WARNINGS)
def test_schedules_that_may_surprise(schedule: dict[str, Any], key: str) -> None:
    assert only(schedule=schedule) == ("warning", f"schedule.{key}")


@pytest.mark.parametrize(("policy", "most"), [("keep", 16), ("drop", 16), ("refill", 128)])
def test_a_round_draws_more_than_its_groups_only_to_refill(policy: str, most: int) -> None:
    schedule = ScheduleConfig.model_validate({"zero_variance": policy, "refill_limit": 8})
    assert schedule.most_groups == most


def test_a_whole_strict_round_is_one_update() -> None:
    assert problems(schedule={"contract": "strict", "update_batch_size": 128}) == []


def test_remedies_name_numbers_that_work() -> None:
    (problem,) = problems(schedule={"update_batch_size": 20})
    assert problem.remedy == "set it to 16 or 24"
    (problem,) = problems(schedule={"update_batch_size": 4})
    assert problem.remedy == "set it to 8"
    (problem,) = problems(schedule={"contract": "strict"})
    assert "schedule.update_batch_size to 128" in problem.remedy
    (problem,) = problems(optimizer={"decay": "cosine"})
    assert problem.remedy == "set it, for example to 320"  # 40 rounds of 16 / 2 updates


LLM = {"path": "models/llm"}
SGLANG = {"kind": "sglang", "urls": ["http://gpu-1:30000"]}
LAUNCHED = {"kind": "sglang", "launch": {}}
OTHERS = [
    ({"data": {"source": "jsonl"}, "model": LLM, "rewards": {"verifier": "math"}}, "error", "data.path"),
    ({"data": {"path": "rows.jsonl"}}, "warning", "data.path"),
    ({"data": {"system_prompt": "Think."}}, "error", "data.system_prompt"),
    ({"data": {"chat": True}}, "error", "data.chat"),
    (
        {"data": {"source": "jsonl", "path": "rows.jsonl"}, "rewards": {"verifier": "math"}},
        "warning",
        "model.path",
    ),
    ({"data": {"source": "jsonl", "path": "rows.jsonl"}, "model": LLM}, "warning", "rewards.verifier"),
    ({"rewards": {"verifier": "exact"}}, "warning", "rewards.verifier"),
    ({"sampling": {"top_p": 0.9}}, "warning", "sampling.top_p"),
    ({"sampling": {"top_k": 50}}, "warning", "sampling.top_k"),
    ({"engine": {"slots": 7}}, "warning", "engine.slots"),
    ({"engine": {"stall_s": 60.0}}, "warning", "engine.stall_s"),
    ({"engine": {"kind": "sglang"}}, "error", "engine.urls"),
    ({"engine": SGLANG | {"launch": {}}}, "error", "engine.urls"),
    ({"engine": SGLANG, "rollout_workers": 2}, "error", "engine.urls"),
    ({"engine": SGLANG, "schedule": {"order": "submission"}, "deterministic": True}, "error", "deterministic"),
    ({"engine": LAUNCHED | {"frontier_by": "priority"}, "rollout_workers": 2}, "error", "engine.frontier_by"),
    (
        {"engine": SGLANG | {"frontier_by": "priority"}, "schedule": {"frontier_mode": "hard"}},
        "error",
        "engine.frontier_by",
    ),
    ({"engine": {"kind": "sglang", "launch": {"start_s": 300.0}}}, "warning", "engine.launch.start_s"),
    ({"engine": SGLANG | {"stall_s": 300.0}}, "warning", "engine.stall_s"),
    (
        {"deterministic": True, "model": BUILTIN | {"device": "cuda"}, "schedule": {"order": "submission"}},
        "warning",
        "deterministic",
    ),
    ({"deterministic": True}, "warning", "schedule.order"),
    ({"loss": {"importance_cap": 2.0}}, "error", "loss.importance_cap"),
    ({"loss": {"kind": "dr_grpo"}}, "warning", "loss.aggregation"),
    ({"loss": {"aggregation": "dr_grpo"}}, "warning", "loss.aggregation"),
    (
        {"loss": {"kind": "dr_grpo", "aggregation": "dr_grpo", "advantage_eps": 1e-6}},
        "warning",
        "loss.advantage_eps",
    ),
    ({"optimizer": {"decay": "linear"}}, "error", "optimizer.decay_updates"),
    ({"optimizer": {"decay_updates": 10}}, "warning", "optimizer.decay_updates"),
    (
        {"optimizer": {"decay": "linear", "decay_updates": 10, "warmup_updates": 10}},
        "error",
        "optimizer.warmup_updates",
    ),
    ({"optimizer": {"min_learning_rate": 1e-3}}, "error", "optimizer.min_learning_rate"),
    ({"trainer": {"microbatch_tokens": 1119}}, "warning", "trainer.microbatch_tokens"),
    ({"leases": {"lease_s": 1.5}}, "error", "leases.lease_s"),
    ({"rewards": {"deadline_s": 40.0}}, "warning", "rewards.deadline_s"),
    ({"deadlines": {"engine_s": 301.0}}, "warning", "deadlines.engine_s"),
    ({"rollout_workers": 17}, "warning", "rollout_workers"),
    ({"data": {"rows": 63}, "schedule": {"zero_variance": "refill"}}, "warning", "schedule.refill_limit"),
    ({"rollout_workers": 3, "schedule": {"frontier_mode": "hard"}}, "warning", "schedule.frontier_width"),
]


@pytest.mark.parametrize(
    ("sections", "severity", "key"), OTHERS, ids=[f"{key}-{n}" for n, (*_, key) in enumerate(OTHERS)]
)
def test_other_sections(sections: dict[str, Any], severity: str, key: str) -> None:
    assert only(**sections) == (severity, key)


def test_greedy_sampling_by_sglang_has_temperature_1() -> None:
    sampling = {"top_k": 1, "temperature": 0.5}
    found = {(problem.severity, problem.key) for problem in problems(engine=SGLANG, sampling=sampling)}
    assert ("error", "sampling.temperature") in found


def test_a_verifier_of_the_users_own_fits_any_data() -> None:
    assert problems(rewards={"verifier": "my_rewards:judge"}) == []


def test_errors_come_first() -> None:
    found = problems(sampling={"top_p": 0.9}, optimizer={"decay": "linear"}, schedule={"groups_per_round": 15})
    assert [problem.severity for problem in found] == ["error", "warning", "warning"]
