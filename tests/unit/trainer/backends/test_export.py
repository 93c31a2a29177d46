from __future__ import annotations

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

IDS = torch.arange(12)[None]


def trained(trainer, make_group):
    trainer.accumulate([make_group(seed=0)])
    trainer.step()
    return trainer


def files(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("family", ["qwen3", "llama"])  # tied and untied embeddings
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_loads_it_with_equal_logits(family, dtype, make_trainer, make_model, make_group, tmp_path):
    trainer = trained(make_trainer(make_model(family), dtype=dtype, learning_rate=1e-2), make_group)
    trainer.export_weights(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").eval()
    assert str(model.dtype) == f"torch.{dtype}"
    with torch.no_grad():
        logits, own = model(input_ids=IDS).logits, trainer._policy.model(input_ids=IDS).logits
        start = AutoModelForCausalLM.from_pretrained(make_model(family))(input_ids=IDS).logits
    assert torch.equal(logits, own)
    assert (logits - start).abs().max() > 0.01
    assert AutoTokenizer.from_pretrained(tmp_path)("w5 w9")["input_ids"] == [5, 9]
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == 1


def test_another_trainer_starts_from_it(make_trainer, make_group, tmp_path):
    trained(make_trainer(learning_rate=1e-2), make_group).export_weights(tmp_path / "first")
    make_trainer(tmp_path / "first").export_weights(tmp_path / "second")
    assert files(tmp_path / "first") == files(tmp_path / "second")


def test_equal_weights_give_equal_bytes(make_trainer, make_group, tmp_path):
    for name in ("one", "two"):
        trained(make_trainer(), make_group).export_weights(tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert "model.safetensors" in files(tmp_path / "one")


def test_the_folder_it_came_from_may_be_gone(make_trainer, make_model, tmp_path):
    shutil.copytree(make_model(), tmp_path / "cache")
    (tmp_path / "cache" / "manifest.json").write_text("{}")
    trainer = make_trainer(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    trainer.export_weights(tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("w7")["input_ids"] == [7]
    assert "manifest.json" not in files(tmp_path / "out")
