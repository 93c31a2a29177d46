from __future__ import annotations

from rolloutpipe_components.trainer.ranks.verdict import verdict

from rolloutpipe_core.errors import Damaged, StoreUnavailable

ALTERED = "altered object: sha256 12, announced 34"


def test_nothing_found() -> None:
    assert verdict({}, 3) is None


def test_one_ranks_bad_read_is_everyones_and_names_the_rank() -> None:
    found = verdict({2: Damaged(ALTERED)}, 3)
    assert isinstance(found, Damaged)
    assert str(found) == f"rank 2 of 3: {ALTERED}"


def test_what_all_found_alike_is_told_once() -> None:
    assert str(verdict({rank: Damaged(ALTERED) for rank in range(3)}, 3)) == ALTERED


def test_what_ranks_found_differently_names_the_first() -> None:
    assert str(verdict({1: Damaged("other"), 0: Damaged(ALTERED)}, 2)) == f"rank 0 of 2: {ALTERED}"


def test_proven_damage_comes_before_an_outage() -> None:
    outage = StoreUnavailable("S3 is away", given="60 s")
    assert isinstance(verdict({0: outage, 1: Damaged(ALTERED)}, 2), Damaged)
    alone = verdict({1: outage}, 2)
    assert isinstance(alone, StoreUnavailable)
    assert str(alone) == "rank 1 of 2: S3 is away; given: 60 s"
