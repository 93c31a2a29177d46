"""The whole stack as it is shipped (`configs/stack-cpu.yaml`): two SGLang servers, a Megatron trainer of two ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.events import GroupMoved

from .conftest import Process, Run, merged
from .replay import assert_ranks_replay_to_the_bit

ROOT = Path(__file__).resolve().parents[2]
RANK_LOST = 9


def configure(run: Run, sglang_python: Path, **changes: Any) -> None:
    """As it is shipped, but for the servers' addresses and `changes`."""
    shipped = yaml.safe_load((ROOT / "configs" / "stack-cpu.yaml").read_text())
    ours = {"run": run.name, "bucket": run.store.bucket, "engine": {"launch": {"python": str(sglang_python)}}}
    (run.folder / "run.yaml").write_text(yaml.safe_dump(merged(merged(shipped, ours), changes)))


def servers(rollout: Process) -> list[int]:
    return [pid for pid in rollout.children() if b"sglang.launch_server" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def announced(run: Run, round: int) -> int:
    """Groups of the round that came as far as the FIFO."""
    beyond = (GroupState.QUEUED, GroupState.CLAIMED)
    return sum(row["state"] in beyond for row in run.reader.groups(round))


def test_the_reward_rises_the_audit_passes_and_the_report_is_written(run: Run, sglang_python: Path) -> None:
    configure(run, sglang_python, schedule={"rounds": 6})
    result = subprocess.run(
        [Path(sys.executable).with_name("rolloutpipe"), "run", "run.yaml"],
        cwd=run.folder,
        env={**os.environ, **run.connections.environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rounds = json.loads((run.folder / "report.json").read_text())["rounds"]
    rewards = [round["reward_mean"] for round in rounds]
    assert len(rewards) == 6
    assert mean(rewards[-2:]) > rewards[0] + 0.1, rewards
    mismatches = [round["mismatch_max"] for round in rounds if round["mismatch_max"] is not None]
    assert max(mismatches) < 1e-5, mismatches
    assert "<html" in (run.folder / "report.html").read_text()
    audit = run.audit()
    assert audit.passed, audit.findings


def test_a_replica_and_a_trainer_rank_that_are_killed_cost_no_group_and_change_no_weight(
    run: Run, sglang_python: Path
) -> None:
    # Not `stream`, whose portions are timing's: ranks that replay them could not be held to the bit.
    configure(run, sglang_python, schedule={"rounds": 3, "kind": "cgp"}, leases={"lease_s": 5})
    rollout, trainer = run.start("rollout"), run.start("trainer")
    run.wait_for(lambda: announced(run, round=1) >= 1)
    os.kill(servers(rollout)[0], signal.SIGKILL)
    os.kill(trainer.children()[0], signal.SIGKILL)
    assert trainer.finish() == RANK_LOST, trainer.text()
    run.processes.remove(trainer)
    run.start("trainer").succeed()
    rollout.succeed()
    assert "ended by SIGKILL" in rollout.text()
    moves = [event for event in run.reader.events() if isinstance(event, GroupMoved)]
    trained = [event.group for event in moves if event.after is GroupState.TRAINED]
    assert len(trained) == len(set(trained)) == 3 * 16
    audit = run.audit()
    assert audit.passed, audit.findings
    assert_ranks_replay_to_the_bit(run, rounds=3)
