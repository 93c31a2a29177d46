"""Trainers of two ranks through the real services: started by rank 0, and by torchrun's variables."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import yaml
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from safetensors.torch import load_file
from torch import Tensor

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.local.process import free_ports
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.commits import Commit, CommitChain
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.weights import fetch_weights

from .conftest import Process, Run

TWO = {"data_parallel": 2}
LOST = 9
LAUNCHER = Path(__file__).with_name("damaged_rank.py")


def commits(run: Run) -> list[Commit]:
    return [link.commit for link in CommitChain(run.store, run.name).read() if isinstance(link.commit, Commit)]


def published(run: Run) -> dict[str, Tensor]:
    """The newest version's weights."""
    with DirectoryCache(run.folder / "read") as cache:
        folder = fetch_weights(run.store, run.name, commits(run)[-1].weights_sha, cache)
        return load_file(folder / "model.safetensors")


def replayed(run: Run) -> dict[str, Tensor]:
    """The same as one rank makes it of the assignments that the commits record."""
    torch.set_num_threads(1)
    config = RunConfig.model_validate(yaml.safe_load((run.folder / "run.yaml").read_text()) | {"trainer": {}})
    trainer = TorchTrainer.of(config, resolve_model(config.model.path))
    for commit in commits(run):
        trainer.begin_round()
        for update in commit.updates:
            trainer.begin_update(update.index)
            for group in update.groups:
                trainer.accumulate([decode_group(run.store.get(group.object))])
            trainer.step()
    trainer.export_weights(run.folder / "replayed")
    return load_file(run.folder / "replayed" / "model.safetensors")


def assert_replay_is_what_was_published(run: Run) -> None:
    """Two ranks sum in another order than one. AdamW moves an element whose gradient is near 0 by up to its rate."""
    ours, theirs = replayed(run), published(run)
    assert ours.keys() == theirs.keys()
    differences = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in ours])
    assert differences.max() < 1e-4, "a rate of 1e-4"
    assert differences.mean() < 1e-7
    assert len(commits(run)) >= 2


def claimed(run: Run, round: int = 0) -> bool:
    return any(row["state"] == GroupState.CLAIMED for row in run.reader.groups(round))


def child_of(process: Process) -> int:
    pid = process.popen.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_two_ranks_train_a_run_and_what_one_of_them_reads_damaged_is_rejected_by_both(run: Run) -> None:
    run.configure(trainer=TWO)
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
    run.configure(trainer=TWO, schedule={"rounds": 3}, leases={"lease_s": 2}, deadlines={"publish_s": 240})
    rollout, trainer = run.start("rollout"), run.start("trainer")
    run.wait_for(lambda: claimed(run, round=1))
    os.kill(child_of(trainer), signal.SIGKILL)
    assert trainer.finish() == LOST, trainer.text()
    last = trainer.text().splitlines()[-1]
    assert "trainer trainer ends: rank 1 of the trainer is lost; given: its process was ended by SIGKILL" in last
    run.processes.remove(trainer)

    trainer = run.start("trainer")
    run.wait_for(lambda: claimed(run, round=2))
    child = child_of(trainer)
    assert trainer.stop() == 128 + signal.SIGTERM, trainer.text()
    assert not is_alive(child), "it ends its ranks"
    run.processes.remove(trainer)
    run.start("trainer", "--set", "trainer.data_parallel=1").succeed()  # one rank goes on
    rollout.succeed()
    audit = run.audit()
    assert audit.passed, audit.findings
    assert_replay_is_what_was_published(run)


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
