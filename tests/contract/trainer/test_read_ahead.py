"""A trainer that holds only two groups in memory trains whole rounds, in whatever order they arrive."""

from __future__ import annotations

from functools import partial

import pytest
from rolloutpipe_components.trainer import service
from rolloutpipe_components.trainer.intake import Intake, RoundFacts
from rolloutpipe_components.trainer.rank import read_group

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.ledger.trainer import TrainerLedger

from .conftest import Bench, K

R = 6
SHAPES = {
    "completion": {"kind": "cgp"},
    "submission": {"kind": "cgp", "order": "submission"},
    "serial": {"kind": "serial"},
    "stream, submission": {"kind": "stream", "order": "submission"},
}
ROUND = {"groups_per_round": R}


@pytest.fixture
def one_group_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With U = 1 the trainer then holds two."""
    monkeypatch.setattr(service, "READ_AHEAD", 1)


@pytest.mark.parametrize("bench", [ROUND | shape for shape in SHAPES.values()], ids=SHAPES, indirect=True)
def test_the_head_of_the_line_comes_last(bench: Bench, one_group_ahead: None) -> None:
    """What is announced first is in memory when the head arrives: it must make room."""
    bench.rollout.open()
    for index in reversed(range(1, R)):
        bench.rollout.serve(index)
    trainer = bench.start_trainer()
    trainer.wait_for(lambda: bench.reader.fifo_depth() == len(bench.reader.pending()))
    bench.rollout.serve(0)
    trainer.finish()
    schedule = bench.config.schedule
    by_index = schedule.kind == "serial" or schedule.order == "submission"
    every = [(group_id(0, index), 1) for index in range(R)]
    assert (trainer.accumulated if by_index else sorted(trainer.accumulated)) == every


@pytest.mark.parametrize("bench", [ROUND | {"order": "submission"}], indirect=True)
def test_a_damaged_head_and_a_head_that_ended_do_not_keep_the_line(bench: Bench, one_group_ahead: None) -> None:
    bench.rollout.open()
    head, second = bench.rollout.admit(0), bench.rollout.admit(1)
    for index in reversed(range(2, R)):
        bench.rollout.serve(index)
    trainer = bench.start_trainer()
    bench.rollout.announce(head, bench.rollout.group(head), change_bytes=lambda data: None)
    trainer.wait_for(lambda: bench.reader.group(group_id(0, 0))["state"] == GroupState.DEFERRED)
    bench.rollout.ledger.serving_complete(second)
    bench.rollout.ledger.materialized(second)
    bench.rollout.ledger.filtered(second, "zero variance of rewards", {"reward_mean": 1.0})
    bench.rollout.serve(0)
    trainer.finish()
    assert trainer.accumulated == [(group_id(0, 0), 2), *((group_id(0, index), 1) for index in range(2, R))]


@pytest.mark.parametrize("bench", [ROUND], indirect=True)
def test_a_trainer_that_takes_nothing_holds_no_more_than_its_bound(bench: Bench) -> None:
    bench.rollout.open()
    for index in range(R):
        bench.rollout.serve(index)
    ledger = TrainerLedger.take_role(bench.rollout.ledger.client, "hand", 0)
    facts = RoundFacts(bench.config.run, 1, 0, bench.rollout.version, K, None)
    with Intake(ledger, partial(read_group, bench.store), max_rejections=1, ahead=2, by_index=False) as intake:
        intake.begin_round(facts)
        trained: list[int] = []
        while len(trained) < R:
            gathered = intake.collect()
            assert len(gathered.ready) <= 2
            if len(gathered.ready) == min(2, R - len(trained)):
                intake.take(gathered.ready[:1])
                trained.append(gathered.ready[0].ref.index)
            else:
                assert intake.wait(20)
    assert sorted(trained) == list(range(R))
