"""How far apart two versions of a model's weights are, as a part of how far the first one has moved."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.store.safetensors import TensorPlace, read_floats, tensor_places


def relative_distance(start: Path, expected: Path, given: Path) -> float:
    """|given - expected| / |expected - start| over all weights in three folders of safetensors, one tensor at a time.

    0 when nothing is apart, inf when the expected weights have not moved but the others have. Raises BadInput for
    folders that do not hold the same tensors.
    """
    before, wanted, found = folders = [_tensors(folder) for folder in (start, expected, given)]
    if missing := sorted(wanted.keys() - (before.keys() & found.keys())):
        raise BadInput("versions of different tensors", given=f"{start}, {given}", expected=", ".join(missing[:4]))
    apart = moved = 0.0
    for name in wanted:
        first, second, third = (read_floats(*folder[name]) for folder in folders)
        apart += float(np.square(third - second).sum())
        moved += float(np.square(second - first).sum())
    if apart == 0:
        return 0.0
    return math.sqrt(apart / moved) if moved else math.inf


def _tensors(folder: Path) -> dict[str, tuple[Path, TensorPlace]]:
    return {name: (path, place) for path in folder.glob("*.safetensors") for name, place in tensor_places(path).items()}
