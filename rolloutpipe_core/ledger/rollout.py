"""The rollout side of the ledger: rounds are opened, groups admitted under leases, announced or ended."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import GroupRef, GroupState, WeightVersion, group_id, parse_group_id
from rolloutpipe_core.errors import LedgerRefused
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.records import reference_fields

Draw = Callable[[int], str | None]
"""submission order -> prompt id of the group that a round draws there; None where it draws no more"""


def draw_none(index: int) -> None:
    """A round keeps to its first groups."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """What a round was opened with: its first prompts in submission order, fixed for good."""

    round: int
    lineage: int
    version: WeightVersion
    groups: tuple[str, ...]  # [R] group ids
    prompts: tuple[str, ...]  # [R] prompt ids
    cohort_sha: str  # of these prompts; those drawn later follow from seed, data and cursor
    data_fingerprint: str
    cursor: int  # places of the cohort in the seeded order of prompts: cursor <= place < cursor_end
    cursor_end: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to work on one attempt of a group. Compared for equality in every script."""

    group: str
    worker: str
    attempt: int
    nonce: str

    @property
    def token(self) -> tuple[str, str, int, str]:
        """(group, worker, attempt, nonce), as the scripts take it."""
        return self.group, self.worker, self.attempt, self.nonce


@dataclass(frozen=True, slots=True)
class RoundView:
    """What admission looks at."""

    state: str  # RoundState, '' when the round does not exist
    open: tuple[str, ...]  # not yet serving-complete, in submission order; its first F_w are the frontier
    deferred: frozenset[str]  # the open groups that nobody has admitted


class RolloutLedger:
    """One rollout worker's calls. Every method may raise RedisUnavailable."""

    def __init__(self, client: LedgerClient, worker: str, lease_s: float, max_attempts: int) -> None:
        self.client = client
        self.worker = worker
        self._keys = client.keys
        self._lease_ms = round(lease_s * 1000)
        self._max_attempts = max_attempts

    def open_round(self, cohort: Cohort, schedule: ScheduleConfig) -> None:
        """Fix the round's cohort; a repeat by this or another worker changes nothing.

        Raises LedgerRefused when the worker's data or version differ from what the round was opened with.
        """
        pairs = [part for pair in zip(cohort.groups, cohort.prompts, strict=True) for part in pair]
        facts = [self.worker, cohort.round, cohort.lineage, cohort.version.number, cohort.version.sha]
        places = [cohort.cohort_sha, cohort.data_fingerprint, cohort.cursor, cohort.cursor_end]
        shape = [schedule.samples_per_group, schedule.groups_per_update, schedule.kind, schedule.order]
        keys = [*self._keys.of_round(cohort.round), *map(self._keys.group, cohort.groups)]
        self.client.call("open_round", keys, [*facts, *places, *shape, *pairs])

    def view(self, round: int) -> RoundView:
        """The round's state and its open groups, in one round trip."""

        def read() -> RoundView:
            pipe = self.client.redis.pipeline(transaction=True)
            pipe.hget(self._keys.round(round), "state")
            pipe.zrange(self._keys.open(round), 0, -1)
            pipe.zrange(self._keys.deferred(round), 0, -1)
            state, open, deferred = pipe.execute()
            return RoundView(state or "", tuple(open), frozenset(deferred))

        return self.client.patiently(read, f"view of round {round}")

    def admit(self, group: str, width: int = 0) -> Lease:
        """Take a deferred group. `width` > 0 is the hard frontier F_w, enforced by the script itself.

        Raises LedgerRefused when another worker was faster or the group is outside the frontier.
        """
        nonce = secrets.token_hex(8)
        args = [group, self.worker, nonce, self._lease_ms, width]
        attempt = self.client.call("admit", self._keys.of_group(group), args)[0]
        return Lease(group, self.worker, int(attempt), nonce)

    def serving_complete(self, lease: Lease) -> None:
        """All K requests finished: the group leaves the frontier. Raises Fenced when the lease was lost."""
        self._advance(lease, GroupState.ADMITTED, GroupState.SERVING_COMPLETE)

    def materialized(self, lease: Lease) -> None:
        """Rewards and advantages are there. Raises Fenced when the lease was lost."""
        self._advance(lease, GroupState.SERVING_COMPLETE, GroupState.MATERIALIZED)

    def announce(self, lease: Lease, ref: GroupRef, response_tokens: int, longest_response: int) -> None:
        """The object is up: append the reference to the FIFO. Raises Fenced when the lease was lost."""
        fields = reference_fields(ref, response_tokens, longest_response)
        self.client.call("announce", self._keys.of_group(lease.group), [*lease.token, *fields])

    def filtered(self, lease: Lease, reason: str, statistics: Mapping[str, object], draw: Draw = draw_none) -> None:
        """End a materialized group unused; the same script draws the group that replaces it.

        Raises Fenced when the lease was lost, and then draws none.
        """
        fields = [part for pair in statistics.items() for part in pair]
        end = [GroupState.MATERIALIZED, GroupState.FILTERED, reason]
        round, outcome = parse_group_id(lease.group)[0], ""
        while outcome != GroupState.FILTERED:
            index = self.client.group_count(round)
            drawn = group_id(round, index)
            keys = [*self._keys.of_group(lease.group), self._keys.group(drawn)]
            args = [*lease.token, *end, drawn, index, draw(index) or "", *fields]
            outcome = self.client.call("finish", keys, args)[0]

    def give_up(self, lease: Lease, reason: str) -> GroupState:
        """This attempt failed for a reason of the infrastructure: deferred again, or failed after the last attempt."""
        return self._release(lease.group, lease.nonce, reason, self._max_attempts)

    def hand_back(self, lease: Lease, reason: str) -> None:
        """The worker stops in good order: the group is deferred again, however many attempts it had."""
        self._release(lease.group, lease.nonce, reason, max_attempts=sys.maxsize)

    def note(self, server: str, what: str) -> None:
        """Tell the history what a server of this worker's engine did. Raises LedgerRefused without such a run."""
        self.client.call("noted", [self._keys.run, self._keys.ledger], [self.worker, server, what])

    def renew(self, round: int, leases: Sequence[Lease]) -> list[str]:
        """Extend leases; returns the groups whose lease is lost."""
        if not leases:
            return []
        keys = [*self._keys.of_round(round), *(self._keys.group(lease.group) for lease in leases)]
        pairs = [part for lease in leases for part in (lease.group, lease.nonce)]
        return [str(group) for group in self.client.call("renew", keys, [self._lease_ms, *pairs])]

    def reap(self, round: int, own: Collection[str] = ()) -> list[tuple[str, GroupState]]:
        """Take back the leases that ran out, of whichever worker but of none of its `own` groups, which it renews.

        After a restart of Redis nothing is taken back for one lease's length: nobody could renew meanwhile.
        """
        now = self.client.server_time_ms()
        leases = self._keys.leases(round)
        expired: list[str] = self.client.patiently(
            lambda: self.client.redis.zrangebyscore(leases, "-inf", now - 1),  # type: ignore[arg-type, return-value]
            "leases",
        )
        expired = [group for group in expired if group not in own]
        if not expired or self.client.server()[1] < self._lease_ms:
            return []
        taken = []
        for group in expired:
            with suppress(LedgerRefused):  # another worker reaped it meanwhile, or its holder renewed it
                taken.append((group, self._release(group, "", "lease ran out", self._max_attempts)))
        return taken

    def _advance(self, lease: Lease, before: GroupState, after: GroupState) -> None:
        args = [*lease.token, before, after, self._lease_ms]
        self.client.call("advance", self._keys.of_group(lease.group), args)

    def _release(self, group: str, nonce: str, reason: str, max_attempts: int) -> GroupState:
        args = [group, self.worker, nonce, max_attempts, reason]
        return GroupState(self.client.call("release", self._keys.of_group(group), args)[0])
