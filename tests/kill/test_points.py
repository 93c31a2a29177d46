"""Nothing that a service writes is without a fault point, and no fault point is left out of the matrix."""

from __future__ import annotations

import inspect

import pytest

from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.store.objects import ObjectStore

from .faults import BEFORE_THE_RUN, READS, WRITES
from .plan import ELSEWHERE, POINTS, RECIPES, VARIANTS, plan_runs
from .points import script_names, transition_of_call, transition_of_key, transitions


def test_every_transition_has_a_recipe() -> None:
    assert {*RECIPES, *ELSEWHERE} == set(transitions())
    assert not ELSEWHERE & RECIPES.keys()


def test_every_script_is_among_the_transitions() -> None:
    group = ["r000000-g0001", "worker", "1", "nonce", "materialized", "filtered"]
    for script in script_names():
        args = [*group[:5], "materialized"] if script == "advance" else [*group, "reason", "2", "4", ""]
        assert transition_of_call(script, args) in transitions()


def test_a_group_without_another_try_ends_by_a_transition_of_its_own() -> None:
    release = ["r000000-g0001", "worker", "nonce", "2", "the lease ran out"]
    reject = [1, "nonce", "trainer-1", "r000000-g0001", 1, "5-0", "damaged", 1]
    assert (transition_of_call("release", release), transition_of_call("reject", reject)) == ("release", "reject")
    release[3], reject[7] = "1", 0
    assert (transition_of_call("release", release), transition_of_call("reject", reject)) == ("failed", "rejected")


def test_a_filtered_group_in_whose_place_another_is_drawn_has_a_transition_of_its_own() -> None:
    finish = ["r000000-g0001", "worker", "1", "nonce", "materialized", "filtered", "reason", "r000000-g0004", 4, ""]
    assert transition_of_call("finish", finish) == "filtered"
    assert transition_of_call("finish", [*finish[:9], "p4"]) == "refilled"


def test_the_store_has_no_other_writing_method() -> None:
    public = {name for name, _ in inspect.getmembers(ObjectStore) if not name.startswith("_")}
    assert public == {*WRITES, *READS, *BEFORE_THE_RUN}
    assert list(inspect.signature(LedgerClient.call).parameters) == ["self", "script", "keys", "args"]


def test_an_unknown_key_or_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="no fault point for the key runs/a/other"):
        transition_of_key("runs/a/other")
    with pytest.raises(ValueError, match="no fault point for finish to lost"):
        transition_of_call("finish", ["r000000-g0001", "worker", "1", "nonce", "materialized", "lost"])


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_of_240_kills_is_at_every_point(seed: int) -> None:
    plans = plan_runs(seed, 240)
    planned = {deed.point for plan in plans for deed in plan.deeds if deed.is_kill}
    assert planned >= set(POINTS)
    assert plans == plan_runs(seed, 240)
    assert {plan.variant for plan in plans} == set(VARIANTS)
    for plan in plans:
        places = [(deed.point, deed.nth) for deed in plan.deeds if deed.point]
        assert len(places) == len(set(places))
