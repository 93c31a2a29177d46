"""Stop a run, also in the middle of a round, and start it again: it goes on, and the audit passes."""

from __future__ import annotations

import signal

import pytest

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.store.commits import CommitChain

from .conftest import Run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_both_services_stopped_within_a_round(run: Run, number: signal.Signals) -> None:
    run.configure(schedule={"rounds": 50}, leases={"lease_s": 2})
    services = [run.start("rollout"), run.start("trainer")]
    run.wait_for(lambda: any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(1)))
    for service in services:
        service.popen.send_signal(number)
    for service in services:
        assert service.finish() == (143 if number == signal.SIGTERM else -9), service.text()
    reached = int(run.reader.run_state()["version"])
    run.configure(schedule={"rounds": reached + 2}, leases={"lease_s": 2}).complete()
    assert run.reader.run_state()["version"] == str(reached + 2)
    audit = run.audit()
    assert audit.passed, audit.findings


def test_a_finished_run_goes_on_with_more_rounds(run: Run) -> None:
    run.configure(schedule={"rounds": 1}).complete()
    run.configure(schedule={"rounds": 2, "kind": "stream"}).complete()
    assert len(CommitChain(run.store, run.name).read()) == 3
    assert run.audit().passed


def test_a_resume_with_another_configuration_is_refused_and_names_the_keys(run: Run) -> None:
    run.configure(schedule={"rounds": 1}).complete()
    run.configure(schedule={"rounds": 2, "samples_per_group": 2}, optimizer={"learning_rate": 1.0})
    rollout = run.start("rollout")
    assert rollout.finish() == 2
    assert "schedule.samples_per_group: was 4, now 2" in rollout.text()
    assert "optimizer.learning_rate: was 0.0001, now 1.0" in rollout.text()
    assert "Traceback" not in rollout.text()
