from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.observe.timeline import Stay, Timelines, clip, merge


def test_union_of_intervals():
    assert merge([(5, 9), (0, 2), (1, 3), (9, 10)]) == [(0, 3), (5, 10)]
    assert merge([]) == []


def test_clip_drops_what_is_outside():
    assert clip([(0, 3), (5, 10), (12, 14)], 2, 12) == [(2, 3), (5, 10)]
    assert clip([(0, 3), (5, 10)], 2, None) == [(2, 3), (5, 10)]


def test_times_of_an_undisturbed_round(undisturbed):
    line = Timelines(undisturbed.events).round(0)
    at = undisturbed.T0
    assert line.state is RoundState.PUBLISHED
    assert (line.version, line.schedule, line.samples_per_group, line.groups_per_update) == (0, "cgp+fgd", 2, 2)
    assert (line.opened_ms, line.rollout_start_ms, line.drained_ms) == (at, at + 1000, at + 10000)
    assert (line.trained_ms, line.published_ms) == (at + 14000, at + 15500)
    assert line.busy() == [(at + 6000, at + 9000), (at + 10000, at + 14000)]
    assert line.first_claim_ms() == at + 6000


def test_rounds_come_in_order(undisturbed):
    assert [line.round for line in Timelines(undisturbed.events).rounds()] == [0, 1]


def test_stays_of_a_group_end_with_the_step_of_its_update(undisturbed):
    line = Timelines(undisturbed.events).round(0)
    at = undisturbed.T0
    stays = list(line.stays(line.groups[1], at + 99_000))
    assert stays == [
        Stay(GroupState.DEFERRED, at, at + 1000, 0),
        Stay(GroupState.ADMITTED, at + 1000, at + 7000, 1),
        Stay(GroupState.SERVING_COMPLETE, at + 7000, at + 8000, 1),
        Stay(GroupState.MATERIALIZED, at + 8000, at + 8000, 1),
        Stay(GroupState.QUEUED, at + 8000, at + 10000, 1),
        Stay(GroupState.CLAIMED, at + 10000, at + 14000, 1),
        Stay(GroupState.TRAINED, at + 15000, at + 15000, 1),
    ]


def test_a_running_groups_present_stay_lasts_until_now(history):
    history.open(0, 0)
    history.group(0, "r000000-g0000", GroupState.DEFERRED, 0)
    history.group(1, "r000000-g0000", GroupState.ADMITTED)
    line = Timelines(history.events).round(0)
    *_, last = line.stays(line.groups[0], history.T0 + 4000)
    assert last == Stay(GroupState.ADMITTED, history.T0 + 1000, history.T0 + 4000, 1)


def test_a_lost_lease_forgets_what_the_attempt_brought(history):
    history.open(0, 0)
    history.group(0, "r000000-g0000", GroupState.DEFERRED, 0)
    history.serve("r000000-g0000", 1, 2, 3, reward=1.0)
    history.group(4, "r000000-g0000", GroupState.DEFERRED, reason="hash of the object differs")
    group = Timelines(history.events).round(0).groups[0]
    assert (group.state, group.attempts, group.reward_mean, group.samples) == (GroupState.DEFERRED, 1, None, 0)

    history.serve("r000000-g0000", 5, 6, 7, attempt=2, reward=0.5)
    group = Timelines(history.events).round(0).groups[0]
    assert (group.state, group.attempts, group.reward_mean, group.samples) == (GroupState.QUEUED, 2, 0.5, 2)


def test_only_the_last_step_of_a_replayed_update_counts(history):
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.step(4, 0, 0, [(2, 4)], metrics={"loss": 1.0})
    history.role(8, epoch=2)
    history.step(12, 0, 0, [(9, 12)], replay=True, metrics={"loss": 3.0})
    line = Timelines(history.events).round(0)
    assert line.busy() == [(history.T0 + 9000, history.T0 + 12000)]
    assert line.updates[0].replay and line.updates[0].metrics == {"loss": 3.0}


def test_a_rejection_after_the_drain_moves_the_drain_not_the_start(history):
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.round(5, 0, RoundState.DRAINED)
    history.round(6, 0, RoundState.GENERATING, generation=2)
    history.round(9, 0, RoundState.DRAINED, generation=2)
    line = Timelines(history.events).round(0)
    assert (line.rollout_start_ms, line.drained_ms) == (history.T0 + 1000, history.T0 + 9000)
    assert line.state is RoundState.DRAINED


def test_a_round_opened_again_starts_afresh(history):
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.group(1, "r000000-g0000", GroupState.DEFERRED, 0)
    history.open(20, 0)
    line = Timelines(history.events).round(0)
    assert (line.opened_ms, line.rollout_start_ms, line.groups) == (history.T0 + 20000, None, {})


def test_taking_assignments_back_forgets_their_updates(history):
    history.open(0, 0)
    history.serve("r000000-g0000", 1, 2, 3, reward=1.0)
    history.claim(3, "r000000-g0000", 0, 0)
    history.seal(4, 0, 0, groups=1)
    history.step(4, 0, 0, [(3, 4)])
    history.group(9, "r000000-g0000", GroupState.QUEUED, reason="object of r000000-g0000 is damaged")
    line = Timelines(history.events).round(0)
    assert line.updates == {}
    assert (line.groups[0].update, line.groups[0].reward_mean) == (None, 1.0)


def test_versions_and_the_reason_of_a_stop(undisturbed):
    undisturbed.run(40, "stopped", "12 of 16 groups ended unused")
    timelines = Timelines(undisturbed.events)
    assert sorted(timelines.versions) == [1, 2]
    assert timelines.stop_reason == "12 of 16 groups ended unused"
