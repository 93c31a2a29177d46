"""Puts the fault points into a service's process: the two doors to Redis and S3 are wrapped, no line of theirs changes.

A service that reaches a watched point asks the conductor, and waits until it may go on, or until it is killed.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.store.objects import ObjectStore

from .points import DELETION, transition_of_call, transition_of_key

Naming = Callable[..., tuple[str, list[str]]]
"""(a door's arguments) -> the transition, and what the conductor is told of it"""

WRITES: dict[str, Naming] = {
    "put": lambda key, data: (transition_of_key(key), [key]),
    "put_if_absent": lambda key, data: (transition_of_key(key), [key]),
    "upload_file": lambda path, key, sha256: (transition_of_key(key), [key]),
    "delete": lambda key: (DELETION, [key]),
    "delete_many": lambda keys: (DELETION, []),
    "abort_upload": lambda upload: (DELETION, []),
}
"""The methods of ObjectStore that change the bucket during a run."""
READS = {"answer_headers", "download_file", "endpoint", "get", "head", "list", "now", "unfinished_uploads"}
BEFORE_THE_RUN = {"ensure_bucket"}


def install(service: str, address: str, watched: Collection[str]) -> None:
    """Wrap the doors of this process. `address` is the conductor's Unix socket."""

    def reach(point: str, facts: list[str]) -> None:
        if point in watched:
            ask(address, {"service": service, "pid": os.getpid(), "point": point, "facts": facts})

    _wrap(LedgerClient, "call", _of_script, reach)
    for method, naming in WRITES.items():
        _wrap(ObjectStore, method, naming, reach)


def ask(address: str, question: dict[str, Any]) -> None:
    """Tell the conductor, and wait for its leave. A connection of its own: other threads must not wait, too."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        line.sendall(json.dumps(question).encode() + b"\n")
        line.recv(1)


def _of_script(script: str, keys: object, args: list[object]) -> tuple[str, list[str]]:
    return transition_of_call(script, args), [str(arg) for arg in args]


def _wrap(owner: type, method: str, naming: Naming, reach: Callable[[str, list[str]], None]) -> None:
    real = getattr(owner, method)

    @wraps(real)
    def door(self: Any, *args: Any, **more: Any) -> Any:
        name, facts = naming(*args, **more)
        reach(f"{name}/before", facts)
        result = real(self, *args, **more)
        reach(f"{name}/after", facts)
        return result

    setattr(owner, method, door)
