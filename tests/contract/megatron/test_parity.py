"""The same recorded groups through `torch` on one rank and two, and through megatron-core in every layout."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from rolloutpipe_core.store.groups import decode_group

LAYOUTS = {
    "TP1": {},
    "TP2": {"tensor_parallel": 2},
    "DP2": {"data_parallel": 2},
    "TP2 x DP2": {"tensor_parallel": 2, "data_parallel": 2},
    "TP2, sequence parallel": {"tensor_parallel": 2, "sequence_parallel": True},
    "TP2 x DP2, distributed optimizer": {"tensor_parallel": 2, "data_parallel": 2, "distributed_optimizer": True},
    "PP2": {"pipeline_parallel": 2},
    "PP2 x DP2, distributed optimizer": {"pipeline_parallel": 2, "data_parallel": 2, "distributed_optimizer": True},
    "TP2 x PP2, all options": {
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "sequence_parallel": True,
        "gradient_checkpointing": True,
        "distributed_optimizer": True,
    },
}
FSDP2 = {"kind": "torch", "data_parallel": 2}
OBJECTIVE = {
    "aggregation": "sample_mean",
    "kl_coefficient": 0.1,
    "entropy_coefficient": 0.01,
    "old_logprobs": "recompute",
    "importance_cap": 1.5,
}
"""Every term, and every pass: the policy's, the reference's and the frozen copy's."""
WEIGHTS = 2e-5  # of weights of about 0.2 after three steps of at most 1e-3
MEASURES = 1e-5


def distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], key: str = "master.") -> float:
    assert left.keys() == right.keys()
    return max((left[name].double() - right[name].double()).abs().max().item() for name in left if name.startswith(key))


def assert_same_updates(given, expected):
    assert len(given) == len(expected)
    for left, right in zip(given, expected, strict=True):
        assert left == pytest.approx(right, rel=MEASURES, abs=MEASURES)


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "llama"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def expected(train, make_model, family):
    return train("torch", family=family, loss=OBJECTIVE, reference=make_model(family, seed=1))


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), FSDP2], ids=[*LAYOUTS, "torch, FSDP2"])
def test_updates_and_weights_are_those_of_the_torch_backend(layout, train, make_model, family, expected):
    updates, state = train(family=family, loss=OBJECTIVE, reference=make_model(family, seed=1), **layout)
    assert_same_updates(updates, expected[0])
    assert distance(state, expected[1]) < WEIGHTS
    assert [update["grad_norm"] > 0.5 for update in updates] == [True] * 3  # all were clipped


# On two ranks a vocabulary of 33 makes shards of 17 ids and of 16: chunks of 300 logits are 17 rows on both.
@pytest.mark.parametrize("chunk", [{}, {"chunk_logits": 300}], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("layout", ["TP1", "TP2", "PP2", "TP2, sequence parallel"])
def test_logprobs_are_those_of_transformers(layout, chunk, ranks, make_model, groups, family):
    folder = make_model(family)
    trainer = {"kind": "megatron", **LAYOUTS[layout]}
    config = {"run": "test", "model": {"path": str(folder)}, "sampling": {"temperature": 1.3}, "trainer": trainer}
    count = trainer.get("tensor_parallel", 1) * trainer.get("pipeline_parallel", 1)
    given = ranks.run(count, op="score", config=config, groups=groups, **chunk)[-1]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for path, logprobs in zip(groups, given, strict=True):
        expected = [
            value for sample in decode_group(Path(path).read_bytes()).samples for value in scores(model, sample)
        ]
        assert torch.tensor(logprobs) == pytest.approx(torch.tensor(expected), abs=1e-5)


@torch.no_grad()
def scores(model, sample):
    """Of the trained tokens, at T = 1.3, of one unpadded row."""
    ids = torch.tensor([*sample.prompt_ids, *sample.response_ids], dtype=torch.int64)[None]
    table = torch.log_softmax(model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1] / 1.3, dim=-1)
    chosen = table.gather(1, torch.tensor(sample.response_ids, dtype=torch.int64)[:, None])[:, 0]
    return chosen[torch.tensor(sample.loss_mask, dtype=torch.bool)].tolist()


@pytest.mark.parametrize(
    "loss",
    [
        {"kind": "gspo", "aggregation": "sample_mean", "clip_low": 3e-4, "clip_high": 4e-4},
        {"kind": "cispo", "clip_low": 1.0, "clip_high": 0.3, "kl_coefficient": 0.1, "kl_estimator": "k2"},
        {"kind": "dr_grpo", "aggregation": "dr_grpo", "kl_coefficient": 0.1, "kl_estimator": "k1"},
    ],
    ids=["gspo", "cispo and k2", "dr_grpo and k1"],
)
def test_every_loss(loss, train, make_model):
    layout = LAYOUTS["TP2 x DP2"]
    reference = make_model("qwen3", seed=1) if "kl_coefficient" in loss else None
    results = [
        train(kind, loss=loss, reference=reference, **options)
        for kind, options in (("torch", {}), ("megatron", layout))
    ]
    assert_same_updates(results[1][0], results[0][0])
    assert distance(results[1][1], results[0][1]) < WEIGHTS


def test_bfloat16_is_near_the_torch_backend(train):
    """Rounding of 2^-8 in every layer: the loss and the norm within 5 %. The masters of both are float32."""
    options = {"dtype": "bfloat16", "rounds": [[[[0, 1, 2, 3]]]], "loss": {"old_logprobs": "recompute"}}
    (expected,), state = train("torch", **options)
    for layout in ({}, LAYOUTS["TP2 x DP2"], LAYOUTS["TP2 x PP2, all options"]):
        (given,), masters = train(**options, **layout)
        assert given["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
        assert given["entropy"] == pytest.approx(expected["entropy"], rel=0.01)
        assert distance(masters, state) < 2.1e-3  # of a step of 1e-3 either way


def test_the_distributed_optimizer_is_the_same_optimizer_in_bfloat16(train):
    """The norm is summed over other shards, and may differ in its last bit."""
    states = [train(dtype="bfloat16", data_parallel=2, distributed_optimizer=sharded)[1] for sharded in (False, True)]
    assert distance(*states, key="") < 1e-6


def test_a_gradient_that_is_not_finite_steps_nothing(train, recorded, make_group):
    broken = make_group(9)
    broken = replace(broken, samples=tuple(replace(sample, advantage=math.inf) for sample in broken.samples))
    given = recorded([make_group(0), broken, make_group(1)])
    for layout in (LAYOUTS["TP2 x DP2"], LAYOUTS["TP2 x PP2, all options"]):
        updates, state = train(given=given, rounds=[[[[0]], [[0, 1]], [[2]]]], **layout)
        assert [update["skipped"] for update in updates] == [False, True, False]
        assert "grad_norm" not in updates[1]
        assert {value.item() for name, value in state.items() if name.startswith("step.")} == {2.0}
