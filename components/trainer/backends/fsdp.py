"""The `torch` backend's layout over several ranks: FSDP2, every decoder layer and the rest of the model sharded.

    forward    gather a layer's parameters in the model's dtype ─> compute ─> free them again
    backward   gather ─> compute ─> reduce-scatter: each rank adds the float32 sum of its shard's gradients

Parameters are sharded in float32, so that a shard is its own master; what is gathered, and what the engine gets, is
their rounding to the model's dtype. FSDP2 would average gradients over ranks: it is told to add them, and the one
division is the step's. Source: torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from ..objective import Objective
from ..ranks.collective import rank_device, rows_of_all
from ..shares import plan_shares
from .export import whole_model
from .policy import Policy, load_model

CPU = torch.device("cpu")


class Fsdp:
    """Implements `Layout` (layout.py) for all ranks of the default process group."""

    def __init__(self, device: torch.device) -> None:
        """`device`: that of the configuration; with CUDA each rank has one of its own, the current one."""
        self.device = rank_device(device)
        self.writes = dist.get_rank() == 0
        self._mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))

    def trained(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        # Read in `dtype` first: where the files are wider, one rank starts from the rounded weights, too.
        policy = Policy(load_model(directory, dtype, CPU).float(), temperature)
        return self._sharded(policy, dtype, trained=True)

    def frozen(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        policy = Policy(load_model(directory, dtype, CPU), temperature).requires_grad_(False)
        return self._sharded(policy, dtype, trained=False)

    def copier(self, directory: Path, dtype: torch.dtype, temperature: float) -> Callable[[Policy], Policy]:
        """FSDP2 has no deepcopy: the copy's place is made now, and its shards are filled later."""
        place = self.frozen(directory, dtype, temperature)

        @torch.no_grad()
        def copied(policy: Policy) -> Policy:
            for shard, trained in zip(place.parameters(), policy.parameters(), strict=True):
                shard.copy_(trained)
            return place

        return copied

    def plan(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        return plan_shares(lengths, dist.get_world_size(), budget)[dist.get_rank()]

    def combine(self, objective: Objective) -> None:
        objective.combine(rows_of_all(objective.packed()))

    def model(self, policy: Policy, dtype: torch.dtype) -> PreTrainedModel | None:
        return whole_model(policy.model, dtype, self.writes)

    def _sharded(self, policy: Policy, dtype: torch.dtype, trained: bool) -> Policy:
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        layers = set(policy.model._no_split_modules or ())
        for module in list(policy.model.modules()):
            if type(module).__name__ in layers:
                fully_shard(module, mesh=self._mesh, mp_policy=precision)
        # The rest (embedding, last norm, head) stays gathered from forward to backward, which needs it first. It is
        # one unit with the policy: the head is used chunk by chunk, and ranks have different numbers of chunks.
        fully_shard(policy, mesh=self._mesh, mp_policy=precision, reshard_after_forward=None if trained else True)
        for module in policy.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo adds, and cannot scale
        return policy
