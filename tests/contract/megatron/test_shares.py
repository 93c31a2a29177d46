"""Ranks with unequal work, or none: none waits for another, and the update is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

LAYOUTS = {
    "DP4": {"data_parallel": 4},
    "DP2 x TP2": {"data_parallel": 2, "tensor_parallel": 2, "distributed_optimizer": True},
    "DP2 x PP2": {"data_parallel": 2, "pipeline_parallel": 2},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("budget", [24, 4096], ids=["many micro-batches", "one micro-batch"])
def test_unequal_shares(layout, budget, train, recorded, make_group):
    """One sample for all ranks; two of very unequal length; then more than ranks."""
    given = recorded([make_group(0, samples=1), make_group(1, samples=2, longest=40), make_group(2, samples=7)])
    rounds = [[[[0]], [[1]], [[0], [1], [2]]]]
    options = {"given": given, "rounds": rounds, "microbatch_tokens": budget}
    expected, masters = train("torch", **options)
    updates, state = train(**options, **layout)
    for update, each in zip(updates, expected, strict=True):
        assert update == pytest.approx(each, rel=1e-5, abs=1e-5)
    assert max((state[name] - masters[name]).abs().max().item() for name in state) < 2e-5


def test_an_update_without_a_trained_token_steps_with_zeros(train, recorded, make_group):
    group = make_group(0)
    masked = replace(group, samples=tuple(replace(each, loss_mask=0 * each.loss_mask) for each in group.samples))
    (update,), _ = train(given=recorded([masked]), rounds=[[[[0]]]], data_parallel=2, tensor_parallel=2)
    assert (update["groups"], update["samples"], update["tokens"], update["skipped"]) == (1, 4, 0, False)
    assert update["loss"] == update["grad_norm"] == 0.0


def test_ranks_that_do_not_fit_the_configuration_are_refused(ranks, make_model):
    config = {
        "run": "test",
        "model": {"path": str(make_model())},
        "trainer": {"kind": "megatron", "tensor_parallel": 2},
    }
    with pytest.raises(AssertionError, match="tensor_parallel 2 x data_parallel 1 x pipeline_parallel 1"):
        ranks.run(1, op="score", config=config, groups=[])
    config["trainer"] = {"kind": "megatron", "tensor_parallel": 4}
    with pytest.raises(AssertionError, match="4 ranks for 2 groups"):
        ranks.run(4, op="score", config=config, groups=[])
