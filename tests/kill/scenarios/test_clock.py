"""A clock that is an hour off: S3 refuses what is signed with it, and nothing else goes by it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import StoreMisconfigured
from rolloutpipe_core.ledger.events import UpdateStepped
from rolloutpipe_core.store.groups import encode_group, reference_of

from ...contract.rollout.conftest import HoldingStore, MakeRig, make_rig, next_walk_model, walk_model
from ...contract.trainer.conftest import Bench
from .conftest import Run, check_complete, check_trained_once
from .skewed_clock import skew_signatures

__all__ = ["make_rig", "next_walk_model", "walk_model"]

HOUR_S = 3600
LAUNCHER = str(Path(__file__).parent / "skewed_clock.py")


def test_a_service_whose_clock_is_off_stops_at_once(run: Run) -> None:
    """Before it has written anything; one is an hour ahead, the other an hour behind."""
    ahead = run.start("trainer", launcher=(LAUNCHER, str(HOUR_S), "all"))
    behind = run.start("rollout", launcher=(LAUNCHER, str(-HOUR_S), "all"))
    for service in (ahead, behind):
        assert service.finish() == 7, service.text()
        assert "ends: the object store refuses" in service.text()
        assert "RequestTimeTooSkewed" in service.text()
        assert "set this machine's clock" in service.text()
        assert "waits for object store" not in service.text()
        assert "Traceback" not in service.text()
    assert run.reader.run_state() == {}
    assert list(run.store.list(f"runs/{run.name}/")) == []


def test_a_trainer_whose_clock_jumps_stops_and_rejects_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rollout.open()
    trainer = bench.start_trainer()
    bench.rollout.serve(0)
    trainer.wait_for(lambda: bench.reader.group(group_id(0, 0))["state"] == GroupState.CLAIMED)
    rollout, lease = bench.rollout, bench.rollout.admit(1)
    data = encode_group(rollout.group(lease))
    ref = reference_of(rollout.group(lease), data)
    bench.store.put(ref.object, data)
    rollout.ledger.serving_complete(lease)
    rollout.ledger.materialized(lease)
    with monkeypatch.context() as patch:
        skew_signatures(HOUR_S, patch.setattr)
        rollout.ledger.announce(lease, ref, 8, 5)
        with pytest.raises(StoreMisconfigured, match=r"refuses: get .*RequestTimeTooSkewed.*clock") as caught:
            trainer.finish()
    assert caught.value.exit_code == 7
    row = bench.reader.group(group_id(0, 1))
    assert (row["state"], row["rejections"]) == (GroupState.QUEUED, "0")
    bench.rollout.serve(2)
    bench.start_trainer().finish()
    check_trained_once(bench)


def test_a_worker_whose_clock_jumps_stops_and_hands_its_groups_back(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    store = HoldingStore(rig.store)

    async def scenario() -> None:
        async with rig.worker(store=store) as worker:
            await rig.until(lambda: GroupState.MATERIALIZED in rig.states())
            skew_signatures(HOUR_S, monkeypatch.setattr)
            store.go.set()
            await worker.finish()

    with pytest.raises(StoreMisconfigured, match=r"refuses: put .*RequestTimeTooSkewed.*clock") as caught:
        asyncio.run(scenario())
    assert caught.value.exit_code == 7
    assert set(rig.states()) == {GroupState.DEFERRED}
    assert {row["rejections"] for row in rig.reader.groups(0)} == {"0"}


def test_leases_deadlines_and_timeline_go_by_the_clock_of_redis(run: Run) -> None:
    """Both services sign rightly, and have wall clocks that are two hours apart."""
    run.configure(deadlines={"group_s": 300, "publish_s": 300})
    started_ms = run.reader.server_time_ms()
    trainer = run.start("trainer", launcher=(LAUNCHER, str(HOUR_S), "rest"))
    rollout = run.start("rollout", launcher=(LAUNCHER, str(-HOUR_S), "rest"))
    for service in (trainer, rollout):
        service.succeed()
    apart = first_logged(trainer.text()) - first_logged(rollout.text())
    assert apart > timedelta(hours=1), "their clocks were off"
    ended_ms = run.reader.server_time_ms()
    events = list(run.reader.events())
    assert all(started_ms <= event.at_ms <= ended_ms for event in events)
    busy = [pair for event in events if isinstance(event, UpdateStepped) for pair in event.busy_ms]
    assert busy
    assert all(started_ms <= start <= end <= ended_ms for start, end in busy)
    assert {row["reason"] for round in range(2) for row in run.reader.groups(round)} == {""}, "no lease ran out"
    check_complete(run, rounds=2)


def first_logged(text: str) -> datetime:
    return datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S")
