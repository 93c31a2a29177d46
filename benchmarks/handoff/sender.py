"""`python -m rolloutpipe_benchmarks.handoff.sender`: the rollout side of the measurements, a process of its own.

One JSON line a request on standard input, one a reply on standard output; the run is prepared by the other side.

    {"kind": "groups", "run": ..., "groups": N, "at_once": C, "pause_s": P}   the service's hand-over
    {"kind": "bytes", "prefix": ..., "groups": N, "at_once": C, "by": ...}    the same bytes alone (bare.py)

Reply "ready"; on the next line all are sent, C at once, one every P seconds. `bytes` names each key when it is there;
the last reply holds what was measured, in ns of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolloutpipe_components.rollout.group import hand_over

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group, WeightVersion
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Lease, RolloutLedger
from rolloutpipe_core.service import keep_what_is_loaded
from rolloutpipe_core.store.groups import encode_group
from rolloutpipe_core.store.objects import ObjectStore

from .bare import By, putting
from .workload import BUCKET, DEADLINE_S, LEASE_S, Shape, cohort, expectation, make_config, make_group


def say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")  # one write: threads speak, too
    sys.stdout.flush()


def wait_for_go() -> None:
    keep_what_is_loaded()
    say("ready")
    sys.stdin.readline()


def send_groups(connections: Connections, run: str, groups: int, at_once: int, pause_s: float) -> dict[str, Any]:
    """All groups stand before `materialized` when the clock starts, as they do when their rewards are in."""
    config = make_config(run, groups)
    client = LedgerClient(connections.redis.client(), run, DEADLINE_S)
    store = ObjectStore(connections.s3.client(), BUCKET, DEADLINE_S)
    ledger = RolloutLedger(client, "bench", LEASE_S, max_attempts=1)
    found = LedgerReader(connections.redis.client(), run, DEADLINE_S).latest_version()
    assert found is not None, "the other side prepares the run"
    version = found[0]
    opened = cohort(config, 0, version)
    ledger.open_round(opened, config.schedule)
    leases = [ledger.admit(group) for group in opened.groups]
    for lease in leases:
        ledger.serving_complete(lease)
    made = [make_group(run, 0, index, version, Shape()) for index in range(groups)]
    wait_for_go()
    return asyncio.run(_send(config, ledger, store, version, list(zip(leases, made, strict=True)), at_once, pause_s))


async def _send(
    config: RunConfig,
    ledger: RolloutLedger,
    store: ObjectStore,
    version: WeightVersion,
    work: list[tuple[Lease, Group]],
    at_once: int,
    pause_s: float,
) -> dict[str, Any]:
    places = asyncio.Semaphore(at_once)
    materialized: dict[str, int] = {}
    announced: dict[str, int] = {}

    async def send(lease: Lease, group: Group) -> None:
        async with places:
            materialized[group.id] = time.monotonic_ns()
            ledger.materialized(lease)
            await hand_over(ledger, store, lease, group, expectation(config, version))
            announced[group.id] = time.monotonic_ns()

    tasks = []
    for lease, group in work:
        tasks.append(asyncio.create_task(send(lease, group)))
        await asyncio.sleep(pause_s)
    await asyncio.gather(*tasks)
    return {"materialized": materialized, "announced": announced}


def send_bytes(connections: Connections, prefix: str, groups: int, at_once: int, by: By) -> dict[str, Any]:
    write = putting(connections, by)
    version = WeightVersion(0, "ab" * 32)
    files = [encode_group(make_group("bare", 0, index, version, Shape())) for index in range(groups)]

    def put(index: int) -> None:
        write(f"{prefix}/{index}", files[index])
        say(f"{prefix}/{index}")

    wait_for_go()
    started = time.monotonic_ns()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(put, range(groups)))
    return {"started": started}


def main() -> None:
    """Serve requests until standard input ends."""
    connections = Connections.read()
    for line in sys.stdin:
        request = json.loads(line)
        kind = request.pop("kind")
        say(send_groups(connections, **request) if kind == "groups" else send_bytes(connections, **request))


if __name__ == "__main__":
    main()
