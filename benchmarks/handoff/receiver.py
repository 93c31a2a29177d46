"""The trainer side of the measurements: the service's intake and batches, and bare reading of the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from rolloutpipe_components.trainer.batch import make_batch
from rolloutpipe_components.trainer.intake import FETCHERS, Intake, RoundFacts
from rolloutpipe_components.trainer.rank import read_group
from rolloutpipe_components.trainer.service import READ_AHEAD

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group, WeightVersion
from rolloutpipe_core.errors import DeadlineExceeded
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.store.objects import ObjectStore

from .workload import DEADLINE_S, VOCABULARY


def receive_groups(
    config: RunConfig, client: LedgerClient, store: ObjectStore, version: WeightVersion
) -> dict[str, int]:
    """Take all groups of round 0 as they come; returns when each was tensors, ns of the monotonic clock.

    Raises DeadlineExceeded when none comes for a minute.
    """
    ledger = TrainerLedger.take_role(client, "bench", 0)
    size = config.schedule.samples_per_group
    tensors: dict[str, int] = {}
    with Intake(ledger, partial(read_group, store), max_rejections=0, ahead=READ_AHEAD, by_index=False) as intake:
        intake.begin_round(RoundFacts(config.run, 1, 0, version, size, VOCABULARY))
        while len(tensors) < config.schedule.groups_per_round:
            ready = intake.collect().ready
            intake.take(ready)
            for one in ready:
                _to_tensors(one.group)
                tensors[one.ref.group] = time.monotonic_ns()
            if not ready and not intake.wait(DEADLINE_S):
                raise DeadlineExceeded(f"no group came for {DEADLINE_S:g} s", given=f"{len(tensors)} came")
    return tensors


def receive_bytes(get: Callable[[str], object], keys: Iterable[str]) -> int:
    """Get every object as soon as its key is named, with as many threads as the intake has; returns when all are in."""
    with ThreadPoolExecutor(FETCHERS) as pool:
        futures = [pool.submit(get, key) for key in keys]
    for future in futures:
        future.result()
    return time.monotonic_ns()


def _to_tensors(group: Group) -> None:
    make_batch(group.samples, "token_mean", torch.device("cpu"))
