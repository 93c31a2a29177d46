from __future__ import annotations

import json
import shutil

import pytest
import torch
from rolloutpipe_components.trainer.backends.policy import Policy, load_model
from rolloutpipe_components.trainer.batch import make_batch
from safetensors.torch import load_file, save_file

from rolloutpipe_core.errors import BadInput

from .conftest import sample_logprobs

CPU = torch.device("cpu")
FAMILIES = ["cohere", "falcon_h1", "gemma2", "gpt2", "granite", "llama", "qwen3"]


def load(folder):
    return load_model(folder, torch.float32, CPU)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_of_a_padded_batch_equal_those_of_whole_single_rows(family, make_model, make_group):
    """Tolerance 2e-5 nats. The families differ in what follows the head: scaling, division, soft-capping."""
    model = load(make_model(family))
    samples = [*make_group(seed=0).samples, *make_group(seed=0, index=1).samples]
    scores = Policy(model, temperature=0.7).scores(make_batch(samples, "token_mean", CPU))
    logprobs, entropy = [], []
    for sample in samples:
        trained = torch.as_tensor(sample.loss_mask).bool()
        table = sample_logprobs(model, sample, 0.7)[trained]
        logprobs.append(table.gather(1, torch.as_tensor(sample.response_ids).long()[trained, None])[:, 0])
        entropy.append(torch.distributions.Categorical(logits=table).entropy())
    torch.testing.assert_close(scores.logprobs, torch.cat(logprobs), atol=2e-5, rtol=0)
    torch.testing.assert_close(scores.entropy, torch.cat(entropy), atol=2e-5, rtol=0)


def test_entropy_carries_a_gradient_only_on_request(make_model, make_group):
    policy = Policy(load(make_model()), temperature=1.0)
    batch = make_batch(make_group(seed=0).samples, "token_mean", CPU)
    assert not policy.scores(batch).entropy.requires_grad
    assert policy.scores(batch, entropy_gradient=True).entropy.requires_grad
    assert not policy.logprobs(batch).requires_grad


def test_no_logits_of_the_whole_batch_are_made(make_model, make_group, monkeypatch):
    monkeypatch.setattr("rolloutpipe_components.trainer.backends.policy.CHUNK_LOGITS", 4 * 32)
    model = load(make_model())
    policy = Policy(model, temperature=1.0)
    rows = []
    model.lm_head.register_forward_hook(lambda module, given, logits: rows.append(logits.shape[0]))
    batch = make_batch(make_group(seed=0).samples, "token_mean", CPU)
    policy.scores(batch).logprobs.sum().backward()
    assert max(rows) == 4
    assert sum(rows) == 2 * len(batch.targets)  # forward, and once more in the backward


def test_an_unknown_way_with_logits_is_refused(make_model):
    with pytest.raises(BadInput, match="HyperCLOVAXForCausalLM"):
        Policy(load(make_model("hyperclovax")), temperature=1.0)


def test_dropout_is_off_even_in_training_mode(make_model, make_group):
    model = load(make_model("gpt2")).train()
    policy = Policy(model, temperature=1.0)
    batch = make_batch(make_group(seed=0).samples, "token_mean", CPU)
    assert torch.equal(policy.logprobs(batch), policy.logprobs(batch))
    assert model.config.resid_pdrop == 0.0


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no folder"):
        load(tmp_path / "absent")
    with pytest.raises(BadInput, match="no Hugging Face causal LM"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(BadInput, match="no Hugging Face causal LM"):
        load(tmp_path)


def test_missing_weights_are_refused_not_drawn_at_random(make_model, tmp_path):
    shutil.copytree(make_model(), tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match=r"model\.norm\.weight"):
        load(tmp_path / "model")
