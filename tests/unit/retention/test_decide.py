"""A hand-made run: rounds 0 to 5 are committed, so that version 6 is the head. Times are minutes of one hour."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rolloutpipe_core.config.models import RetentionConfig
from rolloutpipe_core.retention.decide import (
    ChainEnd,
    CommitFacts,
    ObjectSet,
    due,
    held,
    object_sets,
    orphans,
    set_of,
)
from rolloutpipe_core.store.objects import ObjectInfo

ZERO = "weights/" + "0" * 16


def at(minute: int) -> datetime:
    return datetime(2026, 5, 1, 12, minute, tzinfo=UTC)


def weights(version: int) -> str:
    return f"weights/{version:016x}"


def checkpoint(round: int) -> str:
    return f"checkpoints/r{round:06d}-e1-ab"


def key(round: int, index: int, sha: str = "ab") -> str:
    return f"runs/walk/groups/r{round:06d}/g{index:04d}-{sha}.arrow"


def commit(round: int, **changes: Any) -> CommitFacts:
    objects = frozenset(key(round, index) for index in range(2))
    return replace(CommitFacts(round, weights(round + 1), checkpoint(round), objects), **changes)


COMMITS = tuple(commit(round) for round in range(6))
END = ChainEnd(ZERO, COMMITS, at(30))


def info(name: str, minute: int = 10, bytes: int = 7) -> ObjectInfo:
    return ObjectInfo(name, bytes, modified=at(minute))


def one(name: str, minute: int = 10) -> ObjectSet:
    return ObjectSet(name, (f"runs/walk/{name}/file",), 7, at(minute))


def keep(**changes: Any) -> RetentionConfig:
    return RetentionConfig(**{"keep_rounds": 3, "keep_versions": 2, "orphan_age_s": 600, **changes})


def names(found: list[ObjectSet], end: ChainEnd = END, **changes: Any) -> list[str]:
    """What may go of `found` at minute 40."""
    pinned, reference = changes.pop("pinned", ()), changes.pop("reference", False)
    return [gone.name for gone in due(found, end, keep(**changes), reference, pinned, at(40))]


def test_a_listing_becomes_sets() -> None:
    listing = [
        info("runs/walk/checkpoints/r000003-e1-ab/manifest.json", 11),
        info("runs/walk/checkpoints/r000003-e1-ab/state/optimizer.bin", 12),
        info("runs/walk/commits/c000003.json"),
        info("runs/walk/config.json"),
        info(key(3, 0)),
        info(key(12, 0)),
        info("runs/walk/ledger/1-0-2-0.parquet"),
        info("runs/walk/notes/mine.txt"),
        info("runs/walk/weights/0000000000000004/model.safetensors"),
    ]
    assert [(found.name, len(found.keys), found.bytes, found.modified) for found in object_sets(listing)] == [
        ("checkpoints/r000003-e1-ab", 2, 14, at(12)),
        ("groups/r000003", 1, 7, at(10)),
        ("groups/r000012", 1, 7, at(10)),
        ("weights/0000000000000004", 1, 7, at(10)),
    ]


@pytest.mark.parametrize(
    "name",
    ["runs/walk/groups/extra.txt", "runs/walk/weights/mine/file", "runs/walk/groups/r000001", "probes/ab/race-0"],
)
def test_foreign_names_belong_to_no_set(name: str) -> None:
    assert set_of(name) is None


@pytest.mark.parametrize(("keep_rounds", "gone"), [(1, [0, 1, 2, 3, 4]), (3, [0, 1, 2]), (6, []), (None, [])])
def test_groups_stay_for_so_many_rounds_after_their_commit(keep_rounds: int | None, gone: list[int]) -> None:
    found = [one(f"groups/r{round:06d}") for round in range(8)]
    assert names(found, keep_rounds=keep_rounds) == [f"groups/r{round:06d}" for round in gone]


@pytest.mark.parametrize(("keep_versions", "gone"), [(1, [1, 2, 3, 4, 5]), (2, [1, 2, 3, 4]), (6, []), (9, [])])
def test_weights_and_checkpoints_of_the_newest_versions_stay(keep_versions: int, gone: list[int]) -> None:
    found = [one(weights(version)) for version in range(1, 7)] + [one(checkpoint(round)) for round in range(6)]
    expected = [weights(version) for version in gone] + [checkpoint(version - 1) for version in gone]
    assert names(found, keep_versions=keep_versions) == expected


@pytest.mark.parametrize(
    ("keep_versions", "reference", "stays"), [(2, False, False), (6, False, False), (7, False, True), (1, True, True)]
)
def test_version_0_stays_as_a_newest_version_or_as_the_reference(
    keep_versions: int, reference: bool, stays: bool
) -> None:
    assert (ZERO in held(END, keep(keep_versions=keep_versions), reference)) is stays
    assert (names([one(ZERO)], keep_versions=keep_versions, reference=reference) == []) is stays


def test_a_pinned_version_stays_and_its_checkpoint_goes() -> None:
    found = [one(weights(2)), one(weights(3)), one(checkpoint(1))]
    assert names(found, pinned={weights(2)}) == [weights(3), checkpoint(1)]


def test_equal_weights_under_two_versions_are_one_set() -> None:
    """Rounds 3, 4 and 5 had no updates: version 6 is version 3 by content, with round 2's checkpoint."""
    still = tuple(commit(round, weights=weights(3), checkpoint=checkpoint(2)) for round in (3, 4, 5))
    end = ChainEnd(ZERO, (*COMMITS[:3], *still), at(30))
    assert names([one(weights(2)), one(weights(3)), one(checkpoint(2))], end, keep_versions=1) == [weights(2)]


def test_without_a_checkpoint_in_the_head_nothing_fails() -> None:
    end = ChainEnd(ZERO, (commit(0, checkpoint=None),), at(30))
    assert held(end, keep(keep_versions=1), False) == {weights(1)}


@pytest.mark.parametrize(
    ("minute", "gone"),
    [
        (29, True),  # 11 minutes old, written before the head's commit
        (30, False),  # in the second of the head's commit: perhaps the next round's
        (31, False),  # the next round's upload
    ],
)
def test_a_losers_weights_are_swept_when_old_and_decided(minute: int, gone: bool) -> None:
    lost = [one("weights/ffffffffffffffff", minute), one("checkpoints/r000005-e2-cd", minute)]
    assert bool(names(lost)) is gone
    assert names(lost, orphan_age_s=3600) == []


def test_a_set_is_as_young_as_its_newest_object() -> None:
    found = list(
        object_sets([info("runs/walk/weights/ffffffffffffffff/a", 1), info("runs/walk/weights/ffffffffffffffff/b", 35)])
    )
    assert names(found) == []


def test_before_the_first_commit_nothing_goes() -> None:
    end = ChainEnd(ZERO, (), at(1))
    assert names([one(ZERO, 0), one("weights/ffffffffffffffff", 2), one("groups/r000000")], end, keep_versions=1) == []


def test_lost_attempts_of_committed_rounds_are_orphans() -> None:
    listing = [
        info(key(4, 0)),
        info(key(4, 0, "cd")),  # a lost attempt
        info(key(4, 1, "ef"), 35),  # a late upload: too young
        info(key(5, 1)),
        info(key(6, 0, "cd")),  # an open round
        info("runs/walk/groups/mine.txt"),
    ]
    assert [found.key for found in orphans(listing, END, keep(), at(40))] == [key(4, 0, "cd")]
    assert orphans(listing, END, keep(orphan_age_s=3600), at(40)) == []
    assert orphans(listing, replace(END, commits=COMMITS[5:]), keep(), at(40)) == []  # round 4's commit is not known
