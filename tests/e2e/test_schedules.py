"""Every schedule trains whole rounds exactly once, by two processes that share only Redis and S3."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.timeline import Timelines
from rolloutpipe_core.store.commits import Commit, CommitChain

from .conftest import Run

SCHEDULES: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial"},
    "cgp": {"kind": "cgp"},
    "cgp+fgd hard": {"kind": "cgp+fgd", "frontier_mode": "hard"},
    "cgp+fgd fill": {"kind": "cgp+fgd", "frontier_mode": "fill"},
    "stream strict": {"kind": "stream", "contract": "strict", "update_batch_size": 24},
    "cgp submission, last update partial": {"kind": "cgp", "order": "submission", "update_batch_size": 16},
    "refilled groups": {"kind": "stream", "zero_variance": "refill", "refill_limit": 8, "update_batch_size": 16},
    "filtered groups": {"kind": "cgp+fgd", "zero_variance": "drop", "max_unusable_fraction": 1.0},
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_two_rounds(run: Run, schedule: dict[str, Any]) -> None:
    run.configure(schedule=schedule).complete()
    audit = run.audit()
    assert audit.passed, audit.findings
    links = CommitChain(run.store, run.name).read()
    assert [link.commit.version.number for link in links] == [0, 1, 2]
    per_update = schedule.get("update_batch_size", 8) // 4
    for link in links[1:]:
        commit = link.commit
        assert isinstance(commit, Commit)
        sizes = [len(update.groups) for update in commit.updates]
        assert sizes[:-1] == [per_update] * (len(sizes) - 1)
        refilled = schedule.get("zero_variance") == "refill"
        assert sum(sizes) + (0 if refilled else len(commit.ended)) == 6
        names = [group.group for group in commit.groups]
        if schedule["kind"] == "serial" or schedule.get("order") == "submission":
            assert names == sorted(names)
        assert commit.weights_sha != commit.previous.sha256
    timelines = Timelines(run.reader.events())
    first, second = all_round_metrics(timelines.rounds())
    assert (first.weight_version, second.weight_version) == (0, 1)
    for round in (first, second):
        assert round.reward_mean is not None
        assert 0 <= round.reward_mean <= 1
        assert round.mismatch_max is None or round.mismatch_max < 1e-3


def test_two_workers_share_a_round_and_one_of_them_leaves(run: Run) -> None:
    run.configure(schedule={"rounds": 3, "groups_per_round": 8}, rollout_workers=2)
    first, second = run.start("rollout", name="rollout-0"), run.start("rollout", name="rollout-1")
    trainer = run.start("trainer")
    run.wait_for(lambda: run.reader.run_state().get("version") == "1")
    workers = {row["worker"][:9] for row in run.reader.groups(0)}
    run.wait_for(lambda: any(row["state"] == GroupState.QUEUED for row in run.reader.groups(1)))
    first.stop()
    second.succeed()
    trainer.succeed()
    audit = run.audit()
    assert audit.passed, audit.findings
    assert workers <= {"rollout-0", "rollout-1"}
