"""Deterministic mode: an update's bits follow from its groups alone, not from their order, portions or neighbours.

Trainers are compared by what they save and export after two rounds of two updates, so that the second update of each
round trains moved weights: with `recompute` its old log-probabilities are those of a frozen copy.
"""

from __future__ import annotations

import pytest
import torch
from rolloutpipe_components.trainer.backends.determinism import check_order_free

from rolloutpipe_core.certify.movement import relative_distance
from rolloutpipe_core.certify.tolerance import TOLERANCES
from rolloutpipe_core.errors import BadInput

# How the four groups of an update arrive.
ARRIVALS = {
    "one by one": [[0], [1], [2], [3]],
    "at once": [[0, 1, 2, 3]],
    "backwards": [[3], [2], [1], [0]],
    "in portions and another order": [[2, 0], [3, 1]],
}
ALL_TERMS = {"kl_coefficient": 0.1, "entropy_coefficient": 0.01, "weight_decay": 0.1, "learning_rate": 1e-2}
CASES = {
    "ratios to the engine": {},
    "bfloat16": {"dtype": "bfloat16"},
    "every term, old logprobs recomputed": {"old_logprobs": "recompute", "importance_cap": 1.2, **ALL_TERMS},
    "groups over the budget": {"microbatch_tokens": 40, "old_logprobs": "recompute", **ALL_TERMS},
    "samples over the budget": {"microbatch_tokens": 1},
}


def trained(trainer, make_group, arrival, directory):
    """Every byte of the trainer's state and of its weights, after two rounds of two updates."""
    for round_number in range(2):
        trainer.begin_round()
        for update in range(2):
            trainer.begin_update(update)
            groups = [make_group(seed=10 * round_number + update, index=index) for index in range(4)]
            for portion in arrival:
                trainer.accumulate([groups[index] for index in portion])
            assert not trainer.step().skipped
    trainer.save(directory / "state")
    trainer.export_weights(directory / "weights")
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_no_bit_depends_on_the_arrival(case, make_trainer, make_model, make_group, tmp_path):
    results = []
    for name, arrival in ARRIVALS.items():
        trainer = make_trainer(deterministic=True, reference=make_model(seed=1), **CASES[case])
        results.append(trained(trainer, make_group, arrival, tmp_path / name))
    assert all(result == results[0] for result in results[1:])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_float_sums_do_depend_on_it_within_rounding(dtype, make_trainer, make_group, tmp_path):
    """Without the mode the same groups give other bits, and weights as near as `certify --tolerance` asks for."""
    results, start = [], tmp_path / "start"
    make_trainer(dtype=dtype).export_weights(start)
    for name, arrival in ARRIVALS.items():
        results.append(trained(make_trainer(dtype=dtype), make_group, arrival, tmp_path / name))
        distance = relative_distance(start, tmp_path / "one by one" / "weights", tmp_path / name / "weights")
        assert distance <= TOLERANCES[dtype].movement
    assert any(result != results[0] for result in results[1:])


def test_the_gradients_are_those_of_float_sums(make_trainer, make_group, gradient_distance):
    gradients = []
    for deterministic in (True, False):
        trainer = make_trainer(deterministic=deterministic, old_logprobs="recompute")
        trainer.accumulate([make_group(seed=0, index=index) for index in range(4)])
        trainer.step()
        gradients.append(trainer._gradients.tensors)
    assert gradient_distance(*gradients) < 1e-6


def test_the_check_leaves_nothing_behind(make_trainer, make_group):
    trainer = make_trainer(deterministic=True)
    assert not any(total.any() for total in trainer._gradients.totals)
    group = make_group(seed=0)
    trainer.accumulate([group])
    result = trainer.step()
    assert (result.groups, result.samples) == (1, 4)
    assert result.tokens == sum(int(sample.loss_mask.sum()) for sample in group.samples)


def test_a_pass_that_differs_in_one_step_is_refused(make_trainer):
    trainer = make_trainer(deterministic=True)
    calls = []

    def accumulate(groups):
        trainer.accumulate(groups)
        calls.append(groups)
        if len(calls) == 2:
            trainer._gradients.totals[-1].view(-1)[0] += 1

    with pytest.raises(BadInput, match=r"not bit-equal here.*1 threads.*deterministic: false"):
        check_order_free(accumulate, trainer._gradients.totals, vocabulary=32)


def test_several_threads_are_refused(make_trainer):
    torch.set_num_threads(2)
    try:
        with pytest.raises(BadInput, match=r"2 threads.*use one torch thread"):
            make_trainer(deterministic=True)
    finally:
        torch.set_num_threads(1)
