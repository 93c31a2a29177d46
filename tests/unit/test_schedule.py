"""Scheduling decisions: the paper's example and properties that hold for every round."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.schedule import (
    AdmissionPolicy,
    Finish,
    Step,
    Take,
    TrainerView,
    Wait,
    admissible,
    next_action,
)

HARD = AdmissionPolicy(width=2, fill=False, share=None)
FILL = AdmissionPolicy(width=2, fill=True, share=None)


def schedule(**changes: object) -> ScheduleConfig:
    base = {"groups_per_round": 6, "samples_per_group": 4, "update_batch_size": 8, "frontier_width": 2}
    return ScheduleConfig.model_validate({**base, **changes})


def admit(open: list[str], deferred: set[str], policy: AdmissionPolicy, held: int = 0, spare: int = 0) -> list[str]:
    return admissible(open, deferred, policy, held=held, spare_slots=spare, samples_per_group=4)


# --- admission: F_w = 2, groups 1 to 6 (paper, section on FGD)


def test_the_frontier_is_the_two_lowest_groups() -> None:
    groups = ["1", "2", "3", "4", "5", "6"]
    assert admit(groups, set(groups), HARD) == ["1", "2"]


def test_a_slot_frees_at_serving_complete_and_not_before() -> None:
    # 1 and 2 are in service: nothing is admitted, whatever the engine has free.
    assert admit(["1", "2", "3", "4"], {"3", "4"}, HARD, held=2, spare=64) == []
    # 2 is serving-complete (it left `open`) although 1 is not: 3 takes its place.
    assert admit(["1", "3", "4"], {"3", "4"}, HARD, held=1, spare=64) == ["3"]


def test_a_readmitted_lower_group_goes_first() -> None:
    # 2 was rejected and is deferred again while 5 and 6 are in service.
    assert admit(["2", "5", "6"], {"2"}, HARD, held=2) == ["2"]


def test_a_replacement_is_admitted_by_its_index_behind_the_others() -> None:
    # 0 and 1 were filtered, 6 and 7 drawn in their places; 2 and 3 are in service.
    groups = ["2", "3", "4", "5", "6", "7"]
    assert admit(groups, {"4", "5", "6", "7"}, HARD, held=2) == []
    assert admit(groups[1:], {"4", "5", "6", "7"}, HARD, held=1) == ["4"]
    assert admit(["5", "6", "7"], {"6", "7"}, FILL, held=1, spare=4) == ["6"]
    # All at once: what was drawn goes as soon as there is room for it.
    at_once = AdmissionPolicy.of(schedule(kind="cgp"), workers=2)
    assert admit(["4", "6", "7"], {"6", "7"}, at_once, held=1, spare=0) == ["6", "7"]


def test_fill_takes_the_frontier_first_and_then_what_spare_slots_hold() -> None:
    groups = ["1", "2", "3", "4", "5", "6"]
    # 16 slots, 4 samples a group: frontier 1, 2 use 8; 8 more slots hold 3 and 4.
    assert admit(groups, set(groups), FILL, spare=16) == ["1", "2", "3", "4"]
    # 3 spare slots: the next group overlaps, so that no slot idles.
    assert admit(["1", "2", "3", "4"], {"3", "4"}, FILL, held=2, spare=3) == ["3"]
    assert admit(["1", "2", "3", "4"], {"3", "4"}, FILL, held=2, spare=0) == []


def test_fill_admits_the_frontier_even_without_spare_slots() -> None:
    assert admit(["1", "2", "3"], {"2", "3"}, FILL, held=1, spare=0) == ["2"]


def test_all_at_once_and_the_workers_share() -> None:
    groups = ["1", "2", "3", "4", "5", "6"]
    alone = AdmissionPolicy.of(schedule(kind="cgp"), workers=1)
    assert admit(groups, set(groups), alone) == groups
    pair = AdmissionPolicy.of(schedule(kind="serial"), workers=2)
    assert admit(groups, set(groups), pair) == ["1", "2", "3"]
    assert admit(groups, {"4", "5", "6"}, pair, held=3) == []


def test_the_workers_share_a_hard_frontier() -> None:
    """Otherwise the first would always hold the whole of it."""
    groups = ["1", "2", "3", "4", "5"]
    pair = AdmissionPolicy.of(schedule(kind="cgp+fgd", frontier_mode="hard", frontier_width=3), workers=2)
    assert admit(groups, set(groups), pair) == ["1", "2"]
    assert admit(groups, {"3", "4", "5"}, pair, held=2) == []
    assert admit(groups, {"3", "4", "5"}, pair, held=0) == ["3"]
    assert admit(groups, {"3", "4", "5"}, pair, held=1) == ["3"]


def test_only_cgp_fgd_hard_caps_the_frontier_for_all_workers() -> None:
    width = {
        (kind, mode): AdmissionPolicy.of(schedule(kind=kind, frontier_mode=mode), 1).hard_width
        for kind in ("serial", "cgp", "cgp+fgd", "stream")
        for mode in ("hard", "fill")
    }
    assert {key for key, value in width.items() if value} == {("cgp+fgd", "hard")}
    assert width["cgp+fgd", "hard"] == 2


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 30), st.randoms())
def test_a_whole_round_of_admissions(
    groups: int, width: int, samples: int, fill: bool, slots: int, rng: random.Random
) -> None:
    """Every group is served once, lowest order first, never more than F_w in a hard frontier."""
    open = [f"{index:02d}" for index in range(groups)]
    deferred, serving, served = set(open), set[str](), list[str]()
    policy = AdmissionPolicy(width=width, fill=fill, share=None)
    while open:
        spare = max(0, slots - len(serving) * samples)
        chosen = admissible(open, deferred, policy, held=len(serving), spare_slots=spare, samples_per_group=samples)
        assert chosen == sorted(chosen), "lowest submission order first"
        assert not chosen or max(chosen) < min(deferred - set(chosen), default="99"), "nobody is overtaken"
        for group in chosen:
            deferred.remove(group)
            serving.add(group)
            served.append(group)
        assert set(open[:width]) <= serving, "the whole frontier is in service"
        assert fill or len(serving) <= width
        if fill and slots:
            assert not deferred or len(serving) * samples >= slots, "no slot idles while a group waits"
        done = rng.choice(sorted(serving))
        serving.remove(done)
        open.remove(done)
    assert served == sorted(served)
    assert len(served) == len(set(served)) == groups


# --- trainer


def view(
    ready: list[int],
    accumulated: int = 0,
    drained: bool = False,
    arriving: tuple[int, ...] = (),
    outstanding: set[int] | None = None,
) -> TrainerView:
    return TrainerView(tuple(ready), accumulated, drained, arriving, frozenset(outstanding or set(ready)))


def test_serial_waits_for_the_drain_then_goes_by_index() -> None:
    serial = schedule(kind="serial")
    assert isinstance(next_action(view([3, 1, 0]), serial), Wait)
    assert next_action(view([3, 1, 0], drained=True), serial) == Take((0, 1))


def test_serial_reads_a_drained_round_piece_by_piece_and_keeps_to_the_index() -> None:
    serial = schedule(kind="serial")
    assert next_action(view([3, 1, 0], drained=True, arriving=(2,)), serial) == Take((0, 1))
    assert isinstance(next_action(view([3, 2, 0], drained=True, arriving=(1,)), serial), Wait)
    assert isinstance(next_action(view([0, 1], arriving=(2,)), serial), Wait), "not drained"


def test_a_view_as_it_would_be_if_fetching_took_no_time() -> None:
    cgp = schedule(kind="cgp")
    fetching = view([5], arriving=(2,))
    assert isinstance(next_action(fetching, cgp), Wait)
    assert next_action(fetching.all_ready(), cgp) == Take((5, 2))


def test_cgp_starts_at_u_ready_groups_in_order_of_completion() -> None:
    cgp = schedule(kind="cgp")
    assert next_action(view([5]), cgp) == Wait("2 ready groups (1 are ready, 0 arriving)")
    assert next_action(view([5, 2, 0]), cgp) == Take((5, 2))
    assert next_action(view([0], accumulated=2), cgp) == Step()


def test_the_last_update_may_be_partial() -> None:
    cgp = schedule(kind="cgp")
    assert next_action(view([4], drained=True), cgp) == Take((4,))
    assert next_action(view([], accumulated=1, drained=True), cgp) == Step()
    assert next_action(view([], drained=True), cgp) == Finish()
    assert isinstance(next_action(view([], drained=True, arriving=(2,)), cgp), Wait)


def test_stream_takes_all_that_is_ready_and_steps_at_u() -> None:
    stream = schedule(kind="stream", update_batch_size=16)
    assert next_action(view([3]), stream) == Take((3,))
    assert next_action(view([3, 1, 2]), stream) == Take((3, 1, 2))
    assert next_action(view([3, 1, 2], accumulated=3), stream) == Take((3,)), "only one is missing"
    assert next_action(view([3], accumulated=4), stream) == Step()


def test_stream_min_groups_gives_way_when_fewer_are_missing_or_left() -> None:
    stream = schedule(kind="stream", update_batch_size=16, stream_min_groups=2)
    assert isinstance(next_action(view([3]), stream), Wait)
    assert next_action(view([3], accumulated=3), stream) == Take((3,))
    assert next_action(view([3], drained=True), stream) == Take((3,))


def test_submission_order_waits_for_the_head_and_skips_ended_groups() -> None:
    cgp = schedule(kind="cgp", order="submission")
    waiting = next_action(view([1, 2], outstanding={0, 1, 2, 3}), cgp)
    assert waiting == Wait("2 ready groups (2 are ready, 0 arriving); group 0 heads the line")
    assert next_action(view([1, 2], outstanding={1, 2, 3}), cgp) == Take((1, 2)), "group 0 has ended"
    # Of the six groups 0 and 4 were filtered; 6 and 7 came in their places, and 6 is not there yet.
    assert next_action(view([5, 7], outstanding={5, 6, 7}), cgp) == Wait("2 ready groups (2 are ready, 0 arriving)"), (
        "7 does not overtake 6"
    )
    assert next_action(view([5, 7, 6], outstanding={5, 6, 7}), cgp) == Take((5, 6))
    assert isinstance(next_action(view([1, 3], outstanding={1, 2, 3}), cgp), Wait)


@given(
    st.sampled_from(["serial", "cgp", "cgp+fgd", "stream"]),
    st.sampled_from(["completion", "submission"]),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sets(st.integers(0, 35)),
    st.randoms(),
)
def test_every_group_is_in_one_update_of_u_groups_but_the_last(
    kind: str, order: str, groups: int, per_update: int, limit: int, ended: set[int], rng: random.Random
) -> None:
    """A group that ends is replaced by the next one, until `limit` times as many were drawn (1: none ever is)."""
    plan = schedule(kind=kind, order=order, groups_per_round=groups, update_batch_size=4 * per_update)
    coming, drawn = list(range(groups)), groups
    rng.shuffle(coming)
    outstanding, ready, updates, members = set(coming), list[int](), list[list[int]](), list[int]()
    while True:
        action = next_action(view(ready, len(members), drained=not coming, outstanding=outstanding), plan)
        match action:
            case Take(indices):
                assert indices
                members += indices
                ready = [index for index in ready if index not in indices]
                outstanding -= set(indices)
            case Step():
                updates.append(members)
                members = []
            case Wait(reason):
                assert coming, f"waits for what never comes: {reason}"
                index = coming.pop()
                if index in ended:
                    outstanding.discard(index)
                    if drawn < limit * groups:
                        outstanding.add(drawn)
                        coming.insert(rng.randint(0, len(coming)), drawn)
                        drawn += 1
                else:
                    ready.append(index)
            case Finish():
                break
    assert not members
    assert [len(update) for update in updates[:-1]] == [per_update] * (len(updates) - 1)
    trained = [index for update in updates for index in update]
    kept = [index for index in range(limit * groups) if index not in ended][:groups]
    assert sorted(trained) == kept, "the first R that did not end, whatever came first"
    if order == "submission" or kind == "serial":
        assert trained == sorted(trained)
