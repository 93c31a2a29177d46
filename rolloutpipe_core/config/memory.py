"""How much memory a run's models need, from the model's files alone: nothing is loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.store.safetensors import tensor_places

BYTES = {"float32": 4, "bfloat16": 2}


class MemoryUse(NamedTuple):
    service: str  # "rollout" (each worker), "trainer", or "trainer rank" (each of several)
    what: str
    bytes: int


def memory_uses(config: RunConfig, folder: Path) -> list[MemoryUse]:
    """Weights and what comes with each parameter; activations and the services' own code come on top.

    `folder` holds the model. Raises BadInput when its weight files cannot be read.
    """
    parameters, size = count_parameters(folder), BYTES[config.model.dtype]
    return _rollout(config, folder, parameters * size) + _trainer(config, parameters, size)


def _rollout(config: RunConfig, folder: Path, weights: int) -> list[MemoryUse]:
    if config.engine.kind == "sglang":
        return []  # the model is in the servers' memory, of which they take the part that they are told
    uses = [MemoryUse("rollout", f"weights ({config.model.dtype})", weights)]
    if cached := kv_bytes_per_token(folder, BYTES[config.model.dtype]):
        tokens = config.engine.slots * (config.data.max_prompt_tokens + config.sampling.max_new_tokens)
        uses.append(MemoryUse("rollout", "KV cache, at most", cached * tokens))
    return uses


def _trainer(config: RunConfig, parameters: int, size: int) -> list[MemoryUse]:
    if config.trainer.kind == "megatron":
        return _megatron(config, parameters, size)
    if config.trainer.data_parallel > 1:
        return _sharded(config, parameters / config.trainer.data_parallel, size)
    uses = [MemoryUse("trainer", f"weights ({config.model.dtype})", parameters * size)]
    if size < 4:
        uses.append(MemoryUse("trainer", "float32 master weights", parameters * 4))
    if config.deterministic:
        uses.append(MemoryUse("trainer", "gradient sums (int64)", parameters * 8))
        uses.append(MemoryUse("trainer", "gradients of the step (float32)", parameters * 4))
    else:
        uses.append(MemoryUse("trainer", "gradient sums (float32)", parameters * 4))
    uses.append(MemoryUse("trainer", "AdamW moments (float32)", parameters * 8))
    return uses + _copies(config, "trainer", parameters * size)


def _sharded(config: RunConfig, parameters: float, size: int) -> list[MemoryUse]:
    """FSDP2: a rank's shard is its master; what it gathers for a layer comes on top, as activations do."""
    kept = {"float32 master weights": 4, "gradient sums (float32)": 4, "AdamW moments (float32)": 8}
    uses = [MemoryUse("trainer rank", what, math.ceil(parameters * each)) for what, each in kept.items()]
    return uses + _copies(config, "trainer rank", math.ceil(parameters * size))


def _megatron(config: RunConfig, parameters: int, size: int) -> list[MemoryUse]:
    """The mean of the pipeline's stages: those with the embedding or the head hold more."""
    trainer = config.trainer
    parts = trainer.tensor_parallel * trainer.pipeline_parallel
    service = "trainer rank" if parts * trainer.data_parallel > 1 else "trainer"
    shard = parameters / parts
    stepped = shard / trainer.data_parallel if trainer.distributed_optimizer else shard
    kept = {f"weights ({config.model.dtype})": shard * size}
    if size < 4:
        kept["float32 master weights"] = stepped * 4
    kept |= {"gradient sums (float32)": shard * 4, "AdamW moments (float32)": stepped * 8}
    uses = [MemoryUse(service, what, math.ceil(each)) for what, each in kept.items()]
    return uses + _copies(config, service, math.ceil(shard * size))


def _copies(config: RunConfig, service: str, weights: int) -> list[MemoryUse]:
    """The frozen copies that the loss needs."""
    uses = []
    if config.loss.kl_coefficient > 0:
        uses.append(MemoryUse(service, "reference (loss.kl_coefficient)", weights))
    if config.loss.old_logprobs == "recompute":
        uses.append(MemoryUse(service, "round's start weights (loss.old_logprobs)", weights))
    return uses


def count_parameters(folder: Path) -> int:
    """Parameters in all safetensors files of a folder."""
    places = (place for path in folder.glob("*.safetensors") for place in tensor_places(path).values())
    return sum(math.prod(place.shape) for place in places)


def kv_bytes_per_token(folder: Path, size: int) -> int:
    """Keys and values of one token over all layers; 0 when config.json does not say how large they are."""
    try:
        model = json.loads((folder / "config.json").read_text())
        heads = model["num_attention_heads"]
        head_size = model.get("head_dim") or model["hidden_size"] // heads
        return int(2 * model["num_hidden_layers"] * (model.get("num_key_value_heads") or heads) * head_size * size)
    except (OSError, ValueError, KeyError, TypeError):
        return 0
