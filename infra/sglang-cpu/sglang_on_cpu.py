"""Lets SGLang's unmodified wheel start where there is no GPU. Imported at each interpreter start of its environment.

SGLang imports triton and torchvision whatever the device. Triton has no CPU build that would serve here, so a module
that does nothing takes its place: decorators return what they decorate. Torchvision's Python part is installed
without its compiled part, whose two operators must be declared before it looks for them. Nothing of either is called
while text is served. The environment variables below are defaults; what is set already stays.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from typing import Any

DEFAULTS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # A health check that samples a token hangs while the server is paused, and then reports it dead.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
LEFT_OUT = Path(__file__).with_name("left_out_models.txt")
"""Model files of SGLang that need compiled kernels at import, or that nobody asks for here."""
TRITON_VERSION = "3.7.0"
OPERATORS = ("nms", "qnms")


class _Anything:
    """A base class, a type or a value of the absent library."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __init_subclass__(cls, **_: Any) -> None: ...


class _Absent(types.ModuleType):
    """A module whose every name is there and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "driver":
            raise RuntimeError("0 active drivers")  # what triton itself says on a machine without a GPU
        full = f"{self.__name__}.{name}"
        value = sys.modules.get(full) or (type(name, (_Anything,), {}) if name[0].isupper() else _Absent(full))
        setattr(self, name, value)
        return value

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As a decorator it returns the function; as a decorator's factory, itself."""
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) and not options else self


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds triton everywhere, and declares torchvision's operators just before it is first imported."""

    library: Any = None  # kept: the declarations end with it

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if fullname == "torchvision" and self.library is None:
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Absent(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = TRITON_VERSION
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(LEFT_OUT.read_text().split()))
sys.meta_path.insert(0, _Finder())
