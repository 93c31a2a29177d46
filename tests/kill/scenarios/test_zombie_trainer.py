"""A trainer was started elsewhere while the old one only stood still; the old one wakes up.

What it then tries is refused, whatever it is; only a commit that was under way can still win, and the successor
adopts it. In no case does the old one take the role back.
"""

from __future__ import annotations

import os
import signal

import pytest
import yaml

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import Fenced, RunStopped
from rolloutpipe_core.ledger.events import RoleTaken

from ...contract.trainer.conftest import Bench, R, RunningTrainer
from .conftest import Run, StandingClient, StandingStore, check_trained_once, commits

ALL = [(group_id(0, index), 1) for index in range(R)]
SCRIPTS = ["assign", "seal", "stepped", "trained", "publish"]


def serve(bench: Bench, round: int = 0) -> None:
    for index in range(R):
        bench.rollout.serve(index, round)


def takeovers(bench: Bench) -> int:
    """How often the role was taken."""
    return sum(isinstance(event, RoleTaken) for event in bench.reader.events())


def claimed(bench: Bench, count: int) -> bool:
    return [row["state"] for row in bench.reader.groups(0)].count(GroupState.CLAIMED) == count


def check_left(old: RunningTrainer) -> None:
    """It ended, and said who has the role now."""
    with pytest.raises(Fenced, match="another trainer took over run") as caught:
        old.finish(60)
    assert f":{os.getpid()} (host:pid); ours was epoch 1" in caught.value.given
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("successor_is_done", [False, True], ids=["role-taken", "published"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_what_the_old_one_tries_is_refused(
    bench: Bench, standing_client: StandingClient, script: str, successor_is_done: bool
) -> None:
    """It stands still before one of its calls; the successor has just taken the role, or has published already."""
    bench.rollout.open()
    standing_client.stop_at = script
    old = bench.start_trainer(client=standing_client)
    serve(bench)
    assert standing_client.stands.wait(60)
    new = bench.start_trainer()
    new.wait_for(lambda: takeovers(bench) == 2)
    if successor_is_done:
        new.finish()
    standing_client.wake()
    check_left(old)
    new.finish()
    assert takeovers(bench) == 2
    check_trained_once(bench)


def test_its_rejection_is_refused(bench: Bench, standing_client: StandingClient) -> None:
    """The successor rejects the damaged announcement itself, once."""
    bench.rollout.open()
    standing_client.stop_at = "reject"
    old = bench.start_trainer(client=standing_client)
    lease = bench.rollout.admit(0)
    bench.rollout.announce(lease, bench.rollout.group(lease), change_bytes=lambda data: data[:-1])
    assert standing_client.stands.wait(60)
    new = bench.start_trainer()
    new.wait_for(lambda: bench.reader.group(group_id(0, 0))["state"] == GroupState.DEFERRED)
    standing_client.wake()
    check_left(old)
    assert bench.reader.group(group_id(0, 0))["rejections"] == "1"
    serve(bench)
    new.finish()
    check_trained_once(bench)


@pytest.mark.parametrize("bench", [{"max_unusable_fraction": 0.0, "rounds": 2}], indirect=True)
def test_it_does_not_wake_a_run_that_its_successor_stopped(bench: Bench, standing_client: StandingClient) -> None:
    """Nor does its own order to stop count."""
    bench.rollout.open()
    standing_client.stop_at = "stop"
    old = bench.start_trainer(client=standing_client)
    lease = bench.rollout.admit(0)
    bench.rollout.ledger.serving_complete(lease)
    bench.rollout.ledger.materialized(lease)
    bench.rollout.ledger.filtered(lease, "zero variance of rewards", {})
    bench.rollout.serve(1)
    bench.rollout.serve(2)
    assert standing_client.stands.wait(60)
    new = bench.start_trainer()
    with pytest.raises(RunStopped):
        new.finish()
    standing_client.wake()
    check_left(old)
    assert bench.reader.run_state()["state"] == "stopped"
    assert takeovers(bench) == 2


@pytest.mark.parametrize("thread", ["read_fifo", "beat"])
def test_one_that_only_waits_leaves_the_run_to_its_successor(
    bench: Bench, standing_client: StandingClient, thread: str
) -> None:
    """Whichever of its threads wakes first: here it sees the next version before any call of its own is refused."""
    bench.rollout.open()
    bench.rollout.serve(0)
    bench.rollout.serve(1)
    old = bench.start_trainer(client=standing_client)
    old.wait_for(lambda: claimed(bench, 2))
    standing_client.stop_at = thread
    assert standing_client.stands.wait(60)
    new = bench.start_trainer()
    new.wait_for(lambda: takeovers(bench) == 2)
    bench.rollout.serve(2)
    new.finish()
    standing_client.wake()
    check_left(old)
    assert takeovers(bench) == 2
    check_trained_once(bench)


@pytest.mark.parametrize("bench", [{"rounds": 2}], indirect=True)
@pytest.mark.parametrize("successor_stands_before", ["seal", "trained"])
def test_its_commit_that_was_under_way_wins_and_is_adopted(
    bench: Bench, standing_client: StandingClient, standing_store: StandingStore, successor_stands_before: str
) -> None:
    """The old one's PUT arrives while the successor replays the round: what the old one trained is what counts."""
    bench.rollout.open()
    old = bench.start_trainer(objects=standing_store)
    serve(bench)
    assert standing_store.stands.wait(60)
    standing_client.stop_at = successor_stands_before
    new = bench.start_trainer(client=standing_client)
    assert standing_client.stands.wait(60)
    standing_store.go.set()
    check_left(old)
    standing_client.wake()
    new.wait_for(new.published)
    (commit,) = commits(bench)
    assert commit.trainer_epoch.number == 1
    bench.rollout.version = commit.version
    bench.rollout.open(1)
    serve(bench, 1)
    new.finish()
    assert [commit.trainer_epoch.number for commit in commits(bench)] == [1, 3], "the successor began anew, as epoch 3"
    assert takeovers(bench) == 3
    assert sorted(old.accumulated) == ALL
    check_trained_once(bench, rounds=2)


def test_its_commit_that_comes_second_loses_and_it_leaves(
    bench: Bench, standing_client: StandingClient, standing_store: StandingStore
) -> None:
    bench.rollout.open()
    old = bench.start_trainer(objects=standing_store)
    serve(bench)
    assert standing_store.stands.wait(60)
    new = bench.start_trainer()
    new.finish()
    standing_store.go.set()
    check_left(old)
    (commit,) = commits(bench)
    assert commit.trainer_epoch.number == 2
    assert takeovers(bench) == 2
    check_trained_once(bench)


def test_a_stopped_process_that_is_continued_ends_with_4(bench: Bench, run: Run) -> None:
    """SIGSTOP in the middle of a round, a second process, SIGCONT."""
    deadlines = bench.config.deadlines.model_copy(update={"group_s": 120.0})
    config = bench.config.model_copy(update={"deadlines": deadlines})
    (run.folder / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    bench.rollout.open()
    bench.rollout.serve(0)
    old = run.start("trainer")
    run.wait_for(lambda: claimed(bench, 1))
    old.popen.send_signal(signal.SIGSTOP)
    new = run.start("trainer")
    run.wait_for(lambda: takeovers(bench) == 2)
    bench.rollout.serve(1)
    run.wait_for(lambda: claimed(bench, 2))
    old.popen.send_signal(signal.SIGCONT)
    assert old.finish(60) == 4
    assert "another trainer took over run" in old.text()
    assert f":{new.popen.pid} (host:pid); ours was epoch 1" in old.text()
    assert "Traceback" not in old.text()
    bench.rollout.serve(2)
    new.succeed()
    assert takeovers(bench) == 2
    check_trained_once(bench)
