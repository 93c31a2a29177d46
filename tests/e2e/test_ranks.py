"""Trainers of two ranks through the real services: started by rank 0, and by torchrun's variables."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.local.process import free_ports

from .conftest import Process, Run
from .replay import NO_CLIP, assert_ranks_replay_to_the_bit, assert_replay_is_what_was_published

TWO = {"data_parallel": 2}
LOST = 9
LATE = 3
START_S = 20
"""Enough for a rank to start."""
LAUNCHER = Path(__file__).with_name("damaged_rank.py")


def claimed(run: Run, round: int = 0) -> bool:
    return any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(round))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_ranks_train_a_run_and_what_one_of_them_reads_damaged_is_rejected_by_both(run: Run) -> None:
    run.configure(trainer=TWO, loss=NO_CLIP)
    trainer = run.start("trainer", launcher=(str(LAUNCHER),))
    run.start("rollout").succeed()
    trainer.succeed()
    rejected = [
        event for event in run.reader.events() if isinstance(event, GroupMoved) and event.group == "r000000-g0000"
    ]
    assert any("rank 1 of 2: altered object" in (event.reason or "") for event in rejected), rejected
    assert run.reader.group("r000000-g0000")["attempt"] == "2"
    audit = run.audit()
    assert audit.passed, audit.findings
    assert_replay_is_what_was_published(run)


def test_a_rank_that_is_killed_ends_the_trainer_with_the_reason_and_the_next_one_replays(run: Run) -> None:
    deadlines = {"publish_s": 240}
    run.configure(trainer=TWO, loss=NO_CLIP, schedule={"rounds": 3}, leases={"lease_s": 2}, deadlines=deadlines)
    rollout, trainer = run.start("rollout"), run.start("trainer")
    run.wait_for(lambda: claimed(run, round=1))
    os.kill(trainer.children()[0], signal.SIGKILL)  # while round 1 is trained: version 2 is the replay's
    assert trainer.finish() == LOST, trainer.text()
    last = trainer.text().splitlines()[-1]
    assert "trainer trainer ends: rank 1 of the trainer is lost; given: its process was ended by SIGKILL" in last
    run.processes.remove(trainer)

    trainer = run.start("trainer")
    run.wait_for(lambda: claimed(run, round=2))
    child = trainer.children()[0]
    assert trainer.stop() == 128 + signal.SIGTERM, trainer.text()
    assert not is_alive(child), "it ends its ranks"
    run.processes.remove(trainer)
    run.start("trainer", "--set", "trainer.data_parallel=1").succeed()  # one rank goes on
    rollout.succeed()
    audit = run.audit()
    assert audit.passed, audit.findings
    assert_replay_is_what_was_published(run)
    assert_ranks_replay_to_the_bit(run, rounds=2)


def test_a_rank_that_is_stopped_ends_the_trainer_by_its_deadline_and_is_named(run: Run) -> None:
    """SIGSTOP: its connection stays open, and no collective breaks by itself."""
    run.configure(trainer=TWO, schedule={"rounds": 50}, deadlines={"rank_s": START_S, "publish_s": 240})
    run.start("rollout")
    trainer = run.start("trainer")
    run.wait_for(lambda: claimed(run, round=1))
    child = trainer.children()[0]
    os.kill(child, signal.SIGSTOP)
    assert trainer.finish(START_S + 30) == LATE, trainer.text()
    last = trainer.text().splitlines()[-1]
    assert f"trainer trainer ends: waited {START_S} s" in last
    assert "sign of life from rank 1" in last
    assert "Traceback" not in trainer.text()
    assert not is_alive(child), "a stopped one, too"


def start_by_variables(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """Both ranks as torchrun starts them."""
    store, control = free_ports(2)
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store),
        "ROLLOUTPIPE_RANK_PORT": str(control),
        "ROLLOUTPIPE_RANK_TOKEN": "of this test",
    }
    started = []
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for rank in range(2):
            patch.setenv("RANK", str(rank))
            patch.setenv("LOCAL_RANK", str(rank))
            started.append(run.start("trainer", name=f"trainer-{rank}"))
    return started


def test_ranks_that_were_started_for_us_end_with_rank_0(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.configure(trainer=TWO, leases={"lease_s": 2})
    rollout = run.start("rollout")
    first = start_by_variables(run, monkeypatch)
    run.wait_for(lambda: claimed(run))
    first[0].popen.kill()
    assert first[1].finish() == LOST, first[1].text()
    assert "rank 0" in first[1].text()
    for process in first:
        run.processes.remove(process)
    for process in [*start_by_variables(run, monkeypatch), rollout]:
        process.succeed()
    audit = run.audit()
    assert audit.passed, audit.findings


def test_another_number_of_ranks_than_configured_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.configure(trainer={"data_parallel": 3})
    refused = start_by_variables(run, monkeypatch)[0]
    assert refused.finish() == 2
    assert "the number of trainer ranks; given: WORLD_SIZE=2; expected: 3" in refused.text()
