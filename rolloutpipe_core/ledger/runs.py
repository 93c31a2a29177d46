"""Which runs a Redis knows."""

from __future__ import annotations

import re
from typing import Any

import redis

from rolloutpipe_core.ledger.client import LedgerClient

RUN_KEY = re.compile(r"rolloutpipe:\{([^}]*)\}:run")


def list_runs(client: redis.Redis, deadline_s: float) -> dict[str, dict[str, str]]:
    """Every run's hash (see `LedgerReader.run_state`) by its name, the newest run first. Raises RedisUnavailable."""

    def scan() -> dict[str, dict[str, str]]:
        names: list[Any] = [
            key for key in client.scan_iter("rolloutpipe:{*}:run", count=1000) if RUN_KEY.fullmatch(key)
        ]
        return {RUN_KEY.fullmatch(key)[1]: dict(client.hgetall(key)) for key in names}  # type: ignore[index, arg-type]

    runs = LedgerClient(client, "any", deadline_s).patiently(scan, "SCAN for runs")
    return dict(sorted(runs.items(), key=lambda run: -int(run[1].get("prepared_ms", 0))))
