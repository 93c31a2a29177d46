"""A run's commits trained again, by one rank of the `torch` backend: the weights must be those that were published."""

from __future__ import annotations

import torch
import yaml
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from safetensors.torch import load_file
from torch import Tensor

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.commits import Commit, CommitChain
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.weights import fetch_weights

from .conftest import Run


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


def flat(weights: dict[str, Tensor]) -> Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


def assert_replay_is_what_was_published(run: Run) -> None:
    """Ranks sum in another order than one alone, and AdamW moves an element whose gradient is near 0 by up to its rate.

    So the two are held to a thousandth of the way that training went. A group left out makes a fiftieth or more.
    """
    assert len(commits(run)) >= 2
    config = RunConfig.model_validate(yaml.safe_load((run.folder / "run.yaml").read_text()))
    start = flat(load_file(resolve_model(config.model.path) / "model.safetensors"))
    ours, theirs = flat(replayed(run)), flat(published(run))
    assert (ours - theirs).norm() < 1e-3 * (theirs - start).norm()
