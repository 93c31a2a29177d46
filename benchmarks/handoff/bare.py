"""The same bytes without the rest of the hand-over: whole objects put and got, by boto3 or as our store does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.store.objects import ObjectStore

from .workload import BUCKET, DEADLINE_S

By = Literal["boto3", "libcurl"]
"""`libcurl`: what the hand-over itself goes through, its checksum and its patience with outages included."""


def putting(connections: Connections, by: By) -> Callable[[str, bytes], object]:
    """Writes an object at a key, from any thread."""
    client = connections.s3.client()
    if by == "libcurl":
        return ObjectStore(client, BUCKET, DEADLINE_S).put
    return lambda key, data: client.put_object(Bucket=BUCKET, Key=key, Body=data)


def getting(connections: Connections, by: By) -> Callable[[str], object]:
    """Reads the object at a key, from any thread."""
    client = connections.s3.client()
    if by == "libcurl":
        return ObjectStore(client, BUCKET, DEADLINE_S).get
    return lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
