"""Reads what a run has left on the servers, raw. Like the checker, it shares no code with the services."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet

from .history import Entry, Evidence


def read_evidence(redis: Any, s3: Any, bucket: str, run: str) -> Evidence:
    """`redis`: a redis-py client with `decode_responses=True`; `s3`: a boto3 client."""
    prefix, folder = f"rolloutpipe:{{{run}}}:", f"runs/{run}/"

    def get(key: str) -> bytes | None:
        if key not in keys:
            return None
        data: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return data

    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=folder)
    keys = frozenset(entry["Key"] for page in pages for entry in page.get("Contents", ()))
    archived = [entry for key in sorted(keys) if key.startswith(f"{folder}ledger/") for entry in _part(get(key) or b"")]
    ledger = dict([*archived, *redis.xrange(f"{prefix}ledger")])  # the archive's newest part may still be in the stream
    fifo = redis.xrange(f"{prefix}fifo")
    pending = redis.xpending_range(f"{prefix}fifo", "trainer", "-", "+", 100_000) if fifo else []
    return Evidence(
        run=run,
        ledger=sorted(ledger.items(), key=lambda entry: _place(entry[0])),
        fifo=fifo,
        registry=redis.xrange(f"{prefix}weights"),
        pending=frozenset(entry["message_id"] for entry in pending),
        keys=keys,
        get=_remembering(get),
    )


def samples_of(evidence: Evidence, key: str) -> list[tuple[list[int], list[int], float]]:
    """(prompt ids, response ids, reward) of each sample of a group's file."""
    table = pyarrow.ipc.open_file(io.BytesIO(evidence.get(key) or b"")).read_all()
    return [(row["prompt_ids"], row["response_ids"], row["reward"]) for row in table.to_pylist()]


def _part(data: bytes) -> list[Entry]:
    """One part of the archive: a row an entry; its fields are columns, null where it has none, and a JSON object."""
    rows = pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()
    return [(row.pop("id"), json.loads(row.pop("fields")) | _texts(row)) for row in rows]


def _texts(row: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in row.items() if value is not None}


def _place(id: str) -> tuple[int, int]:
    ms, number = id.split("-")
    return int(ms), int(number)


def _remembering(get: Callable[[str], bytes | None]) -> Callable[[str], bytes | None]:
    known: dict[str, bytes | None] = {}

    def remembered(key: str) -> bytes | None:
        if key not in known:
            known[key] = get(key)
        return known[key]

    return remembered
