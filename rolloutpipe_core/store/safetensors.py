"""Safetensors files without torch: 8 bytes of length, a JSON header of that length, then the tensors' bytes."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolloutpipe_core.errors import BadInput

LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
FLOATS = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": np.uint16}


class TensorPlace(NamedTuple):
    dtype: str  # as the format names it: "F32", "BF16", ...
    shape: list[int]
    start: int  # byte in the file


def tensor_places(path: Path) -> dict[str, TensorPlace]:
    """Every tensor of a file by its name. Raises BadInput for what is no safetensors file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > LARGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        return {
            name: TensorPlace(entry["dtype"], entry["shape"], 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise BadInput("not a safetensors file", given=f"{path}: {error}", remedy="fetch the model again") from None


def read_floats(path: Path, place: TensorPlace) -> NDArray[np.float64]:
    """A tensor of floating-point numbers, flat. Raises BadInput for one of another type."""
    if place.dtype not in FLOATS:
        raise BadInput("not a tensor of floats", given=f"{path}: {place.dtype}", expected=", ".join(FLOATS))
    stored = np.fromfile(path, FLOATS[place.dtype], count=math.prod(place.shape), offset=place.start)
    if place.dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)
