import pytest
import torch
from safetensors.torch import save_file

from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.store.safetensors import read_floats, tensor_places


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floats_as_torch_wrote_them(tmp_path, dtype):
    path, values = tmp_path / "model.safetensors", [[1.0, -2.5], [0.15625, 3e4]]
    save_file({"a": torch.tensor(values, dtype=dtype), "b": torch.tensor([7.0])}, path, metadata={"format": "pt"})
    places = tensor_places(path)
    assert places["a"].shape == [2, 2]
    assert read_floats(path, places["a"]).tolist() == torch.tensor(values, dtype=dtype).double().flatten().tolist()
    assert read_floats(path, places["b"]).tolist() == [7.0]


def test_other_types_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.tensor([1])}, path)
    with pytest.raises(BadInput, match=r"not a tensor of floats.*I64"):
        read_floats(path, tensor_places(path)["a"])
