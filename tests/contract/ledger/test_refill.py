"""A filtered group's replacement: drawn in the same script, once, at the next place of the seeded sequence.

The hand's round opens with four groups; it may have six.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rolloutpipe_core.domain import GroupState, group_id
from rolloutpipe_core.errors import Fenced, LedgerRefused
from rolloutpipe_core.ledger.events import GroupMoved
from rolloutpipe_core.ledger.records import NOT_COMMITTED
from rolloutpipe_core.ledger.rollout import RolloutLedger
from rolloutpipe_core.ledger.trainer import Drained, TrainerLedger
from rolloutpipe_core.observe.status import read_status
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.commits import Link

from .conftest import GROUPS, HandRun, K, LossyProxy

MOST = 6
FILTERED = "zero variance of rewards"


def draw(index: int) -> str | None:
    return f"p{index}" if index < MOST else None


def drawn(hand: HandRun) -> dict[str, str]:
    """Groups beyond the first four, with those whose places they take."""
    return {row["id"]: row["replaces"] for row in hand.reader.groups(0)[GROUPS:]}


def test_the_next_group_comes_in_the_script_that_ends_the_filtered_one(hand: HandRun) -> None:
    hand.open()
    hand.filter(1, draw)
    filtered, new = hand.reader.group(group_id(0, 1)), hand.reader.group(group_id(0, 4))
    assert (filtered["state"], filtered["reason"], filtered["replaced_by"]) == ("filtered", FILTERED, group_id(0, 4))
    assert (new["state"], new["prompt"], new["index"], new["attempt"]) == ("deferred", "p4", "4", "0")
    assert new["replaces"] == group_id(0, 1)
    round = hand.reader.round_state(0)
    assert (round["groups"], round["cursor"], round["cursor_end"]) == ("5", "0", "5")
    assert (round["n_filtered"], round["n_deferred"]) == ("1", "4")
    others = [group_id(0, index) for index in (0, 2, 3, 4)]
    assert hand.rollout.view(0).open == tuple(others), "behind the others"
    with pytest.raises(LedgerRefused, match="outside the frontier"):
        hand.rollout.admit(group_id(0, 4), width=3)
    created = [event for event in hand.reader.events() if isinstance(event, GroupMoved) and event.before is None]
    assert [event.details["prompt"] for event in created] == ["p0", "p1", "p2", "p3", "p4"]
    assert created[-1].at_ms == int(filtered["since_ms"])
    assert read_status(hand.reader).groups["deferred"] == 4
    assert hand.reader.sizes([0]) == [5]


def test_a_call_whose_answer_was_lost_draws_one(
    hand: HandRun, lossy_client: redis.Redis, proxy: LossyProxy, run_name: str
) -> None:
    hand.open()
    lease = hand.score(0)
    client = type(hand.client)(lossy_client, run_name, 10)
    worker = RolloutLedger(client, "worker", 3600, 3)
    worker.filtered(hand.score(1), FILTERED, {}, draw)  # the script is known from now on
    proxy.lossy = True
    worker.filtered(lease, FILTERED, {}, draw)
    assert proxy.lost > 0
    assert drawn(hand) == {group_id(0, 4): group_id(0, 1), group_id(0, 5): group_id(0, 0)}
    worker.filtered(lease, FILTERED, {}, draw)
    assert hand.reader.round_state(0)["groups"] == "6"


def test_late_calls_draw_none(hand: HandRun) -> None:
    """The lease was lost: the group is served again, filtered again, and replaced once."""
    hand.open()
    late = hand.score(0)
    hand.rollout.give_up(late, "lease ran out")
    for again in (lambda: None, lambda: hand.filter(0, draw)):
        again()
        then = hand.snapshot()
        with pytest.raises(Fenced):
            hand.end(late, draw)
        assert hand.snapshot() == then
    assert drawn(hand) == {group_id(0, 4): group_id(0, 0)}


def test_a_worker_that_another_overtook_draws_the_group_behind(hand: HandRun) -> None:
    hand.open()
    lease = hand.score(0)
    asked: list[int] = []

    def overtaken(index: int) -> str | None:
        """Another worker's group is filtered between this one's look and its call."""
        asked.append(index)
        if len(asked) == 1:
            hand.filter(1, draw)
        return draw(index)

    hand.end(lease, overtaken)
    assert asked == [4, 5]
    assert drawn(hand) == {group_id(0, 4): group_id(0, 1), group_id(0, 5): group_id(0, 0)}
    assert [row["prompt"] for row in hand.reader.groups(0)] == [f"p{index}" for index in range(6)]


def test_the_round_drains_when_all_that_were_drawn_are_settled(hand: HandRun) -> None:
    """Past the limit a group is only filtered: of six groups four, whichever came first."""
    hand.open()
    trainer = hand.take_role()
    for index in (3, 0):
        hand.filter(index, draw)
    hand.announce(hand.admit(5))
    hand.filter(4, draw)
    hand.filter(1, draw)
    assert not [entry for entry in trainer.read("0-0") if isinstance(entry, Drained)]
    hand.announce(hand.admit(2))
    assert [entry.generation for entry in trainer.read("0-0") if isinstance(entry, Drained)] == [1]
    rows = hand.reader.groups(0)
    assert [row["state"] for row in rows] == ["filtered", "filtered", "queued", "filtered", "filtered", "queued"]
    assert hand.reader.round_state(0)["cursor_end"] == "6"


def finished_round(hand: HandRun) -> TrainerLedger:
    """Group 1 was filtered, group 4 is trained in its place; the commit stands, and Redis knows nothing of it."""
    hand.open()
    hand.filter(1, draw)
    for index in (0, 2, 3, 4):
        hand.announce(hand.admit(index))
    trainer = hand.take_role()
    for place, entry in enumerate(hand.announced(trainer)):
        trainer.assign(entry.ref, place // 2, place % 2)
        if place % 2:
            trainer.seal(0, place // 2, 2, 2 * K, 20)
    trainer.trained(0, 2)
    hand.commit([[(0, 1), (2, 1)], [(3, 1), (4, 1)]], {1: (GroupState.FILTERED, FILTERED)})
    return trainer


def next_prompts(hand: HandRun) -> list[str]:
    """Of the next round, as a worker opens it."""
    assert hand.reader.run_state()["cursor"] == str(hand.head.commit.cursor)
    hand.open()
    return [row["prompt"] for row in hand.reader.groups(1)]


def test_the_next_round_goes_on_behind_the_last_group_drawn(hand: HandRun) -> None:
    trainer = finished_round(hand)
    assert hand.reader.run_state()["cursor"] == "0"
    trainer.publish(hand.head, "object")
    assert [row["state"] for row in hand.reader.groups(0)] == ["trained", "filtered", "trained", "trained", "trained"]
    assert next_prompts(hand) == ["p5", "p6", "p7", "p8"]


@pytest.mark.parametrize("lost", ["everything", "the round"])
def test_a_redis_that_lost_it_goes_on_at_the_same_place(hand: HandRun, lost: str) -> None:
    trainer = finished_round(hand)
    client: Any = hand.client.redis
    if lost == "everything":
        client.delete(*client.scan_iter(f"{hand.client.keys.prefix}*", count=1000))
        register_run(hand.client, hand.head, "trainer")
    else:
        keys = hand.client.keys
        client.delete(keys.round(0), *(keys.group(group_id(0, index)) for index in range(5)))
        trainer.publish(hand.head, "object")
        assert len(hand.reader.groups(0)) == 5
    assert next_prompts(hand) == ["p5", "p6", "p7", "p8"]


def test_groups_drawn_after_redis_forgot_what_was_committed_are_put_aside(hand: HandRun) -> None:
    """Redis goes back to the round's opening; served again, other groups had equal rewards, and one more was drawn."""
    trainer = finished_round(hand)
    client: Any = hand.client.redis
    keys = hand.client.keys
    names = [keys.open(0), keys.deferred(0), keys.leases(0), keys.round(0), keys.ledger]
    client.delete(*names, *(keys.group(group_id(0, index)) for index in range(5)))
    before = Link(hand.genesis.key, "0" * 64, hand.genesis)
    round_0 = HandRun(hand.client, hand.reader, hand.rollout, hand.genesis, before)
    round_0.open()
    round_0.filter(0, draw)
    round_0.filter(3, draw)
    late = round_0.score(5)
    trainer.publish(hand.head, "object")
    *_, beyond = rows = hand.reader.groups(0)
    assert [row["state"] for row in rows] == ["trained", "filtered", "trained", "trained", "trained", "rejected"]
    assert beyond["reason"] == NOT_COMMITTED
    then = hand.snapshot()
    with pytest.raises(LedgerRefused, match="group is rejected"):
        round_0.end(late, draw)
    trainer.publish(hand.head, "object")
    assert hand.snapshot() == then
    assert next_prompts(hand) == ["p5", "p6", "p7", "p8"]


def test_a_commit_is_not_applied_beside_a_draw(hand: HandRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker draws between the trainer's look and its call; the trainer starts over, and then it knows."""
    trainer = finished_round(hand)
    look = trainer._beyond

    def overtaken(commit: Any) -> list[str]:
        found = look(commit)
        client: Any = hand.client.redis
        client.hset(hand.client.keys.round(0), "groups", 6)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_beyond", overtaken)
        with pytest.raises(LedgerRefused, match="another group of round 0 was drawn meanwhile"):
            trainer.publish(hand.head, "object")
    assert hand.reader.run_state()["version"] == "0"
    trainer.publish(hand.head, "object")
    assert hand.reader.run_state()["version"] == "1"
