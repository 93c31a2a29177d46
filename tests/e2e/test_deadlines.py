"""No silent wait: a service whose partner is gone names it within its deadline, and exits with 3."""

from __future__ import annotations

import signal
from dataclasses import replace

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.domain import GroupState

from .conftest import Run


def test_a_trainer_whose_rollout_died_says_so(run: Run) -> None:
    run.configure(schedule={"rounds": 50}, deadlines={"group_s": 10})
    rollout, trainer = run.start("rollout"), run.start("trainer")
    run.wait_for(lambda: any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(1)))
    rollout.stop(signal.SIGKILL)
    assert trainer.finish(60) == 3
    assert "waited 10 s for round" in trainer.text()
    assert "no rollout worker is alive" in trainer.text() or "rollout workers alive" in trainer.text()
    assert "Traceback" not in trainer.text()


def test_a_rollout_whose_trainer_died_says_so(run: Run) -> None:
    run.configure(schedule={"rounds": 50}, deadlines={"publish_s": 10})
    rollout, trainer = run.start("rollout"), run.start("trainer")
    run.wait_for(lambda: any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(1)))
    trainer.stop(signal.SIGKILL)
    assert rollout.finish(60) == 3
    assert "waited 10 s for version" in rollout.text()
    assert "Traceback" not in rollout.text()


def test_a_trainer_alone_waits_for_the_run_and_says_so(run: Run) -> None:
    run.configure(deadlines={"partner_s": 1})
    trainer = run.start("trainer")
    assert trainer.finish(60) == 3
    assert "waited 1 s for the run's genesis commit" in trainer.text()


def test_redis_that_does_not_come_back_ends_both_with_its_name(run: Run) -> None:
    """Nothing listens at the address: the deadline, the cause and the exit code."""
    run.configure(deadlines={"redis_s": 1})
    run.connections = replace(run.connections, redis=RedisConnection(nodes=(("127.0.0.1", 1),)))
    for service in (run.start("rollout"), run.start("trainer")):
        assert service.finish(60) == 6
        assert "Redis stayed away for 1 s" in service.text()
        assert "Traceback" not in service.text()


def test_a_run_that_failed_at_its_start_keeps_its_name_for_the_mended_configuration(run: Run) -> None:
    run.configure(rewards={"verifier": "no_such_module:verify"})
    rollout = run.start("rollout")
    assert rollout.finish() == 2
    assert "cannot load the verifier" in rollout.text()
    run.configure(schedule={"rounds": 1}).complete()
    assert run.audit().passed
