"""What the parts of the measurement share: sizes, configuration, weights, and the lines in which they talk."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import WeightVersion

RUN = "gpu-round"
R, K, U = 16, 8, 4  # groups a round, samples a group, groups an update
SLOTS = 64  # half of the round's requests
PROMPT_TOKENS = 256
DEADLINE_S = 570.0


class Size(NamedTuple):
    hidden: int
    intermediate: int
    head_dim: int
    layers: int
    vocabulary: int


SIZES = {
    "0.6B": Size(1024, 3072, 128, 28, 151936),
    "1.7B": Size(2048, 6144, 128, 28, 151936),
    "tiny": Size(64, 128, 8, 2, 512),
}
"""Qwen3-0.6B, Qwen3-1.7B, and one for a CPU."""


def configure(device: str, schedule: str, new_tokens: int) -> RunConfig:
    sizes = {"groups_per_round": R, "samples_per_group": K, "update_batch_size": U * K}
    return RunConfig.model_validate(
        {
            "run": RUN,
            "model": {"path": "random", "dtype": "bfloat16", "device": device},
            "schedule": {"kind": schedule, "rounds": 1, **sizes},
            "sampling": {"max_new_tokens": new_tokens},
            "engine": {"slots": SLOTS},
            "optimizer": {"learning_rate": 1e-6},
            "trainer": {"microbatch_tokens": 16384, "gradient_checkpointing": True},
        }
    )


def write_model(size: str, device: str, folder: Path) -> int:
    """A Qwen3 with random bfloat16 weights: the work does not depend on them. Returns the number of parameters."""
    of = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=of.hidden,
        intermediate_size=of.intermediate,
        num_hidden_layers=of.layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=of.head_dim,
        vocab_size=of.vocabulary,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def vocabulary_of(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


def version_of(round: int) -> WeightVersion:
    return WeightVersion(round, f"{round:064x}")


def weights_of(folder: Path, round: int) -> Path:
    return folder / f"v{round}"


def peak_memory_gib(device: str) -> float:
    """Most that this process had allocated on the device since the last call; 0 on a CPU."""
    if not device.startswith("cuda"):
        return 0.0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak / 2**30


def tell(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Lines:
    """JSON lines of a stream, read in a thread of their own; the last one is None: the stream has ended."""

    def __init__(self, stream: IO[str]) -> None:
        self._queue: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def wait(self) -> dict[str, Any] | None:
        """The next one. Raises queue.Empty when none comes within DEADLINE_S."""
        return self._queue.get(timeout=DEADLINE_S)

    def take(self) -> Iterator[dict[str, Any]]:
        """Those that have come."""
        while not self._queue.empty():
            if (line := self._queue.get()) is None:
                raise EOFError("the benchmark has ended")
            yield line

    def pause(self) -> None:
        """Leave the processor to others for a moment."""
        time.sleep(0.002)

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._queue.put(json.loads(line))
        self._queue.put(None)
