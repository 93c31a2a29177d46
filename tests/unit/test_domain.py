"""Names that become keys: group ids and run names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpipe_core.domain import (
    ENDED_STATES,
    LEASED_STATES,
    GroupState,
    WeightVersion,
    group_id,
    parse_group_id,
    validate_run_name,
)
from rolloutpipe_core.errors import BadInput


def test_a_group_id_by_hand():
    assert group_id(12, 34) == "r000012-g0034"
    assert parse_group_id("r000012-g0034") == (12, 34)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_ids_come_back_and_grow_beyond_their_width(round, index):
    assert parse_group_id(group_id(round, index)) == (round, index)


@given(st.integers(0, 999_999), st.integers(0, 9_999), st.integers(0, 999_999), st.integers(0, 9_999))
def test_ids_of_the_usual_width_sort_as_their_numbers(round, index, other_round, other_index):
    ids, numbers = (
        (group_id(round, index), group_id(other_round, other_index)),
        ((round, index), (other_round, other_index)),
    )
    assert (ids[0] < ids[1]) == (numbers[0] < numbers[1])


@pytest.mark.parametrize(
    "text", ["", "r12-g34", "r000012-g034", "g0034", "r000012", "r000012-g0034 ", "r-00012-g0034", "r000012-g0034\n"]
)
def test_what_is_no_group_id_is_named(text):
    with pytest.raises(BadInput, match="not a group id") as caught:
        parse_group_id(text)
    assert caught.value.given == text


@pytest.mark.parametrize("name", ["a", "7", "walk-8", "a" * 63, "a--b"])
def test_run_names(name):
    assert validate_run_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a/b", "a{b}", "a b", "a\n", "ä", "a.b", "..", "a:b"]
)
def test_a_run_name_that_would_break_a_key_is_refused(name):
    with pytest.raises(BadInput) as caught:
        validate_run_name(name)
    assert caught.value.given == repr(name)
    assert caught.value.exit_code == 2


def test_versions_are_the_same_only_if_number_and_manifest_are():
    version = WeightVersion(3, "a" * 64)
    assert version == WeightVersion(3, "a" * 64)
    assert version != WeightVersion(3, "b" * 64)
    assert version != WeightVersion(4, "a" * 64)
    assert str(version) == "v3@aaaaaaaaaaaa"


def test_leased_and_ended_states_are_disjoint_and_leave_the_others_to_nobody_or_to_the_trainer():
    rest = set(GroupState) - set(LEASED_STATES) - set(ENDED_STATES)
    assert rest == {GroupState.DEFERRED, GroupState.QUEUED, GroupState.CLAIMED, GroupState.TRAINED}
    assert not set(LEASED_STATES) & set(ENDED_STATES)
