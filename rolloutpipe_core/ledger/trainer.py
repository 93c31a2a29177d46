"""The trainer side of the ledger: the role, fenced reading of the FIFO, assignments, seals, publishing."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpipe_core.domain import GroupRef, GroupState, group_id
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.records import NOT_COMMITTED, parse_reference
from rolloutpipe_core.store.commits import Commit, Link


@dataclass(frozen=True, slots=True)
class Epoch:
    """The trainer's fencing token."""

    number: int
    nonce: str

    @property
    def actor(self) -> str:
        return f"trainer-{self.number}"

    @property
    def token(self) -> tuple[int, str, str]:
        """(number, nonce, actor), as the scripts take it."""
        return self.number, self.nonce, self.actor


@dataclass(frozen=True, slots=True)
class Announced:
    """A group's FIFO entry."""

    entry: str
    ref: GroupRef


@dataclass(frozen=True, slots=True)
class Drained:
    """The FIFO's word that no more groups of this generation of the round come."""

    entry: str
    round: int
    generation: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """An entry that is not ours to understand."""

    entry: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CurrentGroup:
    """What a group's hash says now, as far as an announcement is judged by it."""

    state: str
    attempt: int
    entry: str  # its current announcement


class TrainerLedger:
    """One trainer incarnation's calls: each carries its epoch and raises Fenced once another took the role."""

    def __init__(self, client: LedgerClient, epoch: Epoch) -> None:
        self.client = client
        self.epoch = epoch
        self._keys = client.keys

    @classmethod
    def take_role(cls, client: LedgerClient, owner: str, floor: int) -> TrainerLedger:
        """Become the one trainer. `floor` is the highest epoch of the commit chain, which Redis may have forgotten."""
        nonce = secrets.token_hex(8)
        number = client.call("take_role", [client.keys.run, client.keys.ledger], [owner, nonce, floor])[0]
        return cls(client, Epoch(int(number), nonce))

    def read(self, after: str, count: int = 64) -> list[Announced | Drained | Foreign]:
        """Entries behind `after` that are not acknowledged ('0-0': all of them), oldest first. Never blocks."""
        keys = [self._keys.run, self._keys.ledger, self._keys.fifo]
        entries = self.client.call("read_fifo", keys, [self.epoch.number, self.epoch.nonce, after, count])[0]
        return [_parse_entry(entry, fields) for entry, fields in entries]

    def wait_for_entries(self, after: str, timeout_ms: int) -> None:
        """Return when the FIFO has an entry behind `after`, or after the time-out. Takes nothing."""
        self.client.patiently(
            lambda: self.client.redis.xread({self._keys.fifo: after}, count=1, block=timeout_ms), "XREAD of the FIFO"
        )

    def current(self, group: str) -> CurrentGroup:
        """The group as it is now; an empty state when there is none."""
        fields = ["state", "attempt", "entry"]
        key = self._keys.group(group)
        found: Any = self.client.patiently(lambda: self.client.redis.hmget(key, fields), f"HMGET of {group}")
        return CurrentGroup(found[0] or "", int(found[1] or 0), found[2] or "")

    def assign(self, ref: GroupRef, update: int, index: int) -> None:
        """Record the group's place in an update, before it is accumulated."""
        args = [*self.epoch.token, ref.group, ref.attempt, ref.sha256, update, index]
        self.client.call("assign", self._keys.of_group(ref.group), args)

    def seal(self, round: int, update: int, groups: int, samples: int, tokens: int) -> None:
        """Make the update's membership final, before the step."""
        args = [*self.epoch.token, update, groups, samples, tokens]
        self.client.call("seal", self._keys.of_round(round), args)

    def stepped(
        self,
        round: int,
        update: int,
        skipped: bool,
        replay: bool,
        busy_ms: Sequence[tuple[int, int]],
        blocked_ms: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Tell the history what the step did. `busy_ms`: intervals of compute, server time."""
        facts = [update, int(skipped), int(replay), json.dumps([list(pair) for pair in busy_ms]), blocked_ms]
        args = [*self.epoch.token, *facts, json.dumps(dict(metrics), sort_keys=True)]
        self.client.call("stepped", self._keys.of_round(round), args)

    def reject(self, announced: Announced, reason: str, max_rejections: int) -> tuple[str, int]:
        """The gate refused it. Returns the outcome and the round's generation after it.

        The outcome is `deferred` (re-admitted), `rejected` (ended) or `ignored` (not the current announcement).
        """
        ref = announced.ref
        args = [*self.epoch.token, ref.group, ref.attempt, announced.entry, reason, max_rejections]
        outcome, generation = self.client.call("reject", self._keys.of_group(ref.group), args)
        return str(outcome), int(generation)

    def unassign(self, round: int, groups: Sequence[str], reason: str) -> None:
        """Take back all assignments of an uncommitted round whose recorded objects are damaged."""
        keys = [*self._keys.of_round(round), *map(self._keys.group, groups)]
        self.client.call("unassign", keys, [*self.epoch.token, reason])

    def trained(self, round: int, updates: int) -> None:
        """Every group of the round was consumed. Raises LedgerRefused when a rejection has reopened it."""
        self.client.call("trained", self._keys.of_round(round), [*self.epoch.token, updates])

    def publish(self, link: Link, weights_object: str) -> None:
        """Apply a commit that stands in the chain: registry entry, groups trained or ended.

        Acknowledged are all FIFO entries of its round and of older ones, and those that are not ours. Groups of its
        round that it does not hold end as rejected. Raises LedgerRefused when one was drawn just now.
        """
        commit = link.commit
        assert isinstance(commit, Commit)
        version = commit.version
        ended = [(group.group, group.state, group.reason, "") for group in commit.ended]
        ended += [(group, GroupState.REJECTED, NOT_COMMITTED, "") for group in self._beyond(commit)]
        names = [group.group for group in commit.groups] + [group for group, *_ in ended]
        keys = [*self._keys.of_round(commit.round), *map(self._keys.group, names), self._keys.weights]
        facts = [commit.round, version.number, version.sha, weights_object, link.key, link.sha256]
        trained = [
            part
            for update in commit.updates
            for place, group in enumerate(update.groups)
            for part in (group.group, group.attempt, update.index, place)
        ]
        args = [*self.epoch.token, *facts, len(commit.groups), commit.lineage, commit.cursor, *trained]
        self.client.call("publish", keys, [*args, *(part for end in ended for part in end)])

    def _beyond(self, commit: Commit) -> list[str]:
        """Groups drawn since Redis lost what the commit had seen: in other samples other rewards may be equal."""
        held = len(commit.groups) + len(commit.ended)
        return [group_id(commit.round, index) for index in range(held, self.client.group_count(commit.round))]

    def stop(self, reason: str) -> None:
        """Stop the run for good: no round is opened any more."""
        self.client.call("stop", [self._keys.run, self._keys.ledger], [*self.epoch.token, reason])


def _parse_entry(entry: str, flat: Sequence[str]) -> Announced | Drained | Foreign:
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    try:
        if fields["kind"] == "round_drained":
            return Drained(entry, int(fields["round"]), int(fields["generation"]))
        return Announced(entry, parse_reference(fields))
    except (KeyError, ValueError, BadInput):
        return Foreign(entry, fields)
