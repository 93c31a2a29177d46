"""The trainer under `zero_variance: refill`: it waits for the groups that are drawn, and commits how far they went."""

from __future__ import annotations

from typing import Any

import pytest

from rolloutpipe_core.domain import group_id
from rolloutpipe_core.errors import LedgerRefused, RunStopped
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.store.commits import Commit

from .conftest import Bench, K, R

REFILL = {"zero_variance": "refill", "refill_limit": 2, "max_unusable_fraction": 0.0, "update_batch_size": 2 * K}


def filter_group(bench: Bench, index: int) -> None:
    lease = bench.rollout.admit(index)
    bench.rollout.ledger.serving_complete(lease)
    bench.rollout.ledger.materialized(lease)
    draw = lambda index: f"p{index}" if index < 2 * R else None  # noqa: E731
    bench.rollout.ledger.filtered(lease, "zero variance of rewards", {"reward_mean": 1.0}, draw)


def head_commit(bench: Bench) -> Commit:
    head = bench.chain.head()
    assert head is not None
    assert isinstance(head.commit, Commit)
    return head.commit


@pytest.mark.parametrize("bench", [{**REFILL, "order": "submission"}], indirect=True)
def test_submission_order_takes_a_replacement_when_its_index_comes(bench: Bench) -> None:
    """Group 0 is filtered after the trainer began to wait for it; 3 and then 4 come in its place."""
    bench.rollout.open()
    trainer = bench.start_trainer()
    bench.rollout.serve(2)
    trainer.wait_for(lambda: any("group 0 heads the line" in row["waiting_for"] for row in bench.reader.services()))
    filter_group(bench, 0)
    filter_group(bench, 3)
    bench.rollout.serve(4)
    trainer.wait_for(lambda: any("group 1 heads the line" in row["waiting_for"] for row in bench.reader.services()))
    bench.rollout.serve(1)
    trainer.finish()
    commit = head_commit(bench)
    members = [[member.group for member in update.groups] for update in commit.updates]
    assert members == [[group_id(0, 1), group_id(0, 2)], [group_id(0, 4)]], "U = 2, the last one partial"
    assert [end.group for end in commit.ended] == [group_id(0, 0), group_id(0, 3)]
    assert commit.cursor == 5
    assert bench.reader.run_state()["cursor"] == "5"


@pytest.mark.parametrize("bench", [{**REFILL, "kind": "serial"}], indirect=True)
def test_a_replaced_group_is_no_unusable_one(bench: Bench) -> None:
    bench.rollout.open()
    filter_group(bench, 1)
    for index in (0, 3, 2):
        bench.rollout.serve(index)
    bench.start_trainer().finish()
    assert [member.group for member in head_commit(bench).groups] == [group_id(0, index) for index in (0, 2, 3)]


@pytest.mark.parametrize("bench", [REFILL], indirect=True)
def test_a_round_that_could_not_be_refilled_stops_the_run(bench: Bench) -> None:
    """Of the six groups that it may draw two are of use: one of three is missing."""
    bench.rollout.open()
    for index in (0, 1, 2, 3):
        filter_group(bench, index)
    bench.rollout.serve(5)
    bench.rollout.serve(4)
    with pytest.raises(RunStopped, match="round 0: 1 of 3 groups ended unused"):
        bench.start_trainer().finish()


@pytest.mark.parametrize("bench", [{**REFILL, "max_unusable_fraction": 1.0}], indirect=True)
def test_a_redis_that_forgets_an_end_just_before_the_commit_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Redis told when the round was trained it must still tell when its ends are committed."""
    trained = TrainerLedger.trained

    def forgetful(self: TrainerLedger, round: int, updates: int) -> None:
        trained(self, round, updates)
        client: Any = self.client.redis
        client.hset(self.client.keys.group(group_id(round, 1)), "state", "materialized")

    monkeypatch.setattr(TrainerLedger, "trained", forgetful)
    bench.rollout.open()
    filter_group(bench, 1)
    for index in (0, 3, 2):
        bench.rollout.serve(index)
    with pytest.raises(LedgerRefused, match="Redis went back in time before round 0 was committed"):
        bench.start_trainer().finish()
    head = bench.chain.head()
    assert head is not None
    assert head.next_round == 0
