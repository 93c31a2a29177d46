"""`python -m rolloutpipe_components.rollout CONFIG [--set key=value] [--name NAME]`: one rollout worker."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rolloutpipe_core.local.state import STATE_FOLDER
from rolloutpipe_core.service import CACHE, Service, Terminated, keep_what_is_loaded, run_service

if TYPE_CHECKING:
    from rolloutpipe_core.ledger.rollout import RolloutLedger

    from .engine import Engine
    from .service import RolloutService

LOGS = Path(STATE_FOLDER) / "logs"
"""Of the servers that a worker starts."""


def main(service: Service) -> None:
    """Put the parts together, prepare the run, serve its rounds."""
    from rolloutpipe_core.data.load import load_prompts
    from rolloutpipe_core.data.models import resolve_model
    from rolloutpipe_core.ledger.rollout import RolloutLedger
    from rolloutpipe_core.preparation import check_not_ahead, prepare_run, register_run
    from rolloutpipe_core.rewards.pool import VerifierPool
    from rolloutpipe_core.store.cache import DirectoryCache
    from rolloutpipe_core.store.commits import CommitChain

    config, client = service.config, service.client
    prompts, model = load_prompts(config.data), resolve_model(config.model.path)

    def restore() -> None:
        head = prepare_run(config, model, prompts.fingerprint, service.store)
        register_run(client, head, service.name)
        check_not_ahead(service.reader, CommitChain(service.store, config.run))

    from transformers.utils.logging import disable_progress_bar

    from .group import GroupServer
    from .service import RolloutParts, RolloutService
    from .tokenize import PromptTokenizer

    disable_progress_bar()
    with service.beacon as beacon, DirectoryCache(CACHE) as cache:
        # The nonce keeps two workers of one name apart: leases are compared with it.
        worker = f"{service.name}-{secrets.token_hex(3)}"
        ledger = RolloutLedger(client, worker, config.leases.lease_s, config.leases.max_attempts)
        tokenizer = PromptTokenizer(model, config.data)
        engine = make_engine(service, ledger)
        verifiers = VerifierPool(config.rewards)
        groups = GroupServer(config, ledger, service.store, engine, verifiers, tokenizer)
        parts = RolloutParts(
            config, ledger, service.reader, service.store, engine, groups, prompts, beacon, cache, restore
        )
        keep_what_is_loaded()
        asyncio.run(_serve(RolloutService(parts)))


def make_engine(service: Service, ledger: RolloutLedger) -> Engine:
    """The configured engine; only its own libraries are imported. What goes wrong with its servers is in the ledger."""
    config = service.config
    if config.engine.kind == "sglang":
        from .engines.sglang.deadlines import Deadlines
        from .engines.sglang.engine import SglangEngine

        deadlines = Deadlines.of(config.engine, config.deadlines.engine_s)
        waiting = service.beacon.waiting
        logs = LOGS / config.run
        return SglangEngine(config.engine, config.model, deadlines, service.name, logs, waiting, ledger.note)
    import torch

    from .engines.torch import TorchEngine

    if config.deterministic:
        torch.set_num_threads(1)
    return TorchEngine(config.engine, config.model, config.deterministic)


async def _serve(rollout: RolloutService) -> None:
    """Prepare the run and serve it; SIGTERM cancels it, so that it hands its groups back."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with rollout.parts.groups.verifiers:
            # Last, when all else has proven to work: it fixes the run's configuration for good.
            rollout.parts.beacon.doing(f"preparing run {rollout.parts.config.run}")
            rollout.parts.restore()
            await rollout.run()
    except asyncio.CancelledError:
        raise Terminated from None
    finally:
        await rollout.parts.engine.close()


if __name__ == "__main__":
    sys.exit(run_service("rollout", main))
