"""Removes a run of which nothing is needed any more: its objects and its keys."""

from __future__ import annotations

import redis

from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.store.objects import ObjectStore


def remove_run(store: ObjectStore, client: redis.Redis, run: str, deadline_s: float) -> None:
    """No service of the run may live. Raises RedisUnavailable, and what ObjectStore raises."""
    ledger = LedgerClient(client, run, deadline_s)

    def remove_keys() -> None:
        for key in list(client.scan_iter(f"{ledger.keys.prefix}*", count=1000)):
            client.delete(key)

    ledger.patiently(remove_keys, "removing the run's keys")
    store.delete_many([info.key for info in store.list(f"runs/{run}/")])
