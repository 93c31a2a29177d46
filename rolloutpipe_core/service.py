"""The frame of a service process: arguments, configuration, log, and how it ends.

`python -m MODULE CONFIG [--set key=value] --name NAME`: the configuration is parsed before anything heavy is imported.
It ends with 0 when the run is complete, else with the error's exit code and its reason on the last line of the log.
"""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local.state import STATE_FOLDER
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.probe import probe_store

TERMINATED = 128 + signal.SIGTERM
CACHE = Path(STATE_FOLDER) / "cache"
"""Downloaded weights, shared by the services of this folder."""

log = logging.getLogger("rolloutpipe")


@dataclass(frozen=True, slots=True)
class Service:
    """What every service process has."""

    config: RunConfig
    name: str
    client: LedgerClient
    reader: LedgerReader
    store: ObjectStore
    beacon: Beacon  # beats while it is entered


def run_service(role: str, main: Callable[[Service], None], arguments: Sequence[str] | None = None) -> int:
    """Parse, connect, check the store's promise, call `main`; returns the exit code."""

    def serve(config: RunConfig, name: str) -> None:
        service = connect(config, role, name, Connections.read())
        service.client.server_time_ms()  # Redis must be there before anything else waits
        probe_store(service.store)
        main(service)

    return run_process(role, serve, arguments)


def run_process(role: str, main: Callable[[RunConfig, str], None], arguments: Sequence[str] | None = None) -> int:
    """Parse, call `main` with the configuration and the service's name; returns the exit code."""
    options = _parse(role, arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        main(load_config(options.config, options.set), options.name)
    except RolloutPipeError as error:
        log.error("%s %s ends: %s", role, options.name, error)
        return error.exit_code
    except (KeyboardInterrupt, Terminated):
        log.info("%s %s was told to stop", role, options.name)
        return TERMINATED
    log.info("%s %s: the run is complete", role, options.name)
    return 0


def connect(config: RunConfig, role: str, name: str, connections: Connections) -> Service:
    """The clients of one service, with the config's deadlines."""
    deadlines = config.deadlines
    redis = connections.redis.client()
    client = LedgerClient(redis, config.run, deadlines.redis_s, log_outage)
    beacon = Beacon(client, role, name, config.leases.heartbeat_s)

    def store_is_away(reason: str) -> None:
        log_outage(reason)
        beacon.outage(reason, deadlines.store_s)

    return Service(
        config=config,
        name=name,
        client=client,
        reader=LedgerReader(redis, config.run, deadlines.redis_s),
        store=ObjectStore(connections.s3.client(), config.bucket, deadlines.store_s, store_is_away),
        beacon=beacon,
    )


class Terminated(BaseException):
    """SIGTERM: leave in good order."""


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def keep_what_is_loaded() -> None:
    """Take all that is loaded by now out of the garbage collector's sight; it stays as long as the process.

    Libraries like torch are a quarter of a million objects. Each full collection looks at all that it sees, for a tenth
    of a second in which no thread of the process gets on.
    """
    gc.collect()
    gc.freeze()


def log_outage(reason: str) -> None:
    """Say that Redis or the store is away; an empty reason says that it is back."""
    if reason:
        log.warning("waits for %s", reason)


def _parse(role: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"rolloutpipe {role}", description=f"The {role} service of a run.")
    parser.add_argument("config", type=Path, help="the run's YAML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change one key of the config")
    parser.add_argument("--name", default=f"{role}-{socket.gethostname()}", help="the service's name in `status`")
    return parser.parse_args(arguments)
