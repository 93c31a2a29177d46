"""Between files of whole Hugging Face tensors and this rank's shards.

    load_shards   every rank reads the file and keeps its part; nothing is sent
    gather        collective: the shards of a replica's ranks become whole tensors on the first rank

A file of weights and one of optimizer state are read and written alike: the state's tensors have a weight's name behind
a prefix, and its shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from megatron.core import parallel_state
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed

from rolloutpipe_core.errors import BadInput

from .architecture import Architecture
from .layout import Layout
from .mapping import Entry, Stage, stage_entries, tensor_shapes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorFiles:
    """The tensors of safetensors files by name, read when asked for."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        """`paths`: each tensor's file. Raises BadInput for what is no safetensors file."""
        self._paths = paths
        self._files: dict[Path, Any] = {}

    @classmethod
    def of_model(cls, directory: Path) -> TensorFiles:
        """The weights of a Hugging Face folder, in one file or in several with an index."""
        index = directory / INDEX
        if index.is_file():
            places: dict[str, str] = json.loads(index.read_text())["weight_map"]
            return cls({name: directory / place for name, place in places.items()})
        return cls.of_file(directory / SINGLE)

    @classmethod
    def of_file(cls, path: Path) -> TensorFiles:
        try:
            with safe_open(path, framework="pt") as file:
                return cls(dict.fromkeys(file.keys(), path))
        except (OSError, SafetensorError) as error:
            raise BadInput("no safetensors file", given=f"{path}: {error}") from error

    @property
    def names(self) -> set[str]:
        return set(self._paths)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open(name).get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._open(name).get_tensor(name)
        return tensor

    def check(self, architecture: Architecture, prefix: str = "") -> None:
        """Raise BadInput unless every parameter of the model is there, in its shape."""
        wrong = [
            name
            for name, shape in tensor_shapes(architecture).items()
            if prefix + name not in self._paths or self.shape(prefix + name) != shape
        ]
        if wrong:
            path = next(iter(self._paths.values()), None)
            raise BadInput(
                "weights are missing or of another shape", given=f"{path}: {wrong[:4]}", expected="every parameter"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    def _open(self, name: str) -> Any:
        path = self._paths[name]
        if path not in self._files:
            self._files[path] = safe_open(path, framework="pt")
        return self._files[path]


class Shards:
    """A model's parameters on this rank, and how they are parts of Hugging Face's."""

    def __init__(self, architecture: Architecture, layout: Layout) -> None:
        self._architecture, self._layout = architecture, layout
        self._entries = stage_entries(architecture, layout.stage)

    @torch.no_grad()
    def load(self, parameters: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> None:
        """Copy this rank's shard of what `read(name)` gives into each parameter, in its type."""
        for name, parameter in parameters.items():
            parameter.copy_(self.cut(name, read))

    def cut(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """This rank's shard for megatron-core's parameter `name`."""
        entry = self._entries[name]
        tensors = [read(part) for part in entry.names]
        return entry.rule.shard(tensors, self._layout.tensor_rank, self._layout.tensor_parallel)

    def gather(self, shard: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Collective. Hugging Face's tensors by name, on the CPU of the first rank; {} on the others.

        `shard(name)` gives this rank's of megatron-core's parameter; every rank is asked in the same order, and those
        of the first replica are taken.
        """
        whole: dict[str, Tensor] = {}
        for name, entry in self._entries.items():
            mine = shard(name).detach()
            if self._layout.data_rank == 0:
                parts = self._from_tensor_ranks(mine)
                if self._layout.tensor_rank == 0 and not entry.copied:
                    whole |= zip(entry.names, (part.cpu() for part in entry.rule.join(parts)), strict=True)
        if self._layout.data_rank == self._layout.tensor_rank == 0:
            self._to_first_stage(whole)
        return {name: tensor.contiguous() for name, tensor in whole.items()} if self._layout.leader else {}

    def _from_tensor_ranks(self, shard: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(shard) for _ in range(self._layout.tensor_parallel)]
        distributed.all_gather(parts, shard.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
        return parts

    def _to_first_stage(self, whole: dict[str, Tensor]) -> None:
        """The first stage's `whole` gets what the later ones have, in the order of their entries."""
        stages = self._layout.pipeline_parallel
        if not self._layout.stage.first:
            for tensor in whole.values():
                distributed.send(tensor.to(self._layout.device).contiguous(), dst=0)
            return
        dtype, shapes = next(iter(whole.values())).dtype, tensor_shapes(self._architecture)
        for index in range(1, stages):
            for name in _own_names(stage_entries(self._architecture, Stage(index, stages))):
                tensor = torch.empty(shapes[name], dtype=dtype, device=self._layout.device)
                distributed.recv(tensor, src=self._layout.rank_of_stage(index))
                whole[name] = tensor.cpu()


def _own_names(entries: Mapping[str, Entry]) -> list[str]:
    return [name for entry in entries.values() if not entry.copied for name in entry.names]
