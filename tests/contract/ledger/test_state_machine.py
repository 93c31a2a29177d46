"""Any interleaving of two rollout workers and several trainer incarnations, against a real server.

After every step each group is in exactly one state, the counters and sets agree with the groups, and a call under an
old token has changed nothing. At the end an ordinary worker and trainer settle the round.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import GroupRef, GroupState, WeightVersion, group_id
from rolloutpipe_core.errors import Fenced, LedgerRefused
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.ledger.keys import RunKeys
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, Lease, RolloutLedger
from rolloutpipe_core.ledger.trainer import Announced, TrainerLedger
from rolloutpipe_core.store.commits import Commit, EndedGroup, Link, Previous, TrainedGroup, TrainedUpdate, TrainerEpoch

GROUPS, MOST, PER_UPDATE, MAX_ATTEMPTS, MAX_REJECTIONS, WIDTH = 4, 7, 2, 3, 1, 2
VERSION = WeightVersion(0, "a" * 64)
NEXT = WeightVersion(1, "b" * 64)
SERVED = [GroupState.ADMITTED, GroupState.SERVING_COMPLETE, GroupState.MATERIALIZED]
UNSETTLED = [GroupState.DEFERRED, *SERVED]
IDS = [group_id(0, index) for index in range(MOST)]  # the first are there from the beginning, the others may be drawn
SCHEDULE = ScheduleConfig(
    kind="cgp", groups_per_round=GROUPS, samples_per_group=2, update_batch_size=2 * PER_UPDATE, frontier_width=WIDTH
)
COHORT = Cohort(
    round=0,
    lineage=1,
    version=VERSION,
    groups=tuple(IDS[:GROUPS]),
    prompts=tuple(f"p{index}" for index in range(GROUPS)),
    cohort_sha="cohort",
    data_fingerprint="data",
    cursor=0,
    cursor_end=GROUPS,
)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.redis: Any = client
        for key in client.scan_iter("rolloutpipe:{machine}:*"):
            client.delete(key)
        self.client = LedgerClient(client, "machine", 10)
        self.keys = RunKeys("machine")
        self.reader = LedgerReader(client, "machine")
        first = [self.keys.run, self.keys.ledger, self.keys.fifo, self.keys.weights]
        self.client.call("prepare", first, ["t", 1, 0, VERSION.sha, "object", "commit", "sha", "config", 0])
        self.workers = [RolloutLedger(self.client, name, 3600, MAX_ATTEMPTS) for name in ("w0", "w1")]
        self.reaper = RolloutLedger(self.client, "reaper", 0, MAX_ATTEMPTS)  # no grace after the start of the server
        self.workers[0].open_round(COHORT, SCHEDULE)
        self.leases: list[Lease] = []  # all that were ever given
        self.trainers = [TrainerLedger.take_role(self.client, "t0", 0)]
        self.announced: list[Announced] = []  # all that were ever read

    # --- what is there

    def state(self, group: str) -> str:
        return str(self.redis.hget(self.keys.group(group), "state"))

    def snapshot(self) -> dict[str, Any]:
        """Everything but the history."""
        found: dict[str, Any] = {"fifo": self.redis.xrange(self.keys.fifo)}
        found["pending"] = [entry["message_id"] for entry in self.reader.pending()]
        for key in [self.keys.run, self.keys.round(0), *map(self.keys.group, IDS)]:
            found[key] = self.redis.hgetall(key)
        for key in [self.keys.open(0), self.keys.deferred(0), self.keys.leases(0)]:
            found[key] = self.redis.zrange(key, 0, -1)
        return found

    def is_current(self, lease: Lease) -> bool:
        held = self.redis.hmget(self.keys.group(lease.group), "attempt", "nonce", "worker")
        return held == [str(lease.attempt), lease.nonce, lease.worker]

    def under_lease(self, lease: Lease, before: GroupState, call: Any) -> None:
        """A call under a lease changes something exactly when the lease is current and the state the expected one."""
        expected = self.is_current(lease) and self.state(lease.group) == before
        then = self.snapshot()
        try:
            call()
        except (Fenced, LedgerRefused) as error:
            assert not expected, error
            assert isinstance(error, Fenced) or self.is_current(lease)
        assert (self.snapshot() != then) == expected

    def pick(self, data: st.DataObject, items: list[Any]) -> Any:
        return items[data.draw(st.integers(0, len(items) - 1))]

    # --- rollout

    @rule(worker=st.integers(0, 1), index=st.integers(0, MOST - 1), hard=st.booleans())
    def admit(self, worker: int, index: int, hard: bool) -> None:
        group, then = IDS[index], self.snapshot()
        frontier = self.redis.zrange(self.keys.open(0), 0, WIDTH - 1)
        allowed = self.state(group) == GroupState.DEFERRED and (not hard or group in frontier)
        allowed = allowed and self.reader.round_state(0)["state"] in ("open", "generating")
        try:
            self.leases.append(self.workers[worker].admit(group, WIDTH if hard else 0))
            assert allowed
        except LedgerRefused:
            assert not allowed
            assert self.snapshot() == then

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def serving_complete(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.leases)
        self.under_lease(lease, GroupState.ADMITTED, lambda: self.workers[0].serving_complete(lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def materialized(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.leases)
        self.under_lease(lease, GroupState.SERVING_COMPLETE, lambda: self.workers[1].materialized(lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def announce(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.leases)
        call = lambda: self.workers[0].announce(lease, reference(lease), 8, 5)  # noqa: E731
        self.under_lease(lease, GroupState.MATERIALIZED, call)

    @rule(index=st.integers(0, MOST - 1))
    def serve_whole_group(self, index: int) -> None:
        if self.state(IDS[index]) == GroupState.DEFERRED:
            lease = self.workers[1].admit(IDS[index])
            self.leases.append(lease)
            self.workers[1].serving_complete(lease)
            self.workers[1].materialized(lease)
            self.workers[1].announce(lease, reference(lease), 8, 5)

    @rule(index=st.integers(0, MOST - 1))
    def filter_whole_group(self, index: int) -> None:
        if self.state(IDS[index]) == GroupState.DEFERRED:
            lease = self.workers[0].admit(IDS[index])
            self.leases.append(lease)
            self.workers[0].serving_complete(lease)
            self.workers[0].materialized(lease)
            self.workers[0].filtered(lease, "zero variance", {"reward_mean": 1}, draw)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def filtered(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.leases)
        call = lambda: self.workers[0].filtered(lease, "zero variance", {"reward_mean": 1}, draw)  # noqa: E731
        self.under_lease(lease, GroupState.MATERIALIZED, call)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        lease, then = self.pick(data, self.leases), self.snapshot()
        expected = self.is_current(lease) and self.state(lease.group) in SERVED
        repeated = str(self.redis.hget(self.keys.group(lease.group), "released")).startswith(lease.nonce)
        try:
            after = self.workers[0].give_up(lease, "engine died")
            assert after == (GroupState.FAILED if lease.attempt >= MAX_ATTEMPTS else GroupState.DEFERRED)
            assert expected != repeated
            assert (self.snapshot() == then) == repeated
        except (Fenced, LedgerRefused):
            assert not expected
            assert not repeated
            assert self.snapshot() == then

    @rule(index=st.integers(0, MOST - 1))
    def lease_runs_out(self, index: int) -> None:
        """As if the worker had been stopped past its lease."""
        group, attempt = IDS[index], self.redis.hget(self.keys.group(IDS[index]), "attempt")
        held = self.redis.zadd(self.keys.leases(0), {group: 1}, xx=True, ch=True)
        taken = dict(self.reaper.reap(0))
        ends = GroupState.FAILED if int(attempt or 0) >= MAX_ATTEMPTS else GroupState.DEFERRED
        assert taken == ({group: ends} if held else {})

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease = self.pick(data, self.leases)
        lost = self.workers[0].renew(0, [lease])
        assert lost == ([] if self.redis.hget(self.keys.group(lease.group), "nonce") == lease.nonce else [lease.group])

    @rule(worker=st.integers(0, 1))
    def open_again(self, worker: int) -> None:
        then = self.snapshot()
        self.workers[worker].open_round(COHORT, SCHEDULE)
        assert self.snapshot() == then

    # --- trainer

    @rule()
    def another_trainer(self) -> None:
        then = self.trainers[-1].epoch.number
        self.trainers.append(TrainerLedger.take_role(self.client, f"t{len(self.trainers)}", 0))
        assert self.trainers[-1].epoch.number == then + 1

    def fenced(self, trainer: TrainerLedger, call: Any) -> bool:
        """Make the call; an old incarnation's is refused and changes nothing."""
        then = self.snapshot()
        if trainer is self.trainers[-1]:
            return False
        with pytest.raises(Fenced):
            call()
        assert self.snapshot() == then
        return True

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        trainer = self.pick(data, self.trainers)
        if not self.fenced(trainer, lambda: trainer.read("0-0")):
            entries = trainer.read("0-0")
            assert entries == trainer.read("0-0")
            self.announced += [entry for entry in entries if isinstance(entry, Announced)]

    @precondition(lambda self: self.announced)
    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        trainer, item = self.pick(data, self.trainers), self.pick(data, self.announced)
        round = self.reader.round_state(0)
        update, index = int(round["updates_sealed"]), int(round["assigned"])
        if self.fenced(trainer, lambda: trainer.assign(item.ref, update, index)):
            return
        current = self.redis.hmget(self.keys.group(item.ref.group), "state", "attempt") == [
            "queued",
            str(item.ref.attempt),
        ]
        then = self.snapshot()
        if index == PER_UPDATE:
            return
        try:
            trainer.assign(item.ref, update, index)
            assert current
            trainer.assign(item.ref, update, index)  # an answer was lost
        except LedgerRefused:
            assert not current
            assert self.snapshot() == then

    @precondition(lambda self: self.announced)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        trainer, item = self.pick(data, self.trainers), self.pick(data, self.announced)
        if self.fenced(trainer, lambda: trainer.reject(item, "damaged", MAX_REJECTIONS)):
            return
        held = self.redis.hmget(self.keys.group(item.ref.group), "state", "attempt", "entry", "rejections")
        outcome, _ = trainer.reject(item, "damaged", MAX_REJECTIONS)
        if held[:3] == ["queued", str(item.ref.attempt), item.entry]:
            assert outcome == ("rejected" if int(held[3]) >= MAX_REJECTIONS else "deferred")
        else:
            assert outcome == "ignored"
            assert self.state(item.ref.group) == held[0]

    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        trainer, round = self.pick(data, self.trainers), self.reader.round_state(0)
        update, groups = int(round["updates_sealed"]), int(round["assigned"])
        if self.fenced(trainer, lambda: trainer.seal(0, update, groups, 2 * groups, 10)) or not groups:
            return
        then = self.snapshot()
        coming = [row["id"] for row in self.reader.groups(0) if row["state"] in [*UNSETTLED, GroupState.QUEUED]]
        try:
            trainer.seal(0, update, groups, 2 * groups, 10)
        except LedgerRefused:
            assert coming and groups < PER_UPDATE
            assert self.snapshot() == then
        else:
            assert not coming or groups == PER_UPDATE
            trainer.seal(0, update, groups, 2 * groups, 10)  # an answer was lost
            with pytest.raises(LedgerRefused):
                trainer.seal(0, update, groups + 1, 2, 10)

    @rule(data=st.data())
    def trained(self, data: st.DataObject) -> None:
        trainer, round = self.pick(data, self.trainers), self.reader.round_state(0)
        if self.fenced(trainer, lambda: trainer.trained(0, int(round["updates_sealed"]))):
            return
        complete = (
            round["state"] in ("drained", "trained") and not int(round.get("n_queued", 0)) and round["assigned"] == "0"
        )
        try:
            trainer.trained(0, int(round["updates_sealed"]))
            assert complete
        except LedgerRefused:
            assert not complete

    @rule(data=st.data())
    def unassign(self, data: st.DataObject) -> None:
        trainer = self.pick(data, self.trainers)
        claimed = [group for group in IDS if self.state(group) == GroupState.CLAIMED]
        if not self.fenced(trainer, lambda: trainer.unassign(0, claimed, "lost object")) and claimed:
            trainer.unassign(0, claimed, "lost object")
            assert self.reader.round_state(0)["updates_sealed"] == "0"

    # --- what always holds

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        round = self.reader.round_state(0)
        states = [self.state(group) for group in IDS]
        for state in GroupState:
            assert int(round.get(f"n_{state}", 0)) == states.count(state)
        among = lambda *wanted: [group for group, state in zip(IDS, states, strict=True) if state in wanted]  # noqa: E731
        assert self.redis.zrange(self.keys.open(0), 0, -1) == among(GroupState.DEFERRED, GroupState.ADMITTED)
        assert self.redis.zrange(self.keys.deferred(0), 0, -1) == among(GroupState.DEFERRED)
        assert sorted(self.redis.zrange(self.keys.leases(0), 0, -1)) == among(*SERVED)
        settled = not among(*UNSETTLED)
        assert (round["state"] in ("drained", "trained")) == settled
        markers = [fields for _, fields in self.redis.xrange(self.keys.fifo) if fields["kind"] == "round_drained"]
        told = [int(fields["generation"]) for fields in markers]
        assert told == list(range(1, int(round["generation"]) + settled)), "one drain marker a generation"

    @invariant()
    def each_filtered_group_is_replaced_until_the_limit(self) -> None:
        round = self.reader.round_state(0)
        groups = min(GROUPS + int(round.get("n_filtered", 0)), MOST)
        assert (round["groups"], round["cursor_end"]) == (str(groups), str(groups))
        rows = self.reader.groups(0)
        assert [row["prompt"] for row in rows] == [draw(index) for index in range(groups)]
        replaced = {row["replaced_by"]: row["id"] for row in rows if "replaced_by" in row}
        assert replaced == {row["id"]: row["replaces"] for row in rows[GROUPS:]}

    def teardown(self) -> None:
        settle(self.workers[0], self.trainers[-1], self.reaper, self)
        round = self.reader.round_state(0)
        assert round["state"] == "published"
        assert sum(int(round[f"n_{state}"]) for state in ("trained", "filtered", "failed", "rejected")) == int(
            round["groups"]
        )
        assert self.reader.pending() == []
        moves = [event for event in self.reader.events() if isinstance(event, GroupMoved)]
        trained = [event.group for event in moves if event.after == GroupState.TRAINED]
        assert sorted(trained) == [group for group in IDS if self.state(group) == GroupState.TRAINED], "trained once"


def draw(index: int) -> str | None:
    return f"p{index}" if index < MOST else None


def reference(lease: Lease) -> GroupRef:
    index = IDS.index(lease.group)
    return GroupRef(lease.group, 0, index, 1, lease.attempt, VERSION, "object", f"sha{lease.attempt}", 2, 10, 0.5, 0.5)


def settle(worker: RolloutLedger, trainer: TrainerLedger, reaper: RolloutLedger, machine: LedgerMachine) -> None:
    """An ordinary worker and trainer bring the round to its end, from whatever state it is in."""
    for group in machine.redis.zrange(machine.keys.leases(0), 0, -1):
        machine.redis.zadd(machine.keys.leases(0), {group: 1})
    reaper.reap(0)
    for group in worker.view(0).open:
        lease = worker.admit(group)
        worker.serving_complete(lease)
        worker.materialized(lease)
        worker.announce(lease, reference(lease), 8, 5)
    for entry in trainer.read("0-0"):
        if isinstance(entry, Announced) and machine.state(entry.ref.group) == GroupState.QUEUED:
            round = machine.reader.round_state(0)
            trainer.assign(entry.ref, int(round["updates_sealed"]), int(round["assigned"]))
    round = machine.reader.round_state(0)
    if round["assigned"] != "0":
        trainer.seal(0, int(round["updates_sealed"]), int(round["assigned"]), 2, 10)
    trainer.trained(0, int(machine.reader.round_state(0)["updates_sealed"]))
    rows = machine.reader.groups(0)
    claimed = [row for row in rows if row["state"] == GroupState.CLAIMED]
    places = {(int(row["update"]), int(row["update_index"])): row for row in claimed}
    assert len(places) == len(claimed), "one place, one group"
    link = Link("commits/c000000.json", "d" * 64, commit_of(places, [row for row in rows if row not in claimed]))
    trainer.publish(link, "object")
    then = machine.snapshot()
    trainer.publish(link, "object")
    assert machine.snapshot() == then


def commit_of(places: dict[tuple[int, int], dict[str, str]], ended: list[dict[str, str]]) -> Commit:
    updates = []
    for update in sorted({update for update, _ in places}):
        rows = [places[place] for place in sorted(places) if place[0] == update]
        groups = tuple(
            TrainedGroup(
                group=row["id"], attempt=int(row["attempt"]), object="o", sha256="e" * 64, samples=2, tokens=10
            )
            for row in rows
        )
        count = len(groups)
        updates.append(TrainedUpdate(index=update, samples=2 * count, tokens=10 * count, groups=groups))
    return Commit(
        run="machine",
        lineage=1,
        weights_sha=NEXT.sha,
        data_fingerprint="data",
        config_sha="c" * 64,
        previous=Previous(key="genesis", sha256="f" * 64),
        trainer_epoch=TrainerEpoch(number=1, nonce="n"),
        round=0,
        updates=tuple(updates),
        ended=tuple(EndedGroup(group=row["id"], state=row["state"], reason=row["reason"]) for row in ended),
        cohort_sha="0" * 64,
        cursor=len(places) + len(ended),
        checkpoint=None,
    )


def test_any_interleaving_settles_and_old_tokens_change_nothing(redis_client: redis.Redis) -> None:
    run_state_machine_as_test(
        lambda: LedgerMachine(redis_client),
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
