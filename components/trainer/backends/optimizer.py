"""AdamW on float32 master weights.

An update of 1e-6 vanishes in a bfloat16 weight of 0.01, whose neighbours are 6e-5 apart; in the float32 master it adds
up until the bfloat16 weight moves. Forward and backward see the rounded weights, those that the engine samples with.
A float32 model is its own master. Source: Mixed Precision Training (arXiv 1710.03740), section 3.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rolloutpipe_core.config.models import OptimizerConfig
from rolloutpipe_core.errors import BadInput

from .gradients import wide
from .shards import placed, whole


class MasterAdamW:
    """The parameters, their masters and AdamW's state. Vectors (biases, norms) are not decayed, as in Megatron."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: OptimizerConfig) -> None:
        self._parameters = dict(parameters)
        self._masters: dict[str, Tensor] = {
            name: parameter if parameter.dtype == wide(parameter.dtype) else parameter.detach().to(torch.float32)
            for name, parameter in parameters.items()
        }
        masters = self._masters.values()
        self._adamw = torch.optim.AdamW(
            [
                {"params": [master for master in masters if master.ndim >= 2], "weight_decay": config.weight_decay},
                {"params": [master for master in masters if master.ndim < 2], "weight_decay": 0.0},
            ],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
        )

    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """One AdamW step (arXiv 1711.05101, algorithm 2); the parameters follow their masters."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        for name, master in self._masters.items():
            master.grad = gradients[name]
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self._round_masters()

    def save(self, path: Path | None) -> None:
        """Write masters and AdamW's state as one safetensors file, `master.NAME`, `exp_avg.NAME` and so on.

        Every tensor is whole, whatever it is sharded over; a rank without a `path` only gives its shards.
        """
        tensors = {}
        for name, tensor in self._state():
            full = whole(tensor)
            if path is not None:
                tensors[name] = full.cpu().contiguous()
        if path is not None:
            save_file(tensors, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Read what `save` wrote, to the bit. Raises BadInput when it is of another model."""
        stored: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for full_name, tensor in load_file(path).items():
            key, name = full_name.split(".", 1)
            stored[key][name] = tensor
        masters = stored.pop("master", {})
        _check_same(given=masters, expected=self._masters, path=path)
        self._adamw.state.clear()
        for name, master in self._masters.items():
            master.copy_(placed(masters[name], master))
            for key, tensors in stored.items():
                # AdamW keeps its step counter on the CPU and all else beside the weights.
                self._adamw.state[master][key] = tensors[name] if key == "step" else placed(tensors[name], master)
        self._round_masters()

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """All that `save` writes, by name; each rank in the same order."""
        for name, master in self._masters.items():
            yield f"master.{name}", master.detach()
            for key, value in self._adamw.state[master].items():
                yield f"{key}.{name}", value

    @torch.no_grad()
    def _round_masters(self) -> None:
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is not parameter:
                parameter.copy_(master)


def _check_same(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path) -> None:
    def described(tensors: Mapping[str, Tensor]) -> set[str]:
        return {f"{name} {list(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}

    differing = sorted(described(given) ^ described(expected))
    if differing:
        raise BadInput(
            "a checkpoint of another model", given=str(path), expected=f"the same parameters, but: {differing[:4]}"
        )
