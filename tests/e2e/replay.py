"""A run's commits trained again: the weights must be those that were published.

One rank of the `torch` backend comes near them, as many ranks as were there have them to the bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import yaml
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from rolloutpipe_components.trainer.ranks.place import Place, rank_count
from safetensors.torch import load, load_file
from torch import Tensor

from rolloutpipe_core.config.models import RunConfig, TrainerConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.local.process import free_ports
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.commits import Commit, CommitChain
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.weights import fetch_weights

from .conftest import Run

NO_CLIP = {"clip_low": 1.0, "clip_high": 1e6}
RANK = Path(__file__).parents[1] / "unit/trainer/backends/one_rank.py"


def config_of(run: Run) -> RunConfig:
    return RunConfig.model_validate(yaml.safe_load((run.folder / "run.yaml").read_text()))


def commits(run: Run) -> list[Commit]:
    return [link.commit for link in CommitChain(run.store, run.name).read() if isinstance(link.commit, Commit)]


def published(run: Run, commit: Commit) -> bytes:
    """The file of its version's weights."""
    with DirectoryCache(run.folder / "read") as cache:
        return (fetch_weights(run.store, run.name, commit.weights_sha, cache) / "model.safetensors").read_bytes()


def replayed(run: Run) -> dict[str, Tensor]:
    """The same as one rank makes it of the assignments that the commits record."""
    torch.set_num_threads(1)
    config = config_of(run)
    one = config.model_copy(update={"trainer": TrainerConfig()})
    trainer = TorchTrainer.of(one, resolve_model(config.model.path))
    for commit in commits(run):
        trainer.begin_round()
        for update in commit.updates:
            trainer.begin_update(update.index)
            for group in update.groups:
                trainer.accumulate([decode_group(run.store.get(group.object))])
            trainer.step()
    trainer.export_weights(run.folder / "replayed")
    return load_file(run.folder / "replayed" / "model.safetensors")


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


def assert_replay_is_what_was_published(run: Run) -> None:
    """Of a run whose loss clips nothing (`NO_CLIP`): ranks sum in another order than one alone.

    A token at the very edge of the clip would be clipped on one side alone, and one such token moves the weights by a
    thousandth to a twentieth of the way that training went, as a group left out does. Without it they are within some
    hundred-thousandths; AdamW moves an element whose gradient is near 0 by up to its rate.
    """
    assert len(commits(run)) >= 2
    start = flat(load_file(resolve_model(config_of(run).model.path) / "model.safetensors"))
    ours, theirs = flat(replayed(run)), flat(load(published(run, commits(run)[-1])))
    off = ((ours - theirs).norm() / (theirs - start).norm()).item()
    assert off < 1e-3, f"{off:.2e} of the way"


def assert_ranks_replay_to_the_bit(run: Run, rounds: int) -> None:
    """The first `rounds` rounds again on the configured number of ranks, each update's groups in one portion.

    Not of a `stream` run, in which timing decides the portions.
    """
    folder, config, steps, groups = run.folder / "ranks", config_of(run), [], []
    folder.mkdir()
    for commit in commits(run)[:rounds]:
        steps.append(["round"])
        for update in commit.updates:
            steps.append(["update", update.index, [list(range(len(groups), len(groups) + len(update.groups)))]])
            groups += [run.store.get(group.object) for group in update.groups]
    for place, group in enumerate(groups):
        (folder / f"{place}.arrow").write_bytes(group)
    case = {
        "config": config.model_dump(mode="json"),
        "model": str(resolve_model(config.model.path)),
        "reference": None,
        "steps": [*steps, ["export", "model"]],
        "groups": [f"{place}.arrow" for place in range(len(groups))],
    }
    (folder / "cases.json").write_text(json.dumps({"replay": case}))
    ports, count = free_ports(2), rank_count(config.trainer)
    processes = []
    for rank in range(count):
        place = Place(rank, count, rank, "127.0.0.1", *ports, "token")
        environment = {**os.environ, **place.environment(), "OMP_NUM_THREADS": "1"}
        processes.append(subprocess.Popen([sys.executable, str(RANK), str(folder)], env=environment))
    try:
        assert [process.wait(300) for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
            process.wait()
    again = (folder / "model" / "model.safetensors").read_bytes()
    assert again == published(run, commits(run)[rounds - 1])
