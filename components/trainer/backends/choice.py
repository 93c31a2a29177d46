"""The backend that a configuration asks for, each imported only when it is."""

from __future__ import annotations

from pathlib import Path

from rolloutpipe_core.config.models import RunConfig

from ..trainer import Backend


def make_backend(config: RunConfig, directory: Path, reference: Path | None) -> Backend:
    """One rank's, at the weights in `directory`; `reference` is the folder of the run's version 0, if it is needed."""
    if config.trainer.kind == "megatron":
        from .megatron.trainer import MegatronTrainer

        return MegatronTrainer.of(config, directory, reference)
    from .torch import TorchTrainer

    return TorchTrainer.of(config, directory, reference)
