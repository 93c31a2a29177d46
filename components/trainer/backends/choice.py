"""The backend that a configuration asks for, each imported only when it is."""

from __future__ import annotations

import sys
from pathlib import Path

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput

from ..trainer import Backend


def make_backend(config: RunConfig, directory: Path, reference: Path | None) -> Backend:
    """One rank's, at the weights in `directory`; `reference` is the folder of the run's version 0, if it is needed.

    Raises BadInput where the backend's library is not installed.
    """
    if config.trainer.kind == "torch":
        from .torch import TorchTrainer

        return TorchTrainer.of(config, directory, reference)
    try:
        from .megatron.trainer import MegatronTrainer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("megatron", "triton"):
            raise
        raise BadInput(
            "trainer.kind megatron needs a package that is not installed",
            given=f"no {error.name} in {sys.executable}",
            remedy="pip install 'rolloutpipe[megatron]'",
        ) from error
    return MegatronTrainer.of(config, directory, reference)
