"""What megatron-core needs on a machine without CUDA. Where CUDA is, nothing here does anything.

It asks CUDA for the device of its buffers, keeps CUDA's random states for dropout (of which there is none here), and
in its optimizer and its schedules writes the device as the literal "cuda".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cpu")


def install() -> None:
    """Answer megatron-core's questions to CUDA. Before its first process group; again is harmless."""
    if torch.cuda.is_available():
        return
    from megatron.core.tensor_parallel import random

    cuda: Any = torch.cuda
    cuda.current_device = lambda: DEVICE
    cuda.current_stream = lambda *_: None
    cuda.synchronize = lambda *_: None
    states: Any = random
    states._get_cuda_rng_state = lambda *_, **__: torch.empty(0)
    states._set_cuda_rng_state = lambda *_, **__: None
    random.get_cuda_rng_tracker().set_states({"model-parallel-rng": torch.empty(0)})


def cuda_literals() -> AbstractContextManager[object]:
    """Around calls into megatron-core that name the device "cuda": they then mean the CPU."""
    return nullcontext() if torch.cuda.is_available() else _CudaMeansCpu()


class _CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if named.get("device") == "cuda":
            named["device"] = DEVICE
        result = func(*args, **named)
        if func is torch.Tensor.type and isinstance(result, str):
            # The optimizer tells its parameters' precision by the names of CUDA's types.
            return result.replace("torch.", "torch.cuda.", 1)
        return result
