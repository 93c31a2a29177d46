from __future__ import annotations

from rolloutpipe_components.rollout.engines.sglang.handoff import odd_ones


def test_equal_checksums_leave_nobody_out() -> None:
    assert odd_ones({}) == {}
    assert odd_ones({"a": ("11",)}) == {}
    assert odd_ones({"a": ("11", "22"), "b": ("11", "22")}) == {}


def test_the_minority_is_out() -> None:
    found = odd_ones({"a": ("11",), "b": ("12",), "c": ("11",)})
    assert found == {"b": "a 11; b 12; c 11"}


def test_without_a_majority_nobody_can_be_trusted() -> None:
    assert set(odd_ones({"a": ("11",), "b": ("12",)})) == {"a", "b"}
    assert set(odd_ones({"a": ("1",), "b": ("1",), "c": ("2",), "d": ("3",)})) == {"a", "b", "c", "d"}
