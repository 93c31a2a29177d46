from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.config.memory import MemoryUse, count_parameters, memory_uses
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput


def write_header(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file without its data: only the header is read."""
    tensors = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_header(tmp_path / "model-1.safetensors", {"embed": [10, 4], "norm": [4]})
    write_header(tmp_path / "model-2.safetensors", {"scalar": [], "head": [5, 11]})
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({"run": "walk", "model": {"path": "m", "dtype": "bfloat16"}} | sections)


def test_parameters_of_all_files_are_counted(model: Path) -> None:
    assert count_parameters(model) == 40 + 4 + 1 + 55


def test_bytes_by_hand(model: Path) -> None:
    sampling, data = {"max_new_tokens": 60}, {"max_prompt_tokens": 40}
    uses = memory_uses(config(sampling=sampling, data=data, engine={"slots": 8}), model)
    assert uses == [
        MemoryUse("rollout", "weights (bfloat16)", 200),
        # keys and values, 3 layers, 2 heads of 32 / 4, 2 bytes; 8 slots of 100 tokens
        MemoryUse("rollout", "KV cache, at most", 2 * 3 * 2 * 8 * 2 * 8 * 100),
        MemoryUse("trainer", "weights (bfloat16)", 200),
        MemoryUse("trainer", "float32 master weights", 400),
        MemoryUse("trainer", "gradient sums (float32)", 400),
        MemoryUse("trainer", "AdamW moments (float32)", 800),
    ]


def test_deterministic_sums_are_int64(model: Path) -> None:
    uses = memory_uses(config(deterministic=True), model)
    assert MemoryUse("trainer", "gradient sums (int64)", 800) in uses
    assert MemoryUse("trainer", "gradients of the step (float32)", 400) in uses
    assert not any("sums (float32)" in use.what for use in uses)


def test_copies_of_the_weights_are_listed_when_the_loss_needs_them(model: Path) -> None:
    loss = {"kl_coefficient": 0.1, "old_logprobs": "recompute"}
    *_, reference, start = memory_uses(config(loss=loss, model={"path": "m"}), model)
    assert (reference.bytes, start.bytes) == (400, 400)
    assert not any("master" in use.what for use in memory_uses(config(model={"path": "m"}), model))


def test_ranks_share_everything_that_is_sharded(model: Path) -> None:
    loss = {"kl_coefficient": 0.1, "old_logprobs": "recompute"}
    uses = memory_uses(config(trainer={"data_parallel": 8}, loss=loss), model)
    assert [use for use in uses if use.service != "rollout"] == [
        MemoryUse("trainer rank", "float32 master weights", 50),
        MemoryUse("trainer rank", "gradient sums (float32)", 50),
        MemoryUse("trainer rank", "AdamW moments (float32)", 100),
        MemoryUse("trainer rank", "reference (loss.kl_coefficient)", 25),
        MemoryUse("trainer rank", "round's start weights (loss.old_logprobs)", 25),
    ]


def trainer_uses(folder: Path, **sections: Any) -> list[MemoryUse]:
    return [use for use in memory_uses(config(**sections), folder) if use.service != "rollout"]


def test_megatron_shares_by_tensors_and_stages_and_the_optimizer_by_data(model: Path) -> None:
    """100 parameters over 2 x 2 ranks: 25 each; masters and moments once more over 5."""
    layout = {"kind": "megatron", "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 5}
    loss = {"kl_coefficient": 0.1, "old_logprobs": "recompute"}
    assert trainer_uses(model, trainer=layout | {"distributed_optimizer": True}, loss=loss) == [
        MemoryUse("trainer rank", "weights (bfloat16)", 50),
        MemoryUse("trainer rank", "float32 master weights", 20),
        MemoryUse("trainer rank", "gradient sums (float32)", 100),
        MemoryUse("trainer rank", "AdamW moments (float32)", 40),
        MemoryUse("trainer rank", "reference (loss.kl_coefficient)", 50),
        MemoryUse("trainer rank", "round's start weights (loss.old_logprobs)", 50),
    ]
    assert trainer_uses(model, trainer=layout) == [
        MemoryUse("trainer rank", "weights (bfloat16)", 50),
        MemoryUse("trainer rank", "float32 master weights", 100),
        MemoryUse("trainer rank", "gradient sums (float32)", 100),
        MemoryUse("trainer rank", "AdamW moments (float32)", 200),
    ]


def test_megatrons_float32_weights_are_their_own_masters(model: Path) -> None:
    """One rank; 8 of them have 12.5 parameters each, which are 50, 50 and 100 bytes."""
    bytes_of = {}
    for ranks in (1, 8):
        uses = trainer_uses(model, trainer={"kind": "megatron", "tensor_parallel": ranks}, model={"path": "m"})
        bytes_of[uses[0].service] = {use.what: use.bytes for use in uses}
    whats = ("weights (float32)", "gradient sums (float32)", "AdamW moments (float32)")
    assert bytes_of == {
        "trainer": dict(zip(whats, (400, 400, 800), strict=True)),
        "trainer rank": dict(zip(whats, (50, 50, 100), strict=True)),
    }


def test_what_sglang_holds_is_its_servers(model: Path) -> None:
    engine = {"kind": "sglang", "urls": ["http://gpu-1:30000"]}
    assert all(use.service == "trainer" for use in memory_uses(config(engine=engine), model))


@pytest.mark.parametrize(
    "content", [b"", b"\x05\x00\x00\x00\x00\x00\x00\x00{", b"\xff" * 8 + b"{}", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_a_file_that_is_no_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match="not a safetensors file"):
        count_parameters(tmp_path)
