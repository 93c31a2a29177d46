"""`python -m rolloutpipe_components.trainer CONFIG [--set key=value] [--name NAME]`: the trainer of a run."""

from __future__ import annotations

import sys
from functools import partial

from rolloutpipe_core.service import CACHE, Service, run_service


def main(service: Service) -> None:
    """Train the run's rounds."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from rolloutpipe_core.store.commits import CommitChain

    from .backends.torch import TorchTrainer
    from .service import TrainerParts, TrainerService

    config = service.config
    disable_progress_bar()
    if config.deterministic:
        torch.set_num_threads(1)
    with service.beacon as beacon:
        chain, make_trainer = CommitChain(service.store, config.run), partial(TorchTrainer.of, config)
        parts = TrainerParts(config, service.client, service.reader, service.store, chain, make_trainer, beacon, CACHE)
        TrainerService(parts).run()


if __name__ == "__main__":
    sys.exit(run_service("trainer", main))
