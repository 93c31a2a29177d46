"""Trains a chain again, from the groups and the assignments that its commits record: the versions must be the same.

This is what is promised where timing decides which groups share an update (`order: completion`). Unlike the checker it
uses the trainer's own backend, in one process that nothing disturbs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from transformers.utils.logging import disable_progress_bar

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory
from rolloutpipe_core.store.groups import decode_group

from .history import Evidence, History


def replayed_weights(evidence: Evidence, config: RunConfig) -> Iterator[str]:
    """The manifest sha256 of versions 1, 2, ... as training the commits' updates in their order makes them."""
    torch.set_num_threads(1)
    disable_progress_bar()
    trainer = TorchTrainer.of(config, resolve_model(config.model.path))
    for commit in History(evidence).commits:
        trainer.begin_round()
        for update in commit.body["updates"]:
            trainer.begin_update(update["index"])
            for group in update["groups"]:
                trainer.accumulate([decode_group(evidence.get(group["object"]) or b"")])
            trainer.step()
        with tempfile.TemporaryDirectory() as folder:
            trainer.export_weights(Path(folder))
            yield sha256_hex(describe_directory(Path(folder)).to_bytes())
