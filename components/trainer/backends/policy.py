"""A Hugging Face causal LM as a policy: log-probabilities of given tokens at temperature T, in bounded memory.

The decoder runs over the whole rectangle; the head only where a trained token is predicted, in chunks that are
recomputed in the backward, so that no [tokens, vocabulary] tensor of the micro-batch ever exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rolloutpipe_core.errors import BadInput

from ..batch import Batch
from ..losses.entropy import token_entropy

# Logits of one chunk: 2^25 float32 are 128 MiB, and about four such tensors live at once.
CHUNK_LOGITS = 2**25


class Scores(NamedTuple):
    logprobs: Tensor  # float32 [N], nats (float64 of a float64 model)
    entropy: Tensor  # the same, without a gradient unless it was asked for


class Policy(nn.Module):
    """A model with its temperature. A module, so that what shards parameters can gather them around `forward`."""

    def __init__(self, model: PreTrainedModel, temperature: float) -> None:
        """Raises BadInput when the model's logits are not what this class makes of its hidden states."""
        super().__init__()
        self.model = model
        self.vocabulary: int = model.config.get_text_config().vocab_size
        self._temperature = temperature
        _check_head(model)

    def scores(self, batch: Batch, entropy_gradient: bool = False) -> Scores:
        """Log-probability and entropy at the batch's N trained tokens, of softmax(logits / T)."""
        scores: Scores = self(batch.input_ids, batch.predicts, batch.targets, entropy_gradient)
        return scores

    def forward(self, input_ids: Tensor, predicts: Tensor, targets: Tensor, entropy_gradient: bool) -> Scores:
        """`scores` of a batch's fields."""
        hidden = _hidden_states(self.model, input_ids)[predicts]
        rows = max(CHUNK_LOGITS // self.vocabulary, 1)
        chunks = [
            checkpoint(
                self._score_chunk, states, targets, entropy_gradient, use_reentrant=False, preserve_rng_state=False
            )
            for states, targets in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        logprobs, entropy = zip(*chunks, strict=True)
        return Scores(torch.cat(logprobs), torch.cat(entropy))

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """The log-probabilities alone, without a gradient."""
        return self.scores(batch).logprobs

    def _score_chunk(self, hidden: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        logits = _logits(self.model, hidden)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_probs = torch.log_softmax(wide / self._temperature, dim=-1)
        logprobs = log_probs.gather(-1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            return logprobs, token_entropy(log_probs)


def load_model(directory: Path, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The causal LM in `directory`, in evaluation mode and with every dropout of its configuration at 0.

    The engine samples without dropout, so a policy with dropout would not be the one that sampled. Raises BadInput when
    the folder holds no such model or lacks some of its weights.
    """
    if not directory.is_dir():
        raise BadInput("no folder with a model", given=str(directory), expected="config.json and *.safetensors")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("no such device here", given=str(device), remedy="set `model.device` to cpu, or install a CUDA")
    try:
        config = AutoConfig.from_pretrained(directory)
        _without_dropout(config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise BadInput("no Hugging Face causal LM in this folder", f"{directory}: {error}") from error
    if missing := sorted(loaded[1]["missing_keys"]):
        raise BadInput("weights are missing", given=f"{directory}: {', '.join(missing)}", expected="every parameter")
    model: PreTrainedModel = loaded[0].to(device).eval()
    for parameter in model.parameters():
        # Out of the mapped file, where a tensor's alignment is the file's: it may change a product's last bit.
        parameter.data = parameter.data.clone()
    return model


def _without_dropout(config: PretrainedConfig) -> None:
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _hidden_states(model: PreTrainedModel, input_ids: Tensor) -> Tensor:
    states: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    return states


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits of hidden states, with what a family does after its head: Cohere, Falcon-H1, Granite, Gemma."""
    config = model.config.get_text_config()
    logits: Tensor = model.get_output_embeddings()(hidden)
    for name in ("logit_scale", "lm_head_multiplier"):
        if (factor := getattr(config, name, None)) is not None:
            logits = logits * factor
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * (logits / cap).tanh()
    return logits


@torch.no_grad()
def _check_head(model: PreTrainedModel) -> None:
    probe = torch.arange(4, device=model.device)[None]
    expected = model(input_ids=probe, use_cache=False).logits
    given = _logits(model, _hidden_states(model, probe))
    # The same kernels on the same numbers: all that may differ is rounding, in bfloat16 2^-8 of a logit.
    if not torch.allclose(given, expected, rtol=0, atol=0.02 * expected.abs().max().item()):
        raise BadInput(
            "this architecture changes its logits in a way that is not known here",
            given=type(model).__name__,
            expected="head(hidden), scaled or soft-capped as Cohere, Falcon-H1, Granite or Gemma do",
            remedy="add the rule to `_logits`",
        )
