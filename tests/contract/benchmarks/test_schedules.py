"""One small round of the real services, and a replay beside a rollout, as `bench schedules` measures them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rolloutpipe_benchmarks.schedules.measure import Bench, CellFailed, Inputs
from rolloutpipe_benchmarks.schedules.model import write_model, write_prompts
from rolloutpipe_benchmarks.schedules.plan import Cell, Regime, Shape
from rolloutpipe_benchmarks.schedules.processes import Cores, ServiceStarter, fork_server

from rolloutpipe_core.local.servers import LocalServers

GROUPS = 8
SMALL = Regime("small", Shape(60, 16, 32, 1, 1, 1, 8), prompt_tokens=8, max_new_tokens=12)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # restored afterwards: the fork server's start sets them
    inputs = Inputs(tmp_path / "model", tmp_path / "prompts.jsonl")
    write_model(SMALL.shape, 64, inputs.model)
    write_prompts(SMALL.prompt_tokens, GROUPS, inputs.prompts)
    starter = ServiceStarter(fork_server(), tmp_path, tmp_path / "logs", Cores.choose(os.sched_getaffinity(0)))
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        yield Bench(servers.connections, starter, {SMALL.name: inputs}, GROUPS)


def test_a_cell_and_a_floor_are_measured_and_a_failure_is_told(bench: Bench) -> None:
    measured = bench.cell(SMALL, Cell(SMALL.name, 2, "stream", 8), 0).metrics
    assert (measured["state"], measured["groups_trained"], measured["updates"]) == ("published", GROUPS, GROUPS / 2)
    assert 0 < measured["trainer_busy_s"] <= measured["rollout_to_train_end_s"] <= measured["round_period_s"]
    assert 0.1 < measured["reward_mean"] < 0.9, "a verifier that tells responses apart"

    recorded = bench.record(SMALL, 2, "floor-first")
    floor, following = bench.replay(SMALL, recorded, GROUPS, "floor-next", 0)
    following.close()
    assert floor.groups_per_update == 2
    assert max(floor.rollout_s, floor.training_s) < floor.floor_s < floor.rollout_s + floor.training_s

    (bench.inputs[SMALL.name].model / "tokenizer.json").unlink()
    with pytest.raises(CellFailed, match=r"rollout of run small-u2-cgp-r1 exited with 2; given: .*tokenizer"):
        bench.cell(SMALL, Cell(SMALL.name, 2, "cgp", None), 1)
