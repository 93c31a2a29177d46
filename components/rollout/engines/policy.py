"""The policy as the engine uses it: loaded from a version's folder, prefilled, decoded, given new weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache

from rolloutpipe_core.config.models import ModelConfig
from rolloutpipe_core.errors import EngineFailure

from .slots import PrefilledPrompt, SlotCache


class LinearShape(NamedTuple):
    inputs: int
    outputs: int
    bias: bool


class Policy:
    """A Hugging Face causal LM in evaluation mode; `served.py` says which ones can be served."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self.config = config
        self._model = model.eval()
        self.device = model.device
        self.dtype = model.dtype
        self.vocabulary: int = model.get_output_embeddings().weight.shape[0]
        self.max_positions: int | None = getattr(config, "max_position_embeddings", None)
        heads: int = config.num_attention_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.queries_per_key: int = heads // (getattr(config, "num_key_value_heads", None) or heads)
        self.linear_shapes = sorted(
            {
                LinearShape(module.in_features, module.out_features, module.bias is not None)
                for module in model.modules()
                if isinstance(module, torch.nn.Linear)
            }
        )
        self.eos_ids = _eos_ids(model)
        self._cache_argument = cache_argument(model)

    @classmethod
    def from_directory(cls, directory: Path, config: ModelConfig) -> Policy:
        """Raises EngineFailure when weights are missing, and what transformers raises for other faults."""
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, config.dtype),
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
        model, report = loaded
        if report["missing_keys"]:
            raise EngineFailure("weights are missing", given=f"{directory} lacks {_some(report['missing_keys'])}")
        model.to(config.device)
        for parameter in model.parameters():
            # Out of the mapped file, where a tensor's alignment is the file's: it may change a product's last bit.
            parameter.data = parameter.data.clone()
        return cls(model)

    def load_weights(self, directory: Path) -> None:
        """Copy the safetensors of `directory` into the model, in place and cast to its dtype.

        Names and shapes are compared before anything is copied. Tied tensors may be given under one name
        or under several with equal values. Raises EngineFailure when they do not fit, and what safetensors
        raises; the weights are then undefined.
        """
        state = self._model.state_dict()
        files = sorted(directory.glob("*.safetensors"))
        _check_names(state, files, directory)
        written: dict[int, str] = {}
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    _copy(name, tensors.get_tensor(name), state[name], written)

    def forward(self, ids: Tensor) -> Tensor:
        """One plain forward, without any cache: int64 [B, S] to logits, float32 [B, S, V]."""
        output: Any = self._model(input_ids=ids.to(self.device), use_cache=False)
        logits: Tensor = output.logits
        return logits.float()

    def prefill(self, prompts: Sequence[Sequence[int]], length: int, least_rows: int = 1) -> list[PrefilledPrompt]:
        """One forward over prompts padded at the right to `length`; causal attention never sees the padding.

        The product that gives the logits has at least `least_rows` rows.
        """
        ids = torch.zeros((len(prompts), length), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
        lasts = sorted({len(prompt) - 1 for prompt in prompts})
        kept = lasts + lasts[-1:] * (least_rows - len(lasts))
        cache = DynamicCache()
        logits = self._forward(
            ids.to(self.device),
            # Padding past the model's last position takes that one: a table of positions ends there.
            torch.arange(length, device=self.device).clamp_(max=(self.max_positions or length) - 1)[None],
            mask=None,
            cache=cache,
            keep=torch.tensor(kept, device=self.device),
        )
        layers: list[Any] = cache.layers
        kv = torch.stack([torch.stack((layer.keys, layer.values)) for layer in layers])
        return [
            PrefilledPrompt(kv[:, :, row, :, : len(prompt)], logits[row, lasts.index(len(prompt) - 1)].float())
            for row, prompt in enumerate(prompts)
        ]

    def decode(self, cache: SlotCache, tokens: NDArray[np.int64], positions: NDArray[np.int64], longest: int) -> Tensor:
        """Feed one token a row: `tokens[i]` at `positions[i]`, each int64 [n]; no live row is past `longest`.

        Returns the next token's logits, float32 [n, V].
        """
        ids = torch.from_numpy(tokens).to(self.device)
        places = torch.from_numpy(positions).to(self.device)
        window = cache.begin_step(places, longest)
        visible = torch.arange(window, device=self.device) <= places[:, None]
        mask = torch.where(visible, 0.0, torch.finfo(self.dtype).min).to(self.dtype)
        return self._forward(ids[:, None], places[:, None], mask[:, None, None], cache, keep=1)[:, 0].float()

    def _forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: SlotCache | DynamicCache, keep: int | Tensor
    ) -> Tensor:
        output: Any = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits
        return logits


def cache_argument(model: PreTrainedModel) -> str:
    """What `forward` calls its cache: renamed between transformers releases, which then warn of the old name."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _eos_ids(model: PreTrainedModel) -> frozenset[int]:
    """All eos ids of config and generation config: each may hold none, one or several."""
    ids: set[int] = set()
    for config in (model.config.get_text_config(), model.generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids.update([eos] if isinstance(eos, int) else eos or [])
    return frozenset(ids)


def _check_names(state: dict[str, Tensor], files: Sequence[Path], directory: Path) -> None:
    """Compare names and shapes in the files' headers with the model's, or raise EngineFailure."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            shapes.update({name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()})  # noqa: SIM118
    given = {state[name].data_ptr() for name in shapes if name in state}
    missing = [name for name, tensor in state.items() if tensor.data_ptr() not in given]
    unknown = [name for name in shapes if name not in state]
    other = [name for name, shape in shapes.items() if name in state and shape != tuple(state[name].shape)]
    for what, names in (("misses", missing), ("has unknown", unknown), ("has other shapes of", other)):
        if names:
            raise EngineFailure(
                "the weights do not fit the loaded model",
                given=f"{directory} {what} {_some(names)}",
                expected="the tensors of the version that was loaded first",
            )


def _copy(name: str, source: Tensor, target: Tensor, written: dict[int, str]) -> None:
    """Copy unless a tied name has written this storage already: then the values must be equal."""
    first = written.setdefault(target.data_ptr(), name)
    if first == name:
        target.copy_(source)
    elif not torch.equal(source.to(target), target):
        raise EngineFailure("tied weights differ", given=f"{first} and {name}", expected="equal values")


def _some(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
