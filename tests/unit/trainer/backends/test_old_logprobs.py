"""The ratio's denominator is of the round's version in every update, with R/U > 1.

Three updates a round at a rate that moves the weights far. Each update's gradient is compared (float64, 1e-12 of the
largest element) with that of a full batch whose old log-probabilities are the engine's, or are computed with the
weights exported at the round's start. Recomputing them under the moved weights would make every ratio 1.
"""

from __future__ import annotations

import pytest

from rolloutpipe_core.config.models import LossConfig

RATE = 1e-2


@pytest.fixture
def snapshot(tmp_path, load_reference):
    """Export the trainer's weights and read them back: the version they are published as."""

    def take(trainer, name):
        trainer.export_weights(tmp_path / name)
        return load_reference(tmp_path / name)

    return take


@pytest.mark.parametrize(
    "fields",
    [
        {"old_logprobs": "engine"},
        {"old_logprobs": "recompute"},
        {"old_logprobs": "recompute", "importance_cap": 1.2},
    ],
    ids=["engine", "recompute", "recompute and importance weights"],
)
def test_every_update_of_two_rounds(
    fields, make_group, make_model, make_trainer, snapshot, full_batch_gradients, gradient_distance
):
    loss = LossConfig(**fields)
    trainer = make_trainer(make_model("gpt2"), dtype="float64", learning_rate=RATE, **fields)
    for round_number in range(2):
        trainer.begin_round()
        start = snapshot(trainer, f"start{round_number}")
        old = start if loss.old_logprobs == "recompute" else None
        for update in range(3):
            group = make_group(seed=round_number, index=update)
            now = snapshot(trainer, f"r{round_number}u{update}")
            expected = full_batch_gradients(now, [group], loss, old=old)
            trainer.begin_update(update)
            trainer.accumulate([group])
            result = trainer.step()
            norm = sum(gradient.square().sum().item() for gradient in expected.values()) ** 0.5
            assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-12)
            clipped = {name: gradient / max(norm, 1.0) for name, gradient in expected.items()}
            assert gradient_distance(trainer._gradients.tensors, clipped) < 1e-12


def test_recomputed_ratios_are_1_until_the_weights_move(make_group, make_trainer):
    trainer = make_trainer(old_logprobs="recompute", learning_rate=RATE)
    ratios = []
    for _ in range(2):
        trainer.begin_round()
        for update in range(2):
            trainer.begin_update(update)
            trainer.accumulate([make_group(seed=5, index=update)])
            ratios.append(trainer.step().metrics["ratio_mean"])
    first, moved, next_first, next_moved = ratios
    assert first == next_first == 1.0
    assert abs(moved - 1) > 1e-3
    assert abs(next_moved - 1) > 1e-3


def test_mismatch_is_measured_where_the_rounds_weights_are_at_hand(make_group, make_trainer):
    """`engine`: until the weights move; `recompute`: in every update, under the frozen copy."""
    measured = {}
    for old_logprobs in ("engine", "recompute"):
        trainer = make_trainer(old_logprobs=old_logprobs, learning_rate=RATE)
        trainer.begin_round()
        measured[old_logprobs] = []
        for update in range(2):
            trainer.begin_update(update)
            trainer.accumulate([make_group(seed=5)])
            metrics = trainer.step().metrics
            measured[old_logprobs].append([metrics.get(f"mismatch_{name}") for name in ("kl", "mean", "max")])
    first, second = measured["recompute"]
    assert first == pytest.approx(second, rel=1e-6)
    assert measured["engine"] == [first, [None, None, None]]


def test_mismatch_by_hand(make_group, make_trainer, load_reference, make_model):
    group = make_group(seed=5, samples=2)
    trainer = make_trainer(temperature=1.3)
    trainer.accumulate([group])
    metrics = trainer.step().metrics
    differences = [
        difference for sample in group.samples for difference in _differences(load_reference(make_model()), sample, 1.3)
    ]
    k3 = [2.718281828459045**difference - 1 - difference for difference in differences]
    assert metrics["mismatch_kl"] == pytest.approx(sum(k3) / len(k3), rel=1e-4)
    assert metrics["mismatch_mean"] == pytest.approx(sum(map(abs, differences)) / len(differences), rel=1e-4)
    assert metrics["mismatch_max"] == pytest.approx(max(map(abs, differences)), rel=1e-4)


def _differences(model, sample, temperature):
    """Trainer less engine at each trained token."""
    ids = [*sample.prompt_ids, *sample.response_ids]
    logits = model(input_ids=model.dummy_inputs["input_ids"].new_tensor([ids])).logits[0] / temperature
    logprobs = logits.log_softmax(-1)
    for place, (token, engine, mask) in enumerate(
        zip(sample.response_ids, sample.behavior_logprobs, sample.loss_mask, strict=True)
    ):
        if mask:
            yield logprobs[len(sample.prompt_ids) + place - 1, token].item() - float(engine)
