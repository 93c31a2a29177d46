"""A commit that stands in the chain is applied to whatever Redis still knows: it lost its last second, or everything.

In the round of the tests groups 2 and 0 make update 0, group 3, served twice, makes update 1, and group 1 is filtered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import Fenced, LedgerRefused
from rolloutpipe_core.ledger.events import AnnouncementRefused
from rolloutpipe_core.ledger.rollout import Lease
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.observe.audit.history import check_history
from rolloutpipe_core.observe.audit.model import Audit, Chain, CommittedRound, Ending, Membership
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.status import read_status
from rolloutpipe_core.observe.timeline import Timelines
from rolloutpipe_core.observe.why import group_history
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.commits import Commit, Link

from .conftest import GROUPS, HandRun, K

UPDATES = [[(2, 1), (0, 1)], [(3, 2)]]  # (index, attempt)
FILTERED = "zero variance of rewards"
STAGES = ("prepared", "opened", "admitted", "queued", "drained", "read", "claimed", "trained")


class History:
    """The round up to its commit, with what Redis held after each stage."""

    def __init__(self, hand: HandRun) -> None:
        self.hand = hand
        self.leases: list[Lease] = []
        self.kept = {stage: self._dump() for stage in self._stages()}
        self.link = hand.commit(UPDATES, {1: (GroupState.FILTERED, FILTERED)})

    def _stages(self) -> Iterator[str]:
        hand = self.hand
        yield "prepared"
        hand.open()
        yield "opened"
        self.leases = [hand.admit(index) for index in range(GROUPS)]
        yield "admitted"
        for index in (2, 0):
            hand.announce(self.leases[index])
        yield "queued"
        hand.rollout.serving_complete(self.leases[1])
        hand.rollout.materialized(self.leases[1])
        facts = {"reward_mean": 1.0, "reward_std": 0, "response_tokens": 8}
        hand.rollout.filtered(self.leases[1], FILTERED, facts)
        hand.rollout.give_up(self.leases[3], "the engine broke")
        hand.announce(hand.admit(3))
        yield "drained"
        trainer = hand.take_role()
        announced = {entry.ref.index: entry for entry in hand.announced(trainer)}
        yield "read"
        for update, members in enumerate(UPDATES):
            for place, (index, _) in enumerate(members):
                trainer.assign(announced[index].ref, update, place)
            trainer.seal(0, update, len(members), K * len(members), 10 * len(members))
        yield "claimed"
        trainer.trained(0, len(UPDATES))
        yield "trained"

    def _dump(self) -> dict[str, bytes]:
        server: Any = self.hand.client.redis
        return {key: server.dump(key) for key in self._keys()}

    def _keys(self) -> list[str]:
        return list(self.hand.client.redis.scan_iter(f"{self.hand.client.keys.prefix}*", count=1000))

    def go_back(self, stage: str | None) -> None:
        """As a Redis comes up that lost what followed the stage; None: it lost the run."""
        server: Any = self.hand.client.redis
        server.delete(*self._keys())
        for key, content in (self.kept[stage] if stage else {}).items():
            server.restore(key, 0, content)


@pytest.fixture
def history(hand: HandRun) -> History:
    return History(hand)


def restarted_trainer(history: History) -> TrainerLedger:
    """A trainer that starts on this Redis, as far as the ledger is concerned."""
    hand = history.hand
    register_run(hand.client, history.link, "trainer")
    trainer = TrainerLedger.take_role(hand.client, "box:8", 1)
    if hand.reader.run_state()["version"] == "0":
        trainer.publish(history.link, "object")
    return trainer


@pytest.mark.parametrize("stage", STAGES)
def test_a_redis_that_lost_its_last_second_is_mended_by_the_commit(history: History, stage: str) -> None:
    hand, commit = history.hand, history.link.commit
    assert isinstance(commit, Commit)
    history.go_back(stage)
    trainer = restarted_trainer(history)
    version, entry = hand.reader.versions()[-1]
    assert (version, entry["commit"]) == (commit.version, commit.key)
    check_round(hand)
    leave_late_calls_without_effect(history)
    find_no_leftovers(hand, trainer)
    check_round(hand)
    check_views(hand, history.link)
    serve_next_round(hand, trainer)


def test_an_announcement_that_the_commit_does_not_use_is_put_aside(history: History) -> None:
    """The worker of group 3's first attempt finished it after the loss, with which the second attempt went."""
    hand = history.hand
    history.go_back("queued")
    hand.announce(history.leases[3])
    trainer = restarted_trainer(history)
    find_no_leftovers(hand, trainer)
    (refused,) = (event for event in hand.reader.events() if isinstance(event, AnnouncementRefused))
    assert (refused.group, refused.round, refused.attempt) == (group_id(0, 3), 0, 1)
    assert refused.reason == "the commit of round 0 does not use it"
    check_views(hand, history.link)


def test_a_redis_that_lost_the_run_goes_on_from_the_head_of_the_chain(history: History) -> None:
    hand = history.hand
    history.go_back(None)
    with pytest.raises(LedgerRefused, match="run is not prepared"):
        hand.open()
    trainer = restarted_trainer(history)
    assert trainer.epoch.number == 2, "above the epoch in the chain"
    assert [version for version, _ in hand.reader.versions()] == [history.link.commit.version]
    trainer.publish(history.link, "object")
    assert len(hand.reader.versions()) == 1, "already there"
    check_views(hand, history.link)
    serve_next_round(hand, trainer)


@pytest.mark.parametrize("stage", STAGES)
def test_publishing_again_changes_nothing(history: History, stage: str) -> None:
    history.go_back(stage)
    trainer = restarted_trainer(history)
    then = history.hand.snapshot()
    trainer.publish(history.link, "object")
    assert history.hand.snapshot() == then


def test_a_commit_can_not_be_skipped(history: History) -> None:
    history.go_back("trained")
    trainer = TrainerLedger.take_role(history.hand.client, "box:8", 1)
    second = history.hand.commit([], {})
    with pytest.raises(LedgerRefused, match="the run is at v0"):
        trainer.publish(second, "object")


def test_an_old_epoch_publishes_nothing(history: History) -> None:
    history.go_back("trained")
    first = TrainerLedger.take_role(history.hand.client, "box:8", 1)
    TrainerLedger.take_role(history.hand.client, "box:9", 1)
    with pytest.raises(Fenced, match="held by 3 box:9"):
        first.publish(history.link, "object")
    assert history.hand.reader.run_state()["version"] == "0"


def check_round(hand: HandRun) -> None:
    """Every group as the commit says, and nobody holds or waits for anything of the round."""
    round = hand.reader.round_state(0)
    assert round["state"] == "published"
    counts = {name: int(count) for name, count in round.items() if name.startswith("n_") and count != "0"}
    assert counts == {"n_trained": 3, "n_filtered": 1}
    view = hand.rollout.view(0)
    assert (view.open, view.deferred, hand.rollout.reap(0)) == ((), frozenset(), [])
    rows = {int(row["index"]): row for row in hand.reader.groups(0)}
    assert sorted(rows) == list(range(GROUPS))
    assert (rows[1]["state"], rows[1]["reason"]) == ("filtered", FILTERED)
    for update, members in enumerate(UPDATES):
        for place, (index, attempt) in enumerate(members):
            row = rows[index]
            found = (row["state"], row["attempt"], row["update"], row["update_index"])
            assert found == ("trained", str(attempt), str(update), str(place))


def leave_late_calls_without_effect(history: History) -> None:
    """The workers of the lost second still live and finish what they had begun."""
    hand = history.hand
    then = hand.snapshot()
    give_up = lambda lease: hand.rollout.give_up(lease, "late")  # noqa: E731
    for lease in history.leases:
        for call in (hand.rollout.serving_complete, hand.rollout.materialized, hand.announce, give_up):
            with suppress(Fenced, LedgerRefused):
                call(lease)
    assert hand.snapshot() == then


def find_no_leftovers(hand: HandRun, trainer: TrainerLedger) -> None:
    """Announcements that nobody had read before the loss are behind us."""
    assert trainer.read("0-0") == []
    assert hand.reader.fifo_depth() == 0


def check_views(hand: HandRun, link: Link) -> None:
    """Whatever looks back can read this history, and the audit has nothing to find in it."""
    timelines = Timelines(hand.reader.events())
    all_round_metrics(timelines.rounds())
    read_status(hand.reader)
    for row in hand.reader.groups(0):
        group_history(hand.reader.events(), row["id"])
    audit = Audit(hand.client.keys.name)
    check_history(hand.reader.events(), chain_of(hand, link), audit)
    assert audit.findings == []


def chain_of(hand: HandRun, link: Link) -> Chain:
    commit = link.commit
    assert isinstance(commit, Commit)
    trained = tuple(
        Membership(member.group, member.attempt, update.index, place, member.object, member.sha256, K, 10)
        for update in commit.updates
        for place, member in enumerate(update.groups)
    )
    round = CommittedRound(
        key=link.key,
        sha256=link.sha256,
        run=commit.run,
        lineage=1,
        epoch=1,
        round=0,
        sampled=hand.genesis.version,
        published=commit.version,
        trained=trained,
        ended=tuple(Ending(end.group, end.state, end.reason) for end in commit.ended),
        updates={update.index: (len(update.groups), update.samples, update.tokens) for update in commit.updates},
        cohort_sha=commit.cohort_sha,
        cursor=commit.cursor,
        data_fingerprint=commit.data_fingerprint,
    )
    return Chain(commit.previous.key, commit.previous.sha256, round.sampled, (round,))


def serve_next_round(hand: HandRun, trainer: TrainerLedger) -> None:
    hand.open()
    for index in range(GROUPS):
        hand.announce(hand.admit(index))
    entries = hand.announced(trainer)
    assert [entry.ref.group for entry in entries] == [group_id(1, index) for index in range(GROUPS)]
    for place, entry in enumerate(entries):
        trainer.assign(entry.ref, place // 2, place % 2)
        if place % 2:
            trainer.seal(1, place // 2, 2, 2 * K, 20)
    trainer.trained(1, 2)
