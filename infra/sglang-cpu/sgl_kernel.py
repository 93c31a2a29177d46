"""Stands where SGLang's compiled CUDA kernels would be: names resolve at import, and a call says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"the CUDA kernel {name} is not on this machine: SGLang serves on its CPU here")

    return kernel
