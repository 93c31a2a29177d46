"""torch.distributed: how the ranks' process group comes to be, and the little that the layer itself needs of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rolloutpipe_core.errors import BadInput, DeadlineExceeded

from .place import Place

LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@contextmanager
def process_group(place: Place, device: str, deadline_s: float) -> Iterator[None]:
    """The default process group while the block runs: nccl where the model is on CUDA, else gloo.

    No rank waits in one of its operations longer than `deadline_s`. With CUDA the local rank's device becomes the
    current one. Raises BadInput for a device that ranks cannot share, DeadlineExceeded when not all ranks come.
    """
    kind = torch.device(device)
    if kind.index is not None or kind.type not in ("cpu", "cuda"):
        raise BadInput("a device for several ranks", given=device, expected="cpu, or cuda: each rank takes its own")
    if kind.type == "cuda":
        count = torch.cuda.device_count()
        if place.local_rank >= count:
            raise BadInput("too few devices", given=f"{count} here", expected=f"one for local rank {place.local_rank}")
        torch.cuda.set_device(place.local_rank)
    elif place.address in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # gloo would take the host name's address
    try:
        dist.init_process_group(
            "nccl" if kind.type == "cuda" else "gloo",
            init_method=f"tcp://{place.address}:{place.store_port}",
            rank=place.rank,
            world_size=place.ranks,
            timeout=timedelta(seconds=deadline_s),
        )
    except RuntimeError as error:
        if not timed_out(error):
            raise
        raise DeadlineExceeded(
            f"waited {deadline_s:g} s for all {place.ranks} ranks to meet",
            given=f"{place.address}:{place.store_port}, {error}",
            remedy="see the ranks' own lines in the log",
        ) from error
    yield
    # Not after an error: another rank may never come.
    dist.destroy_process_group()


def timed_out(error: BaseException) -> bool:
    """Whether a collective's deadline passed: gloo, nccl and the store say so in their text alone."""
    return isinstance(error, RuntimeError) and re.search(r"timed? ?out", str(error), re.IGNORECASE) is not None


def rank_device(device: torch.device) -> torch.device:
    """This rank's own of a kind of device."""
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


def rows_of_all(row: Tensor) -> Tensor:
    """The [n] of every rank as [ranks, n] on the CPU, in the order of ranks. All ranks take part."""
    beside = row.to(rank_device(torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")))
    rows = [torch.empty_like(beside) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, beside)
    return torch.stack(rows).cpu()
