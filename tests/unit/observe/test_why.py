import pytest

from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.observe.why import group_history

GROUP = "r000000-g0001"


def test_a_group_that_was_trained_with_its_second_attempt(history):
    history.open(0, 0)
    history.group(0, "r000000-g0000", GroupState.DEFERRED, 0)
    history.group(0, GROUP, GroupState.DEFERRED, 0, prompt="walk-17")
    history.group(1, GROUP, GroupState.ADMITTED)
    history.group(4, GROUP, GroupState.DEFERRED, 1, reason="lease ran out")
    history.serve(GROUP, 5, 7, 8, attempt=2)
    history.refused(8.5, GROUP, 1, "attempt 2 is the current one")
    history.claim(9, "r000000-g0000", 0, 0)
    history.claim(9, GROUP, 1, 0, attempt=2)
    history.seal(9, 0, 0)  # not its update
    history.seal(10, 0, 1)
    history.step(11, 0, 1, [(9, 11)], replay=True)
    history.group(12, GROUP, GroupState.TRAINED, 2)
    told = group_history(history.events, GROUP)
    assert told.verdict == f"{GROUP} was trained, after 2 attempts"
    assert [(step.at_s, step.after_s, step.words) for step in told.steps] == [
        (0, 0, "created with prompt walk-17 when round 0 opened"),
        (1, 1, "admitted: attempt 1"),
        (4, 3, "re-admitted: attempt 1 was lost while admitted: lease ran out"),
        (5, 1, "admitted: attempt 2"),
        (7, 2, "all its responses are finished: it left the frontier"),
        (8, 1, "scored, with its advantages"),
        (
            8,
            0,
            "announced: 2 samples, 40 tokens, reward 0.5 (std 0.5), sampled by v0, "
            f"object runs/walk/groups/{GROUP}-2.arrow",
        ),
        (8.5, 0.5, "an announcement of attempt 1 was put aside: attempt 2 is the current one"),
        (9, 0.5, "assigned to update 1, place 0"),
        (10, 1, "update 1 is final: 2 groups, 4 samples, 80 tokens"),
        (11, 1, "update 1 took the optimizer's step (replayed after a restart)"),
        (12, 1, "trained: the commit that holds it stands"),
    ]


def test_what_its_workers_engine_did_is_told_while_the_group_was_there(history):
    history.open(0, 0)
    history.group(0, GROUP, GroupState.DEFERRED, 0)
    history.noted(0.5, "worker-a", "server-0", "out of service: before it was admitted")
    history.group(1, GROUP, GroupState.ADMITTED)
    history.noted(2, "worker-a", "server-0", "out of service: killed")
    history.noted(2, "worker-b", "server-7", "out of service: another's")
    history.group(3, GROUP, GroupState.SERVING_COMPLETE)
    history.noted(4, "worker-a", "server-0", "serves v0 again")
    told = [step.words for step in group_history(history.events, GROUP).steps]
    assert told[2:-1] == ["server-0: out of service: killed"]


@pytest.mark.parametrize("state", [GroupState.FILTERED, GroupState.FAILED, GroupState.REJECTED])
def test_an_end_names_its_reason(history, state):
    history.group(0, GROUP, GroupState.DEFERRED, 0)
    history.group(1, GROUP, GroupState.ADMITTED)
    history.group(2, GROUP, state, reason="because")
    told = group_history(history.events, GROUP)
    assert told.verdict == f"{GROUP} ended {state}: because"
    assert told.steps[-1].words == f"ended {state}: because"


def test_a_filtered_group_and_the_one_in_its_place_name_each_other(history):
    other = "r000000-g0004"
    history.group(0, GROUP, GroupState.DEFERRED, 0, prompt="walk-1")
    history.group(2, GROUP, GroupState.FILTERED, reason="because", replaced_by=other)
    history.group(2, other, GroupState.DEFERRED, 0, prompt="walk-4", replaces=GROUP)
    assert group_history(history.events, GROUP).steps[-1].words == f"ended filtered: because, replaced by {other}"
    assert group_history(history.events, other).steps[0].words == f"created with prompt walk-4 in place of {GROUP}"


def test_a_group_that_is_still_on_its_way(history):
    history.group(0, GROUP, GroupState.DEFERRED, 0)
    history.round(1, 0, RoundState.GENERATING)
    told = group_history(history.events, GROUP)
    assert told.verdict == f"{GROUP} is deferred"
    assert told.to_json()["steps"][0]["words"] == "created when round 0 opened"


def test_an_assignment_that_was_taken_back(history):
    history.group(0, GROUP, GroupState.DEFERRED, 0)
    history.serve(GROUP, 1, 2, 3)
    history.claim(4, GROUP, 0, 0)
    history.group(5, GROUP, GroupState.QUEUED, reason="object damaged")
    assert group_history(history.events, GROUP).steps[-1].words == "its assignment was taken back: object damaged"


def test_an_unknown_group_is_bad_input(history):
    history.open(0, 0)
    with pytest.raises(BadInput, match="no such group"):
        group_history(history.events, GROUP)
    with pytest.raises(BadInput, match="not a group id"):
        group_history(history.events, "g1")
