"""Checkpoints know no layout and no backend: saved here, resumed there."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

LAYOUTS = {
    "TP1": {},
    "TP2": {"tensor_parallel": 2},
    "PP2": {"pipeline_parallel": 2},
    "DP2, distributed optimizer": {"data_parallel": 2, "distributed_optimizer": True},
    "TP2 x PP2": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "PP2 x DP2, distributed optimizer": {"pipeline_parallel": 2, "data_parallel": 2, "distributed_optimizer": True},
}
FIRST, SECOND = [[[[0], [1]], [[2, 3]]]], [[[[4, 5]]]]


@pytest.fixture(scope="module", params=["qwen3", "qwen2"])
def family(request):
    """Tied and untied; the vocabulary of 33 is padded for two ranks."""
    return request.param


@pytest.fixture(scope="module")
def saved(train, family, tmp_path_factory):
    """A checkpoint of two updates from two tensor-parallel ranks, and what one more update makes of it there."""
    folder = tmp_path_factory.mktemp("checkpoint")
    train(family=family, rounds=FIRST, save=folder, tensor_parallel=2)
    return folder, train(family=family, rounds=SECOND, load=folder, tensor_parallel=2)


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_what_is_loaded_is_saved_again_to_the_bit(layout, train, family, saved):
    _, state = train(family=family, rounds=[], load=saved[0], **layout)
    assert same(state, load_file(saved[0] / "state.safetensors"))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_training_goes_on_in_another_layout(layout, train, family, saved):
    (update,), state = train(family=family, rounds=SECOND, load=saved[0], **layout)
    (expected,), masters = saved[1]
    assert update == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert max((state[name] - masters[name]).abs().max().item() for name in state) < 2e-5


def test_training_goes_on_in_the_torch_backend_and_back(train, family, saved, tmp_path):
    (update,), state = train("torch", family=family, rounds=SECOND, load=saved[0], save=tmp_path)
    (expected,), masters = saved[1]
    assert update == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert max((state[name] - masters[name]).abs().max().item() for name in state) < 2e-5
    _, again = train(family=family, rounds=[], load=tmp_path, tensor_parallel=2, data_parallel=2)
    assert same(again, state)


def test_a_run_that_resumes_is_the_run_that_did_not_stop(train, family, saved):
    """The checkpoint holds all: one process or two, the same bits."""
    _, state = train(family=family, rounds=[*FIRST, *SECOND], tensor_parallel=2)
    assert same(state, saved[1][1])


def test_bfloat16_keeps_float32_masters(train, family, tmp_path):
    options = {"family": family, "dtype": "bfloat16", "tensor_parallel": 2}
    train(**options, rounds=FIRST, save=tmp_path)
    state = load_file(tmp_path / "state.safetensors")
    masters = [tensor for name, tensor in state.items() if name.startswith("master.")]
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters)
    assert same(train(**options, rounds=[], load=tmp_path)[1], state)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_export_is_what_transformers_loads(dtype, train, family, tmp_path):
    layout = {"tensor_parallel": 2, "pipeline_parallel": 2}
    _, state = train(family=family, dtype=dtype, rounds=FIRST, export=tmp_path, **layout)
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=getattr(torch, dtype), output_loading_info=True
    )
    assert not any(report.values())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, state[f"master.{name}"].to(parameter.dtype)), name


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("any_family", ["qwen3", "qwen2", "llama"])
def test_what_the_export_holds_is_what_the_torch_backend_writes(layout, any_family, train, tmp_path):
    """The same files with the same bytes, so that equal weights have equal names."""
    exports = [tmp_path / "megatron", tmp_path / "torch"]
    train(family=any_family, rounds=[], export=exports[0], **layout)
    train("torch", family=any_family, rounds=[], export=exports[1])
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in exports]
    assert files[0] == files[1]


def test_a_checkpoint_of_another_model_is_refused(train, saved, family):
    other = {"qwen3": "llama", "qwen2": "qwen3"}[family]
    with pytest.raises(AssertionError, match="missing or of another shape"):
        train(family=other, rounds=[], load=saved[0], tensor_parallel=2)
