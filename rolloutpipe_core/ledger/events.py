"""What the ledger stream holds: one typed class an event, plain text on the wire.

Every entry has `v` (schema), `type`, `at_ms` (server time, ms) and `actor` (who did it). The Lua scripts write
them; everything that looks back (timeline, report, audit, `why`) reads them through `parse_event`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpipe_core.domain import GroupState, RoundState, WeightVersion
from rolloutpipe_core.errors import LedgerRefused

SCHEMA = "1"

Entry = tuple[str, Mapping[str, str]]
"""A stream's entry as Redis holds it: its id ("1795984219864-0") and its fields."""


def place(id: str) -> tuple[int, int]:
    """A stream id as what ids are ordered by: (ms, sequence)."""
    ms, sequence = id.split("-")
    return int(ms), int(sequence)


@dataclass(frozen=True, slots=True)
class Event:
    id: str  # stream id, "1795984219864-0"
    at_ms: int  # server time
    actor: str  # "worker-ab12" or "trainer-3" (3 = epoch)


@dataclass(frozen=True, slots=True)
class GroupMoved(Event):
    """A group changed its state. `details` holds what the move brought (object, reward_mean, update, ...)."""

    group: str
    round: int
    before: GroupState | None  # None: the group was created
    after: GroupState
    attempt: int
    reason: str
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AnnouncementRefused(Event):
    """A FIFO entry that is not the group's current announcement (old attempt, duplicate) was put aside."""

    group: str
    round: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoundMoved(Event):
    """A round changed its state; `generating` after `drained` means that a rejection reopened it."""

    round: int
    after: RoundState
    generation: int
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UpdateSealed(Event):
    """An update's membership is final; the optimizer steps next."""

    round: int
    update: int
    groups: int
    samples: int
    tokens: int


@dataclass(frozen=True, slots=True)
class UpdateStepped(Event):
    """The optimizer stepped (or skipped a non-finite gradient)."""

    round: int
    update: int
    skipped: bool
    replay: bool
    busy_ms: tuple[tuple[int, int], ...]  # intervals of trainer compute, server time
    blocked_ms: int  # only fetching and verifying announced groups kept the trainer from going on
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class VersionPublished(Event):
    version: WeightVersion
    object: str  # prefix of the weights' objects
    commit: str  # key of the commit, "" only in broken histories
    commit_sha: str


@dataclass(frozen=True, slots=True)
class RoleTaken(Event):
    """A trainer took the role; its epoch fences off every earlier one."""

    role: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RunMoved(Event):
    """The run was prepared, stopped (with its reason), resumed after that, or restored from the commit chain."""

    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class EngineNoted(Event):
    """A server of the worker's engine went out of service or came back, or an answer of it was of no use, and why."""

    server: str
    what: str


@dataclass(frozen=True, slots=True)
class ObjectsMoved(Event):
    """Object sets go: `retired` (no new pins), then `deleted`, or `kept` after all; orphans are `swept`."""

    phase: str
    sets: tuple[str, ...]  # "groups/r000012", "weights/3f9a61b2c4d5e6f7", "checkpoints/r000012-e3-5f1c9a"
    objects: int  # that this removed
    bytes: int


def parse_event(id: str, fields: Mapping[str, str]) -> Event:
    """One ledger entry as its class. Raises LedgerRefused for an unknown schema or type."""
    if fields.get("v") != SCHEMA:
        raise LedgerRefused(
            "unknown ledger entry",
            given=f"{id}: schema {fields.get('v')!r}",
            expected=f"schema {SCHEMA}",
            remedy="read this run with the version of rolloutpipe that wrote it",
        )
    at_ms, actor = int(fields["at_ms"]), fields.get("actor", "")
    match fields["type"]:
        case "group":
            return GroupMoved(
                id,
                at_ms,
                actor,
                group=fields["group"],
                round=int(fields["round"]),
                before=GroupState(fields["from"]) if fields["from"] else None,
                after=GroupState(fields["to"]),
                attempt=int(fields["attempt"]),
                reason=fields.get("reason", ""),
                details=_details(fields, "group", "round", "from", "to", "attempt", "reason"),
            )
        case "announcement":
            return AnnouncementRefused(
                id, at_ms, actor, fields["group"], int(fields["round"]), int(fields["attempt"]), fields["reason"]
            )
        case "round":
            return RoundMoved(
                id,
                at_ms,
                actor,
                round=int(fields["round"]),
                after=RoundState(fields["to"]),
                generation=int(fields["generation"]),
                details=_details(fields, "round", "to", "generation"),
            )
        case "sealed":
            numbers = [int(fields[name]) for name in ("round", "update", "groups", "samples", "tokens")]
            return UpdateSealed(id, at_ms, actor, *numbers)
        case "stepped":
            return UpdateStepped(
                id,
                at_ms,
                actor,
                round=int(fields["round"]),
                update=int(fields["update"]),
                skipped=fields["skipped"] == "1",
                replay=fields["replay"] == "1",
                busy_ms=tuple((start, end) for start, end in json.loads(fields["busy_ms"])),
                blocked_ms=int(fields["blocked_ms"]),
                metrics=json.loads(fields["metrics"]),
            )
        case "version":
            return VersionPublished(
                id,
                at_ms,
                actor,
                version=WeightVersion(int(fields["number"]), fields["sha"]),
                object=fields["object"],
                commit=fields["commit"],
                commit_sha=fields["commit_sha"],
            )
        case "role":
            return RoleTaken(id, at_ms, actor, fields["role"], int(fields["epoch"]))
        case "run":
            return RunMoved(id, at_ms, actor, fields["to"], fields.get("reason", ""))
        case "engine":
            return EngineNoted(id, at_ms, actor, fields["server"], fields["what"])
        case "retention":
            sets = tuple(fields["sets"].split())
            return ObjectsMoved(id, at_ms, actor, fields["phase"], sets, int(fields["objects"]), int(fields["bytes"]))
        case other:
            raise LedgerRefused("unknown ledger entry", given=f"{id}: type {other!r}", expected="a known type")


def _details(fields: Mapping[str, str], *known: str) -> Mapping[str, str]:
    own = {"v", "type", "at_ms", "actor", *known}
    return {name: value for name, value in fields.items() if name not in own}
