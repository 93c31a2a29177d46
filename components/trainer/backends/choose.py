"""The backend that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput

from ..trainer import Trainer


def make_backend(config: RunConfig, directory: Path, reference: Path | None = None) -> Trainer:
    """The trainer of a run, at the weights in `directory`; with several ranks each makes its own, at the same time.

    `reference`: folder of the run's version 0, for the KL term. Raises BadInput.
    """
    if config.trainer.kind == "torch":
        from .torch import TorchTrainer

        return TorchTrainer.of(config, directory, reference)
    try:
        from .megatron.trainer import MegatronTrainer
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("megatron"):
            raise
        raise BadInput(
            "megatron-core is not installed",
            given="trainer.kind megatron",
            remedy="pip install 'rolloutpipe[megatron]' (docs/megatron.md)",
        ) from error
    return MegatronTrainer.of(config, directory, reference)
