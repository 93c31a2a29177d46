from __future__ import annotations

from pathlib import Path

import pytest
from rolloutpipe_components.rollout.engines.sglang.answers import ServerInfo
from rolloutpipe_components.rollout.engines.sglang.failures import Unfit
from rolloutpipe_components.rollout.engines.sglang.terms import Terms, majority
from rolloutpipe_components.rollout.engines.sglang.weights import Weights

from rolloutpipe_core.domain import WeightVersion


def terms(by_priority: bool = False, positions: int | None = 512) -> Terms:
    return Terms(Weights(WeightVersion(1, "a" * 64), Path("/weights/aa")), by_priority, positions)


def test_equal_checksums_leave_nobody_out() -> None:
    assert terms().disagreeing({}) == {}
    assert terms().disagreeing({"a": ("11",)}) == {}
    assert terms().disagreeing({"a": ("11", "22"), "b": ("11", "22")}) == {}


def test_the_minority_is_out() -> None:
    found = terms().disagreeing({"a": ("11",), "b": ("12",), "c": ("11",)})
    assert found == {"b": "a 11; b 12; c 11; agreed: 11"}


def test_without_a_majority_nobody_can_be_trusted() -> None:
    assert set(terms().disagreeing({"a": ("11",), "b": ("12",)})) == {"a", "b"}
    assert set(terms().disagreeing({"a": ("1",), "b": ("1",), "c": ("2",), "d": ("3",)})) == {"a", "b", "c", "d"}
    assert majority([]) is None


def test_a_server_that_comes_alone_is_compared_with_what_was_agreed() -> None:
    agreed = terms()
    assert set(agreed.disagreeing({"a": ("11",), "b": ("12",), "c": ("11",)})) == {"b"}
    assert agreed.disagreeing({"b": ("12",)}) == {"b": "b 12; agreed: 11"}
    assert set(agreed.disagreeing({"b": ("12",), "d": ("12",)})) == {"b", "d"}, "they are no majority any more"
    assert agreed.disagreeing({"b": ("11",)}) == {}


def test_who_tells_no_checksums_is_trusted_until_another_tells_some() -> None:
    agreed = terms()
    assert agreed.disagreeing({"a": None, "b": None}) == {}
    assert agreed.disagreeing({"a": ("11",)}) == {}
    assert agreed.disagreeing({"b": None, "c": ("11",)}) == {"b": "b none; c 11; agreed: 11"}
    assert set(terms().disagreeing({"a": ("11",), "b": None})) == {"b"}
    assert set(terms().disagreeing({"a": ("11",), "b": None, "c": ("12",)})) == {"a", "b", "c"}


def test_a_server_without_priorities_is_unfit_where_they_are_needed() -> None:
    terms().check("a", ServerInfo())
    terms(by_priority=True).check("a", ServerInfo(enable_priority_scheduling=True))
    with pytest.raises(Unfit, match="a does not schedule by priority"):
        terms(by_priority=True).check("a", ServerInfo())


@pytest.mark.parametrize(
    ("model", "lengths", "positions"),
    [
        (512, [None, None], 512),
        (512, [1024, 256], 256),
        (512, [300, 256, None], 256),
        (None, [None], None),
        (None, [300, None], 300),
    ],
)
def test_the_first_servers_bound_what_is_sent(
    model: int | None, lengths: list[int | None], positions: int | None
) -> None:
    agreed = terms(positions=model)
    for length in lengths:
        agreed.check("a", ServerInfo(context_length=length))
    assert agreed.positions == positions


@pytest.mark.parametrize(("model", "length"), [(512, 511), (None, 4096)])
def test_who_comes_later_must_take_what_is_sent_already(model: int | None, length: int) -> None:
    agreed = terms(positions=model)
    agreed.settled = True
    agreed.check("a", ServerInfo(context_length=None))
    with pytest.raises(Unfit, match=f"b takes shorter sequences than the others; given: {length} tokens"):
        agreed.check("b", ServerInfo(context_length=length))
    assert agreed.positions == model
