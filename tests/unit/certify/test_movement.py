import math

import pytest
import torch
from safetensors.torch import save_file

from rolloutpipe_core.certify.movement import relative_distance
from rolloutpipe_core.errors import BadInput


@pytest.fixture
def version(tmp_path):
    """`version(name, a, b)`: a folder with two files of one tensor each."""

    def make(name, a, b, dtype=torch.float32):
        folder = tmp_path / name
        folder.mkdir()
        save_file({"a": torch.tensor(a, dtype=dtype)}, folder / "model-1.safetensors")
        save_file({"b": torch.tensor([[b]], dtype=dtype)}, folder / "model-2.safetensors")
        return folder

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_by_hand(version, dtype):
    """It moved by (3, 0, 4), which is 5; the other is (0, 0.5, 0) away, which is a tenth of that."""
    start, expected = version("start", [1.0, 2.0], 1.0, dtype), version("expected", [4.0, 2.0], 5.0, dtype)
    assert relative_distance(start, expected, version("given", [4.0, 2.5], 5.0, dtype)) == pytest.approx(0.1)


def test_nothing_apart_and_nothing_moved(version):
    start, moved = version("start", [1.0, 2.0], 1.0), version("moved", [1.5, 2.0], 1.0)
    assert relative_distance(start, start, start) == 0.0
    assert relative_distance(start, start, moved) == math.inf


def test_other_tensors_are_refused(version, tmp_path):
    folder = version("start", [1.0], 1.0)
    save_file({"c": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BadInput, match=r"different tensors.*expected: a, b"):
        relative_distance(tmp_path, folder, folder)
