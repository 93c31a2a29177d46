"""Latency from `materialized` to tensors, and throughput beside the bare store's, on the connected servers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

from rolloutpipe_core.cli.processes import service_environment
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.service import keep_what_is_loaded
from rolloutpipe_core.store.groups import encode_group

from .bare import By, getting
from .receiver import receive_bytes, receive_groups
from .workload import Shape, make_config, make_group, prepare

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(10**6):
        pass
"""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one group."""

    groups: int
    p50_ms: float  # from `materialized` to tensors
    p99_ms: float
    announced_p50_ms: float  # of it, until the announcement: encode, gate, upload, announce
    tensors_p50_ms: float  # and from there on: read, fetch, hash, decode, gate, tensors


@dataclass(frozen=True, slots=True)
class Throughput:
    """Groups a second at saturation; medians over the turns."""

    groups: int
    at_once: int
    group_bytes: int
    turns: int
    groups_s: float  # materialized to tensors
    bare_groups_s: float  # the same bytes put and got by boto3 alone, with as many at once
    ratio: float  # to it; median of the turns' ratios
    least: float
    most: float
    same_client_groups_s: float  # the same bytes alone, by what the hand-over goes through
    same_client_ratio: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Groups a second of each contestant in one turn."""

    ours: float
    boto3: float
    libcurl: float


class Sender:
    """The sending process. A context manager."""

    def __init__(self, connections: Connections) -> None:
        environment = {**service_environment(os.environ), **connections.environment()}
        command = [sys.executable, "-m", "rolloutpipe_benchmarks.handoff.sender"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, process_group=0
        )  # in a group of its own: Ctrl-C is ours, and we end it

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        assert self._process.stdin is not None
        if failed is not None:  # it may be in the middle of something
            self._process.kill()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def prepare(self, request: Mapping[str, Any]) -> None:
        """Ask for something; returns when all is ready to be sent."""
        self._write(json.dumps(request))
        assert self.read() == "ready"

    def go(self) -> None:
        self._write("")

    def read(self) -> Any:
        """The next reply. Raises RolloutPipeError when the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RolloutPipeError("the sending process ended", given=f"exit code {self._process.wait(10)}")
        return json.loads(line)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


@contextmanager
def busy_cores() -> Iterator[None]:
    """A compute loop on each of this process's cores."""
    with ExitStack() as stack:
        for core in sorted(os.sched_getaffinity(0)):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN, str(core)], process_group=0))
            stack.callback(process.kill)
        yield


def measure_latency(connections: Connections, sender: Sender, groups: int, pause_s: float) -> Latency:
    """One group every `pause_s`: none waits for another."""
    sent, tensors = _hand_over(connections, sender, groups, at_once=groups, pause_s=pause_s)
    return latency_of(sent["materialized"], sent["announced"], tensors)


def latency_of(materialized: Mapping[str, int], announced: Mapping[str, int], tensors: Mapping[str, int]) -> Latency:
    """From instants in ns, by group."""
    whole = [(tensors[group] - start) / 1e6 for group, start in materialized.items()]
    return Latency(
        groups=len(whole),
        p50_ms=median(whole),
        p99_ms=quantiles(whole, n=100, method="inclusive")[98],
        announced_p50_ms=median((announced[group] - start) / 1e6 for group, start in materialized.items()),
        tensors_p50_ms=median((end - announced[group]) / 1e6 for group, end in tensors.items()),
    )


def measure_throughput(connections: Connections, sender: Sender, groups: int, at_once: int, turns: int) -> Throughput:
    """All contestants in turn, so that a change in the machine's load meets all; each turn begins with another."""
    contestants = {
        "ours": partial(_our_rate, connections, sender, groups, at_once),
        "boto3": partial(_bare_rate, connections, sender, groups, at_once, "boto3"),
        "libcurl": partial(_bare_rate, connections, sender, groups, at_once, "libcurl"),
    }
    order = list(contestants)
    measured = []
    for _ in range(turns):
        measured.append(Turn(**{name: contestants[name]() for name in order}))
        order = [*order[1:], order[0]]
    group_bytes = len(encode_group(make_group("bare", 0, 0, WeightVersion(0, "ab" * 32), Shape())))
    return throughput_of(measured, groups, at_once, group_bytes)


def throughput_of(turns: Sequence[Turn], groups: int, at_once: int, group_bytes: int) -> Throughput:
    ratios = [turn.ours / turn.boto3 for turn in turns]
    return Throughput(
        groups=groups,
        at_once=at_once,
        group_bytes=group_bytes,
        turns=len(turns),
        groups_s=median(turn.ours for turn in turns),
        bare_groups_s=median(turn.boto3 for turn in turns),
        ratio=median(ratios),
        least=min(ratios),
        most=max(ratios),
        same_client_groups_s=median(turn.libcurl for turn in turns),
        same_client_ratio=median(turn.ours / turn.libcurl for turn in turns),
    )


def _our_rate(connections: Connections, sender: Sender, groups: int, at_once: int) -> float:
    sent, tensors = _hand_over(connections, sender, groups, at_once, pause_s=0)
    return groups * 1e9 / (max(tensors.values()) - min(sent["materialized"].values()))


def _bare_rate(connections: Connections, sender: Sender, groups: int, at_once: int, by: By) -> float:
    prefix = f"bare/{secrets.token_hex(4)}"
    get = getting(connections, by)
    keep_what_is_loaded()
    sender.prepare({"kind": "bytes", "prefix": prefix, "groups": groups, "at_once": at_once, "by": by})
    sender.go()
    end = receive_bytes(get, (str(sender.read()) for _ in range(groups)))
    return groups * 1e9 / (end - int(sender.read()["started"]))


def _hand_over(
    connections: Connections, sender: Sender, groups: int, at_once: int, pause_s: float
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """One round of groups through the real code; what the sender and the receiver stamped, by group."""
    config = make_config(f"handoff-{secrets.token_hex(4)}", groups)
    head, client, store = prepare(config, connections)
    keep_what_is_loaded()
    sender.prepare({"kind": "groups", "run": config.run, "groups": groups, "at_once": at_once, "pause_s": pause_s})
    sender.go()
    tensors = receive_groups(config, client, store, head.commit.version)
    return sender.read(), tensors
