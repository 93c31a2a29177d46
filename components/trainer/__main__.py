"""`python -m rolloutpipe_components.trainer CONFIG [--set key=value] [--name NAME]`: the trainer of a run.

With several ranks each runs this command; all but rank 0 are followers (ranks/), which rank 0 starts itself unless
torchrun did.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.service import CACHE, Service, keep_what_is_loaded, run_process, run_service

from .ranks.place import is_follower


def main(service: Service) -> None:
    """Train the run's rounds."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from rolloutpipe_core.store.commits import CommitChain

    from .backends.choice import make_backend
    from .rank import Rank
    from .ranks.opening import open_ranks
    from .service import TrainerParts, TrainerService

    config = service.config
    disable_progress_bar()
    if config.deterministic:
        torch.set_num_threads(1)
    own = Rank(service.store, config.run, CACHE, partial(make_backend, config))
    with service.beacon as beacon, open_ranks(own, config, service.name, beacon) as ranks:
        chain = CommitChain(service.store, config.run)
        parts = TrainerParts(config, service.client, service.reader, service.store, chain, ranks, beacon)
        keep_what_is_loaded()
        TrainerService(parts).run()


def follower(config: RunConfig, name: str) -> None:
    """Be one of the other ranks."""
    from transformers.utils.logging import disable_progress_bar

    from .ranks.opening import follow

    disable_progress_bar()
    keep_what_is_loaded()
    follow(config, name)


if __name__ == "__main__":
    if is_follower(os.environ):
        sys.exit(run_process(f"trainer rank {os.environ['RANK']}", follower))
    sys.exit(run_service("trainer", main))
