"""From a command's arguments to the run it speaks of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput, ObjectMissing
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.runs import list_runs

if TYPE_CHECKING:
    from rolloutpipe_core.store.objects import ObjectStore

DEADLINE_S = 3.0
"""How long a reading command waits for a server that is away."""


def reader_of(run: str | None, connections: Connections | None = None) -> LedgerReader:
    """The ledger of a run, or of the newest one. Raises BadInput when there is none."""
    servers = connections or Connections.read()
    client = servers.redis.client()
    return LedgerReader(client, find_run(client, run), DEADLINE_S, lambda bucket: store_of(bucket, servers))


def find_run(client: redis.Redis, name: str | None) -> str:
    """The name if Redis has such a run; without a name, the newest run's."""
    runs = list(list_runs(client, DEADLINE_S))
    if not runs:
        raise BadInput("there is no run in this Redis yet", remedy="start one with `rolloutpipe run CONFIG`")
    if name is not None and name not in runs:
        raise BadInput("no such run in this Redis", given=name, expected=f"one of: {', '.join(sorted(runs))}")
    return name or runs[0]


def store_of(bucket: str, connections: Connections | None = None) -> ObjectStore:
    from rolloutpipe_core.store.objects import ObjectStore  # here, because boto3 takes its time to load

    return ObjectStore((connections or Connections.read()).s3.client(), bucket, DEADLINE_S)


def stored_config(store: ObjectStore, run: str) -> RunConfig:
    """The configuration that a run was started with. Raises BadInput when the bucket does not have it."""
    key = f"runs/{run}/config.json"
    try:
        return RunConfig.model_validate_json(store.get(key))
    except ObjectMissing:
        raise BadInput(
            "this bucket does not have the run", given=f"{store.bucket}/{key}", remedy="name its bucket with --bucket"
        ) from None


def report_paths(output: Path) -> tuple[Path, Path]:
    """The report's two files: the page, and the same numbers as JSON beside it; `output` names either.

    Raises BadInput when they could not be written.
    """
    check_output("report", output, "report.html")
    data = output.with_suffix(".json")
    return (output.with_suffix(".html") if output == data else output), data


def check_output(what: str, output: Path, example: str) -> None:
    """Raise BadInput when the file could not be written: said before the work, not after it."""
    if output.is_dir():
        raise BadInput(f"the {what} is a file, not a folder", given=str(output), expected=f"for example {example}")
    if not os.access(output.parent, os.W_OK | os.X_OK) or not output.parent.is_dir():
        raise BadInput(
            f"cannot write the {what}", given=str(output), expected=f"an existing, writable folder {output.parent}"
        )
