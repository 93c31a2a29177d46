"""Numbers worked out by hand on the rounds drawn in conftest.py."""

import pytest

from rolloutpipe_core.domain import GroupState, RoundState
from rolloutpipe_core.observe.measures import all_round_metrics, round_metrics
from rolloutpipe_core.observe.timeline import Timelines


def metrics_of(history):
    return all_round_metrics(Timelines(history.events).rounds())


def test_durations_of_an_undisturbed_round(undisturbed):
    first, second = metrics_of(undisturbed)
    assert first.rollout_to_train_end_s == 13.0  # 1 to 14
    assert first.rollout_s == 9.0  # 1 to 10
    assert first.first_dispatch_s == 5.0  # 1 to 6
    assert first.trainer_busy_s == 7.0  # 3 + 4
    assert first.blocked_s == 0.25
    assert first.round_period_s == 15.5  # opened at 0, published at 15.5
    assert second.round_period_s == 15.5  # 15.5 to 31


def test_both_waiting_ratios(undisturbed):
    first, _ = metrics_of(undisturbed)
    assert first.waiting_ratio_eq4 == pytest.approx(5 / 13)  # before the trainer starts
    assert first.waiting_ratio_s51 == pytest.approx(6 / 13)  # also the second between the updates


def test_rewards_lengths_and_counts(undisturbed):
    first, second = metrics_of(undisturbed)
    assert first.reward_mean == pytest.approx(0.5)  # (1 + 0.5 + 0 + 0.5) / 4
    assert (first.weight_version, second.weight_version) == (0, 1)
    assert first.response_length_mean == pytest.approx(160 / 8)
    assert first.response_length_max == 50
    assert first.tokens == 160
    assert (first.groups, first.groups_trained, first.groups_ended, first.updates) == (4, 4, 0, 2)


def test_update_metrics_are_weighted_by_tokens(undisturbed):
    first, _ = metrics_of(undisturbed)
    assert first.mismatch_kl == pytest.approx((0.001 * 100 + 0.003 * 300) / 400)
    assert first.loss == pytest.approx((1 * 100 + 2 * 300) / 400)
    assert first.mismatch_max == 0.2
    assert first.entropy is None


def test_a_skipped_updates_non_finite_numbers_are_left_out(history):
    history.open(0, 0)
    history.seal(1, 0, 0)
    history.step(1, 0, 0, [], skipped=True, metrics={"grad_norm": float("nan"), "mismatch_max": float("inf")})
    history.seal(2, 0, 1)
    history.step(2, 0, 1, [], metrics={"grad_norm": 0.5})
    (metrics,) = metrics_of(history)
    assert (metrics.grad_norm, metrics.mismatch_max) == (0.5, None)
    assert (metrics.updates, metrics.updates_skipped) == (2, 1)


def test_a_readmitted_group_counts_with_its_last_attempt(history):
    """g0 is queued with reward 1 at 3, rejected, and comes again with reward 0; g1 has reward 0.5."""
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.serve("r000000-g0000", 1, 2, 3, reward=1.0, tokens=1000)
    history.group(4, "r000000-g0000", GroupState.DEFERRED, reason="hash differs")
    history.serve("r000000-g0001", 2, 5, 6, reward=0.5)
    history.serve("r000000-g0000", 5, 7, 8, attempt=2, reward=0.0)
    (metrics,) = metrics_of(history)
    assert metrics.reward_mean == 0.25
    assert metrics.readmissions == 1
    assert metrics.tokens == 80


def test_a_rejected_groups_reward_does_not_count_but_a_filtered_ones_does(history):
    history.open(0, 0)
    history.serve("r000000-g0000", 1, 2, 3, reward=0.0)
    history.group(4, "r000000-g0000", GroupState.REJECTED, reason="hash differs")
    history.serve("r000000-g0001", 1, 2, 3, reward=0.5)
    history.group(1, "r000000-g0002", GroupState.ADMITTED)
    history.group(
        5,
        "r000000-g0002",
        GroupState.FILTERED,
        reason="zero variance",
        reward_mean="1.0",
        reward_std="0.0",
        response_tokens="30",
    )
    (metrics,) = metrics_of(history)
    assert metrics.reward_mean == 0.75  # (0.5 + 1.0) / 2
    assert metrics.response_length_mean == (20 + 30) / 4
    assert metrics.groups_ended == 2


def test_after_a_trainer_restart_lost_compute_counts_as_waiting(history):
    """Rollout starts at 1. Update 0 ran 3 to 5, the trainer died, its successor replays it 8 to 11; end 11."""
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.serve("r000000-g0000", 1, 2, 3)
    history.claim(3, "r000000-g0000", 0, 0)
    history.seal(5, 0, 0, groups=1)
    history.step(5, 0, 0, [(3, 5)])
    history.role(7, epoch=2)
    history.claim(8, "r000000-g0000", 0, 0)
    history.step(11, 0, 0, [(8, 11)], replay=True)
    history.round(11, 0, RoundState.TRAINED)
    (metrics,) = metrics_of(history)
    assert metrics.first_dispatch_s == 2.0  # the first claim of all
    assert metrics.trainer_busy_s == 3.0
    assert metrics.waiting_ratio_eq4 == pytest.approx(7 / 10)
    assert metrics.waiting_ratio_s51 == pytest.approx(7 / 10)
    assert metrics.updates == 1


def test_training_end_is_the_last_one(history):
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.step(5, 0, 0, [(3, 5)])
    history.round(5, 0, RoundState.TRAINED)
    history.role(7, epoch=2)
    history.step(10, 0, 0, [(8, 10)], replay=True)
    history.round(10, 0, RoundState.TRAINED)
    (metrics,) = metrics_of(history)
    assert metrics.rollout_to_train_end_s == 9.0


def test_a_running_round_has_no_ends(history):
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.serve("r000000-g0000", 1, 2, 3, reward=1.0)
    (metrics,) = metrics_of(history)
    unknown = (
        metrics.rollout_s,
        metrics.rollout_to_train_end_s,
        metrics.round_period_s,
        metrics.waiting_ratio_eq4,
        metrics.waiting_ratio_s51,
        metrics.first_dispatch_s,
        metrics.mismatch_kl,
    )
    assert unknown == (None,) * 7
    assert (metrics.reward_mean, metrics.state, metrics.trainer_busy_s) == (1.0, "generating", 0.0)


def test_an_empty_round_waited_all_the_time(history):
    """Every group ended unused: nothing to compute, so the trainer never started."""
    history.open(0, 0)
    history.round(1, 0, RoundState.GENERATING)
    history.group(1, "r000000-g0000", GroupState.ADMITTED)
    history.group(2, "r000000-g0000", GroupState.FAILED, reason="engine")
    history.round(2, 0, RoundState.DRAINED)
    history.round(3, 0, RoundState.TRAINED)
    (metrics,) = metrics_of(history)
    assert (metrics.waiting_ratio_eq4, metrics.waiting_ratio_s51, metrics.reward_mean) == (None, 1.0, None)


def test_a_period_needs_the_round_before(undisturbed):
    second = Timelines(undisturbed.events).round(1)
    assert round_metrics(second, None).round_period_s is None
