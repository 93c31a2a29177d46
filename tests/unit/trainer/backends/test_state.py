"""`save` and `load`: a continuation equal to the bit, and refusals."""

from __future__ import annotations

import json

import pytest

from rolloutpipe_core.errors import BadInput


def run(trainer, make_group, updates):
    """Results of these updates, three to a round."""
    results = []
    for update in updates:
        if update % 3 == 0:
            trainer.begin_round()
        trainer.begin_update(update % 3)
        trainer.accumulate([make_group(seed=6, index=update)])
        results.append(trainer.step())
    return results


def files(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("old_logprobs", ["engine", "recompute"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_loaded_trainer_goes_on_to_the_bit(
    dtype, old_logprobs, deterministic, make_trainer, make_model, make_group, tmp_path
):
    fields = {
        "deterministic": deterministic,
        "dtype": dtype,
        "old_logprobs": old_logprobs,
        "kl_coefficient": 0.1,
        "reference": make_model(),
        "learning_rate": 1e-3,
        "warmup_updates": 5,
        "weight_decay": 0.1,
    }
    through = make_trainer(**fields)
    run(through, make_group, range(3))
    through.save(tmp_path / "saved")
    # The loading trainer starts from other weights, so that nothing it has of its own may stay.
    loaded = make_trainer(make_model(seed=1), **fields)
    run(loaded, make_group, range(1))
    loaded.load(tmp_path / "saved")
    assert run(through, make_group, range(3, 6)) == run(loaded, make_group, range(3, 6))
    for name, trainer in (("through", through), ("loaded", loaded)):
        trainer.save(tmp_path / name)
        trainer.export_weights(tmp_path / f"{name}-weights")
    assert files(tmp_path / "through") == files(tmp_path / "loaded")
    assert files(tmp_path / "through-weights") == files(tmp_path / "loaded-weights")


def test_a_checkpoint_before_the_first_step(make_trainer, make_group, tmp_path):
    fresh, loaded = make_trainer(), make_trainer()
    fresh.save(tmp_path)
    run(loaded, make_group, range(2))
    loaded.load(tmp_path)
    assert run(fresh, make_group, range(2)) == run(loaded, make_group, range(2))


def test_the_checkpoint_is_safetensors_and_json(make_trainer, tmp_path):
    make_trainer().save(tmp_path / "new" / "folder")
    assert sorted(files(tmp_path / "new" / "folder")) == ["state.json", "state.safetensors"]


def test_a_folder_without_checkpoint_is_refused(make_trainer, tmp_path):
    with pytest.raises(BadInput, match="no trainer checkpoint"):
        make_trainer().load(tmp_path)


def test_another_format_is_refused(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.save(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"format": 99, "updates": 0}))
    with pytest.raises(BadInput, match="another format"):
        trainer.load(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(make_trainer, make_model, tmp_path):
    make_trainer(make_model("llama")).save(tmp_path)
    with pytest.raises(BadInput, match="another model"):
        make_trainer().load(tmp_path)
