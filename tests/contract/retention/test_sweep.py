"""Deletion in two phases, on a real store and a real Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rolloutpipe_core.errors import Damaged, Fenced, ObjectMissing
from rolloutpipe_core.ledger.retention import RetentionLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.observe.audit import audit_run
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.retention.sweep import Removed

from .conftest import GROUPS, HandRun

KEPT = {"v3", "v4", "groups/r000002", "groups/r000003", "checkpoints/r000002-e1-n", "checkpoints/r000003-e1-n"}
OLD = {"v0", "v1", "v2", "groups/r000000", "groups/r000001", "checkpoints/r000000-e1-n", "checkpoints/r000001-e1-n"}


@pytest.fixture
def grown(hand: HandRun) -> HandRun:
    """Rounds 0 to 3, the head is version 4."""
    hand.grow(4)
    return hand


def names(run: HandRun, labels: set[str]) -> set[str]:
    """The sets' names, versions by their hashes."""
    return {run.set(int(label[1:])) if label.startswith("v") else label for label in labels}


def test_one_pass_retires_and_the_next_deletes(grown: HandRun) -> None:
    retention = grown.retention()
    assert retention.apply() == Removed()
    assert grown.sets() == KEPT | OLD and grown.marks() == names(grown, OLD)

    removed = retention.apply()
    assert grown.sets() == KEPT and grown.marks() == set()
    objects = 3 * 2 + 2 * GROUPS + 2 * 2
    assert removed.objects == objects and removed.bytes > 0
    assert retention.apply() == Removed()

    (retired, sets, none), (deleted, gone, count) = grown.moves()
    assert (retired, set(sets), none) == ("retired", names(grown, OLD), 0)
    assert (deleted, set(gone), count) == ("deleted", names(grown, OLD), objects)
    state = grown.reader.run_state()
    assert (int(state["deleted_objects"]), int(state["deleted_bytes"])) == (objects, removed.bytes)
    assert len(grown.chain.read()) == 5  # commits always stay


def test_what_is_retired_ripens_first(grown: HandRun) -> None:
    retention = grown.retention(ripe_s=3600)
    for _ in range(3):
        assert retention.apply() == Removed()
    assert grown.sets() == KEPT | OLD and len(grown.moves()) == 1


def test_before_the_first_commit_nothing_happens(hand: HandRun) -> None:
    assert hand.retention().apply() == Removed()
    assert hand.sets() == {"v0"} and hand.moves() == []


def test_the_kl_reference_stays(grown: HandRun) -> None:
    grown.changes = {"loss": {"kl_coefficient": 0.1}}
    retention = grown.retention()
    retention.apply()
    retention.apply()
    assert grown.sets() == KEPT | {"v0"}


def test_a_successor_goes_on_between_the_phases(grown: HandRun) -> None:
    grown.retention().apply()
    grown.retention().apply()
    assert grown.sets() == KEPT and grown.marks() == set()


def test_a_half_deleted_set_is_finished(grown: HandRun) -> None:
    grown.retention().apply()
    grown.store.delete(f"runs/{grown.name}/{grown.set(1)}/manifest.json")
    for group in grown.links[1].commit.groups[:1]:  # type: ignore[union-attr]
        grown.store.delete(group.object)
    grown.retention().apply()
    assert grown.sets() == KEPT and grown.marks() == set()


def test_a_deletion_that_was_not_told_is_told(grown: HandRun) -> None:
    """The trainer died between the deletion and its event."""
    grown.retention().apply()
    grown.store.delete_many([info.key for info in grown.store.list(f"runs/{grown.name}/{grown.set(1)}/")])
    grown.retention(ripe_s=3600).apply()
    assert grown.marks() == names(grown, OLD - {"v1"})
    assert grown.moves()[-1] == ("deleted", (grown.set(1),), 0)


def test_a_replaced_trainer_deletes_nothing(grown: HandRun) -> None:
    zombie = grown.retention()
    zombie.apply()
    TrainerLedger.take_role(grown.client, "successor", 0)
    with pytest.raises(Fenced):
        zombie.apply()
    assert grown.sets() == KEPT | OLD


class Interrupted(RetentionLedger):
    """The trainer falls asleep behind its last word with Redis, and `meanwhile` happens."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def retire(self, *args: Any) -> list[str]:
        ripe = super().retire(*args)
        type(self).meanwhile()
        return ripe


def test_what_a_newer_commit_refers_to_is_not_deleted(grown: HandRun) -> None:
    """Version 5 has version 1's weights again, byte for byte; its commit comes in between."""
    grown.retention().apply()
    zombie = grown.retention(ledger=Interrupted)

    def meanwhile() -> None:
        TrainerLedger.take_role(grown.client, "successor", 0)
        grown.commit("v1")

    Interrupted.meanwhile = staticmethod(meanwhile)
    with pytest.raises(Fenced):
        zombie.apply()
    assert grown.version(5).sha == grown.version(1).sha
    assert grown.store.get(f"runs/{grown.name}/{grown.set(5)}/manifest.json")

    grown.retention().apply()  # the successor's: it is held again, and may be pinned
    assert grown.set(5) not in grown.marks()
    assert ("kept", (grown.set(5),), 0) in grown.moves()
    grown.pins.pin(grown.version(5), "evaluation", 60)


def test_more_versions_kept_after_a_restart_are_released(grown: HandRun) -> None:
    grown.retention().apply()
    grown.retention(keep_versions=3).apply()
    assert grown.sets() == KEPT | {"v2", "checkpoints/r000001-e1-n"} and grown.marks() == set()


def test_more_rounds_kept_after_a_restart_are_not_told_as_deleted(grown: HandRun) -> None:
    """One is deleted by half: it stays retired, and only when it is due and gone, it is told as deleted."""
    grown.retention().apply()
    half = next(info.key for info in grown.store.list(f"runs/{grown.name}/groups/r000001/"))
    grown.store.delete(half)
    grown.retention(keep_rounds=4, ripe_s=3600).apply()
    assert "groups/r000001" in grown.sets() & grown.marks()
    assert [phase for phase, sets, _ in grown.moves() if "groups/r000001" in sets] == ["retired"]
    grown.retention().apply()
    assert grown.sets() == KEPT and grown.marks() == set()


def test_a_pinned_version_survives_until_its_pin_ends(grown: HandRun) -> None:
    grown.pins.pin(grown.version(1), "evaluation of math", 3600)
    retention = grown.retention()
    retention.apply()
    retention.apply()
    assert grown.sets() == KEPT | {"v1"}

    grown.pins.pin(grown.version(1), "evaluation of math", 0.001)  # the same pin: its end moves
    retention.apply()
    assert grown.pins.pins() == []
    retention.apply()
    assert grown.sets() == KEPT


def test_a_redis_that_may_have_lost_pins_gets_a_grace(grown: HandRun) -> None:
    retention = grown.retention()
    retention.apply()
    without_weights = {name for name in OLD if not name.startswith("v")}
    grown.client.redis.delete(grown.client.keys.retired)  # lost with the restart, like the pins perhaps
    grown.client.redis.hset(grown.client.keys.run, "redis_id", "the process before")
    retention.apply()
    assert grown.marks() == without_weights
    retention.apply()
    assert grown.sets() == KEPT | {"v0", "v1", "v2"}

    grown.client.redis.hset(grown.client.keys.run, "pins_since_ms", 1)  # the grace is over
    retention.apply()
    retention.apply()
    assert grown.sets() == KEPT


def test_an_emptied_redis_gets_a_grace(grown: HandRun) -> None:
    grown.client.redis.delete(*grown.client.redis.keys(f"{grown.client.keys.prefix}*"))  # type: ignore[misc]
    register_run(grown.client, grown.links[-1], "test")
    retention = grown.retention()
    retention.apply()
    retention.apply()
    assert grown.sets() == KEPT | {"v0", "v1", "v2"}


def test_what_a_smaller_limit_deleted_before_redis_was_emptied(grown: HandRun) -> None:
    """The run began with 50 rounds and went on with 2; Redis, which was told what was retired, is lost."""
    grown.put("config.json", grown.config(keep_rounds=50).model_dump_json().encode())
    for _ in range(2):
        grown.retention().apply()
    grown.client.redis.delete(*grown.client.redis.scan_iter(f"{grown.client.keys.prefix}*"))
    register_run(grown.client, grown.links[-1], "test")
    ledger = TrainerLedger.take_role(grown.client, "test", 0)

    def missing() -> set[str]:
        audit = audit_run(grown.reader, grown.store)
        return {finding.where for finding in audit.findings if finding.check == "object-missing"}

    assert len(missing()) == 2 * GROUPS
    RetentionLedger(grown.client, ledger.epoch).housekept(2)
    assert missing() == set()
    grown.store.delete(gone := grown.links[3].commit.groups[0].object)
    assert missing() == {gone}


def test_a_bucket_that_lost_commits_is_left_alone(grown: HandRun) -> None:
    """It was restored from a copy: what the copy's head refers to is not what ours did."""
    retention = grown.retention()
    retention.apply()
    grown.store.delete(grown.links[-1].key)
    with pytest.raises(Damaged, match="got shorter"):
        retention.apply()
    assert grown.sets() == KEPT | OLD


def there(run: HandRun, keys: list[str]) -> list[bool]:
    found = {info.key for info in run.store.list(f"runs/{run.name}/")}
    return [key in found for key in keys]


def test_orphans_are_swept_when_old_and_decided(hand: HandRun) -> None:
    hand.commit()
    lost = [hand.put("weights/ffffffffffffffff/model.safetensors")]
    for _ in range(2):
        hand.commit()
    lost += [hand.put("groups/r000003/g0000-ffffffffffffffff.arrow"), hand.put("checkpoints/r000003-e9-dead/state.bin")]
    hand.begin_upload("weights/eeeeeeeeeeeeeeee/model.safetensors")
    hand.grow(1)
    others = [
        hand.put("groups/r000004/g0000-ffffffffffffffff.arrow"),  # of the open round
        hand.put("weights/dddddddddddddddd/model.safetensors"),  # under way
        hand.put("notes.txt"),
    ]
    patient = hand.retention(orphan_age_s=3600)
    patient.apply()
    patient.apply()
    assert there(hand, lost) == [True] * 3 and len(list(hand.store.unfinished_uploads(f"runs/{hand.name}/"))) == 1
    eager = hand.retention()
    eager.apply()
    eager.apply()
    assert there(hand, lost) == [False] * 3 and there(hand, others) == [True] * 3
    assert list(hand.store.unfinished_uploads(f"runs/{hand.name}/")) == []
    assert ("swept", ("groups/r000003",), 1) in hand.moves()
    assert hand.sets() >= KEPT


def test_another_runs_objects_are_its_own(grown: HandRun) -> None:
    """Its name begins with this run's."""
    other = f"runs/{grown.name}-2/weights/ffffffffffffffff/model.safetensors"
    grown.store.put(other, b"bytes")
    retention = grown.retention()
    retention.apply()
    retention.apply()
    assert grown.store.get(other) == b"bytes"


def test_what_is_kept_is_kept_by_its_bytes(grown: HandRun) -> None:
    retention = grown.retention()
    retention.apply()
    retention.apply()
    for link in grown.links[3:]:
        for group in link.commit.groups:  # type: ignore[union-attr]
            assert grown.store.get(group.object)
    with pytest.raises(ObjectMissing):
        grown.store.get(grown.links[1].commit.groups[0].object)  # type: ignore[union-attr]
