"""The archive beside a live ledger: nothing is trimmed that does not stand in the store, whatever dies in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from rolloutpipe_core.domain import group_id
from rolloutpipe_core.errors import BadInput, Damaged, Fenced, LedgerRefused, RedisUnavailable
from rolloutpipe_core.ledger import archivist as archivist_module
from rolloutpipe_core.ledger import reader as reader_module
from rolloutpipe_core.ledger.archivist import LedgerArchivist, entries_sha1
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import RunMoved, place
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.observe.why import group_history
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.objects import ObjectStore

from .archived import NO_GRACE_MS, ROUND, START, Archived
from .conftest import GROUPS


@pytest.fixture
def run(redis_client: redis.Redis, run_name: str, object_store: ObjectStore) -> Archived:
    return Archived(redis_client, run_name, object_store)


def round_names(*rounds: int) -> set[str]:
    groups = {f"group:{group_id(round, index)}" for round in rounds for index in range(GROUPS)}
    return groups | {f"round:{round}" for round in rounds}


def test_old_rounds_leave_redis_and_stay_in_the_history(run: Archived) -> None:
    before = run.publish_rounds(4)
    assert len(before) == START + 4 * ROUND
    assert run.opened == [], "nothing is archived: nobody needs the store"
    run.archivist().tend(3)
    assert run.reader.events_kept() == ROUND
    assert run.names() == {"run", "ledger", "fifo", "weights", *round_names(3)}
    assert [len(list(run.archive.entries([part]))) for part in run.archive.parts()] == [START + ROUND, ROUND, ROUND]
    state = run.reader.run_state()
    assert state["archived_to"] == run.archive.parts()[-1].last
    assert (state["archived_round"], state["forgotten_round"], state["archive_bucket"]) == ("2", "2", run.store.bucket)
    assert list(run.reader.events()) == before
    assert list(run.reader.events(before[50].id)) == before[51:]
    assert run.audit().findings == []
    assert run.audit().rounds_in_ledger == 4
    history = group_history(run.reader.events(rounds={0}), group_id(0, 0))
    assert history.verdict == "r000000-g0000 was trained, with the first attempt"


def test_what_is_hot_is_read_without_the_store(run: Archived) -> None:
    before = run.publish_rounds(3)
    run.archivist().tend(2)
    run.opened.clear()
    of_round = [event for event in before if getattr(event, "round", None) == 2]
    assert list(run.reader.events(rounds={2, 3})) == of_round
    assert run.opened == []
    assert len(list(run.reader.events(rounds=range(1, 3)))) == 2 * len(of_round)
    assert run.opened == [run.store.bucket]
    with pytest.raises(BadInput, match="is archived"):
        list(LedgerReader(run.redis, run.keys.name).events())


def test_a_part_has_enough_events(run: Archived) -> None:
    run.publish_rounds(4)
    least = START + 2 * ROUND
    run.archivist(least=least + 1).tend(2)
    assert run.archive.parts() == []
    run.archivist(least=least).tend(3)
    (part,) = run.archive.parts()
    assert len(list(run.archive.entries([part]))) == least
    assert run.names() >= round_names(2, 3)
    run.archivist(least=least).tend(3)
    assert len(run.archive.parts()) == 1


def test_without_a_limit_all_stays(run: Archived) -> None:
    run.publish_rounds(3)
    keeper = LedgerArchivist(run.trainer, run.reader, run.store, None, 1, NO_GRACE_MS)
    keeper.tend(2)
    assert run.reader.events_kept() == START + 3 * ROUND
    assert run.names() >= round_names(0, 1, 2)
    assert (run.redis.xlen(run.keys.weights), run.redis.xlen(run.keys.fifo)) == (4, 3 * (GROUPS + 1))


def test_young_events_stay(run: Archived) -> None:
    """Redis may lose its last second; what it would then tell again must not stand in the archive already."""
    run.publish_rounds(3)
    LedgerArchivist(run.trainer, run.reader, run.store, 1, 1).tend(2)
    assert run.archive.parts() == []


class Dying(LedgerClient):
    """Its caller dies at the n-th script: before it, or before its answer comes."""

    def __init__(self, client: redis.Redis, run: str, calls: int, done: bool) -> None:
        super().__init__(client, run, 10)
        self.calls, self.done = calls, done

    def call(self, script: str, keys: Sequence[str], args: Sequence[object]) -> list[Any]:
        self.calls -= 1
        if self.calls > 0:
            return super().call(script, keys, args)
        if self.done:
            super().call(script, keys, args)
        raise RedisUnavailable(script)


@pytest.mark.parametrize("done", [False, True])
def test_whatever_dies_in_between(run: Archived, monkeypatch: pytest.MonkeyPatch, done: bool) -> None:
    """At every script in turn, each time with a round more; nothing is lost, nothing is read twice."""
    monkeypatch.setattr(archivist_module, "CHUNK", 30)
    run.publish_round()
    for calls in range(1, 5):  # two trims, forgetting, tidying
        run.publish_round()
        newest = run.hand.head.next_round - 1
        before = list(run.reader.events())
        dying = TrainerLedger(Dying(run.redis, run.keys.name, calls, done), run.trainer.epoch)
        with pytest.raises(RedisUnavailable):
            run.archivist(dying).tend(newest)
        assert list(run.reader.events()) == before
        if calls == 2:
            run.trainer = run.take_role()
    newest = run.hand.head.next_round - 1
    run.archivist().tend(newest)
    assert run.reader.events_kept() <= ROUND + START
    assert run.names() == {"run", "ledger", "fifo", "weights", *round_names(newest)}
    assert list(run.reader.events())[: len(before)] == before
    assert run.audit().findings == []
    assert run.audit().rounds_in_ledger == newest + 1


def test_an_upload_that_was_never_trimmed(run: Archived) -> None:
    before = run.publish_rounds(3)
    stream = list(run.reader.stream())
    run.archive.put(stream[: START + ROUND + 5])
    run.archive.put(stream[: START + 2 * ROUND])
    run.archivist().tend(2)
    assert len(run.archive.parts()) == 4, "the second was written again, in two"
    assert list(run.reader.events()) == before


def test_a_zombie_archives_and_trims_nothing_more(run: Archived) -> None:
    run.publish_rounds(2)
    zombie = run.archivist()
    successor = run.take_role()
    run.trainer = successor
    before = run.publish_rounds(2)
    for newest in (3, 0):  # with something to trim, and with nothing
        with pytest.raises(Fenced):
            zombie.tend(newest)
    assert run.reader.events_kept() == len(before)
    assert len(run.archive.parts()) == 1, "what it uploaded is true, so it does no harm"
    run.archivist().tend(3)
    assert list(run.reader.events()) == before
    with pytest.raises(Fenced):
        zombie.tend(3)


def test_only_what_was_archived_is_trimmed(run: Archived) -> None:
    run.publish_rounds(2)
    stream = list(run.reader.stream())
    part, last = stream[:20], stream[19][0]
    keys, token = [run.keys.run, run.keys.ledger], [run.trainer.epoch.number, run.trainer.epoch.nonce, "bucket"]
    other = [*part[:-1], (last, {**part[-1][1], "attempt": "9"})]
    for facts in (
        [last, 19, entries_sha1(part[:19])],
        [last, 21, entries_sha1(stream[:21])],
        [stream[29][0], 20, entries_sha1(part)],
        [last, 20, entries_sha1(other)],
    ):
        with pytest.raises(LedgerRefused, match="is not what was archived"):
            run.hand.client.call("trim_ledger", keys, [*token, *facts, 0])
    for _ in range(2):
        run.hand.client.call("trim_ledger", keys, [*token, last, 20, entries_sha1(part), 0])
        assert list(run.reader.stream()) == stream[20:]


def test_a_round_that_is_not_archived_is_not_forgotten(run: Archived) -> None:
    run.publish_rounds(2)
    run.archivist().tend(1)
    run.announce_all()
    for round, why in ((1, "round 1 is not archived"), (2, "round is drained")):
        with pytest.raises(LedgerRefused, match=why):
            args = [run.trainer.epoch.number, run.trainer.epoch.nonce, round, 1]
            run.hand.client.call("forget", run.keys.of_round(round), args)


def test_a_round_in_the_middle_of_a_trim(run: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first events are trimmed already, so whoever asks for it alone must look into the archive."""
    monkeypatch.setattr(archivist_module, "CHUNK", 30)
    before = run.publish_rounds(3)
    dying = TrainerLedger(Dying(run.redis, run.keys.name, 2, done=True), run.trainer.epoch)
    with pytest.raises(RedisUnavailable):
        run.archivist(dying, least=START + 2 * ROUND).tend(2)
    assert run.reader.events_kept() == len(before) - 60, "it died in round 1"
    for round in range(3):
        of_round = [event for event in before if getattr(event, "round", None) == round]
        assert list(run.reader.events(rounds={round})) == of_round


@pytest.mark.parametrize("read", [1, 40, START + 2 * ROUND + 5])
def test_reading_while_it_is_trimmed(run: Archived, monkeypatch: pytest.MonkeyPatch, read: int) -> None:
    monkeypatch.setattr(reader_module, "PAGE", 7)
    before = run.publish_rounds(3)
    events = run.reader.events()
    first = [next(events) for _ in range(read)]
    run.archivist().tend(2)
    assert first + list(events) == before


def test_an_archive_that_lacks_its_end(run: Archived) -> None:
    run.publish_rounds(3)
    run.archivist().tend(2)
    run.store.delete(run.archive.parts()[-1].key)
    with pytest.raises(Damaged, match="lacks its end"):
        list(run.reader.events())
    assert [finding.check for finding in run.audit().findings] == ["ledger-archive"]


def test_the_fifo_is_trimmed_behind_its_acknowledged_end(run: Archived) -> None:
    run.publish_rounds(3)
    run.announce_all()
    fifo, each = run.keys.fifo, GROUPS + 1
    entries = [id for id, _ in run.redis.xrange(fifo)]

    def left() -> list[str]:
        run.archivist().tend(2)
        return [id for id, _ in run.redis.xrange(fifo)]

    run.redis.xgroup_setid(fifo, "trainer", entries[1])
    assert left() == entries[1:], "what comes after it is undelivered"
    run.redis.xgroup_setid(fifo, "trainer", entries[3 * each - 1], entries_read=3 * each)
    run.redis.xclaim(fifo, "trainer", "trainer", 0, [entries[each]], force=True)
    assert left() == entries[each:], "it is pending"
    run.redis.xack(fifo, "trainer", entries[each])
    assert left() == entries[2 * each :], "round 2 is not archived"
    assert run.reader.fifo_depth() == each
    run.hand.announced(run.trainer)
    assert (run.reader.fifo_depth(), len(run.reader.pending())) == (each, each)


@pytest.mark.parametrize("gone", [0, 1])
def test_the_depth_of_a_trimmed_fifo(run: Archived, gone: int) -> None:
    """However far it is trimmed, Redis still knows how many entries are undelivered."""
    run.publish_rounds(2)
    run.redis.hset(run.keys.run, "archived_to", f"{'9' * 13}-0")
    LedgerArchivist(run.trainer, run.reader, run.store, None, 1).tend(1)
    assert (run.redis.xlen(run.keys.fifo), run.reader.fifo_depth()) == (1, 0)
    run.redis.xtrim(run.keys.fifo, maxlen=1 - gone, approximate=False)
    run.announce_all()
    assert run.reader.fifo_depth() == GROUPS + 1
    assert len(run.trainer.read("0-0")) == len(run.reader.pending()) == run.reader.fifo_depth() == GROUPS + 1


def test_the_newest_versions_stay_in_the_registry(run: Archived) -> None:
    run.publish_rounds(4)
    newest = run.reader.latest_version()
    run.archivist().tend(3)
    assert [version.number for version, _ in run.reader.versions()] == [3, 4]
    assert run.reader.latest_version() == newest


def test_services_that_are_gone(run: Archived) -> None:
    living, gone = run.keys.service("a"), run.keys.service("b")
    run.redis.sadd(run.keys.services, living, gone)
    run.redis.hset(living, "name", "a")
    run.archivist().tend(0)
    assert run.redis.smembers(run.keys.services) == {living}


def test_a_redis_that_lost_everything(run: Archived) -> None:
    archived = run.publish_rounds(3)[: START + 2 * ROUND]
    run.archivist().tend(2)
    run.redis.delete(*run.redis.scan_iter(f"{run.keys.prefix}*"))
    register_run(run.hand.client, run.hand.head, "trainer")
    run.trainer = run.take_role()
    run.archivist().reconcile()
    history = list(run.reader.events())
    assert history[: len(archived)] == archived
    assert [event.after for event in history if isinstance(event, RunMoved)] == ["prepared", "restored"]
    run.publish_rounds(2)
    run.archivist().tend(4)
    assert list(run.reader.events())[: len(history)] == history
    audit = run.audit()
    assert (audit.findings, audit.rounds_in_ledger) == ([], 4), "all but round 2, which was hot when Redis was lost"
    assert run.names() == {"run", "ledger", "fifo", "weights", *round_names(4)}


def test_a_redis_that_lost_the_trim(run: Archived) -> None:
    """It goes on where it was a second before: the archive has the part already."""
    before = run.publish_rounds(3)
    stream = list(run.reader.stream())
    state = run.reader.run_state()
    run.archivist().tend(2)
    run.redis.delete(run.keys.ledger, run.keys.run)
    for id, fields in stream:
        run.redis.xadd(run.keys.ledger, dict(fields), id=id)
    run.redis.hset(run.keys.run, mapping=state)
    assert list(run.reader.events()) == before
    run.archivist().tend(2)
    assert list(run.reader.events()) == before
    assert len(run.archive.parts()) == 2
    assert place(run.reader.run_state()["archived_to"]) == place(run.archive.parts()[-1].last)
    assert run.audit().findings == []


def test_a_redis_put_back_from_an_old_copy(run: Archived) -> None:
    """It ends at version 2, the archive at round 3, the chain at version 5: nothing of the archive is out of sight."""
    run.publish_rounds(2)
    copy = {key: run.redis.dump(key) for key in run.redis.scan_iter(f"{run.keys.prefix}*")}
    links = []
    for _ in range(3):
        run.publish_round()
        links.append(run.hand.head)
    of_round_3 = [event for event in run.reader.events() if getattr(event, "round", None) == 3]
    run.archivist().tend(4)
    run.redis.delete(*run.redis.scan_iter(f"{run.keys.prefix}*"))
    for key, dump in copy.items():
        run.redis.restore(key, 0, dump)
    run.trainer = run.take_role()
    for link in links:
        run.trainer.publish(link, "weights")
    run.archivist().reconcile()
    ends = run.reader.run_state()["archived_to"]
    run.archivist(least=2 * ROUND).tend(2)  # the copy's beginning alone
    assert run.reader.run_state()["archived_to"] == ends
    assert run.reader.archived_round() == 3
    assert list(run.reader.events(rounds={3}))[: len(of_round_3)] == of_round_3


def test_an_emptied_redis_whose_clock_is_behind(run: Archived) -> None:
    """The archive ends an hour from now: what is told from now on comes behind it all the same."""
    an_hour_on = run.reader.server_time_ms() + 3_600_000
    run.redis.execute_command("XSETID", run.keys.ledger, f"{an_hour_on}-0")
    archived = run.publish_rounds(3)[: START + 2 * ROUND]
    run.archivist().tend(2)
    run.redis.delete(*run.redis.scan_iter(f"{run.keys.prefix}*"))
    register_run(run.hand.client, run.hand.head, "trainer")
    run.trainer = run.take_role()
    run.archivist().reconcile()
    history = run.publish_rounds(1)
    assert history[: len(archived)] == archived
    assert len([event for event in history if getattr(event, "round", None) == 3]) == ROUND - 1
    run.publish_round()
    run.archivist().tend(4)
    assert len(list(run.reader.events())) == len(archived) + START + 2 * ROUND
    assert run.audit().findings == []
