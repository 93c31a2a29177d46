"""Tensors that are sharded over ranks (DTensor of FSDP2), or whole on one: what must be known of the difference."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all ranks, which must all call this; itself when it is not sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same on every rank, put where `like` is: on its device, or this rank's shard of it."""
    if isinstance(like, DTensor):
        beside = tensor.to(like.device)
        return distribute_tensor(beside, like.device_mesh, like.placements, src_data_rank=None)
    return tensor.to(like.device)
