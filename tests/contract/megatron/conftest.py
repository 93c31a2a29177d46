"""Real ranks (gloo processes), tiny models of each family, and recorded groups."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.store.groups import encode_group

MOST_RANKS = 4
DEADLINE_S = 150.0
VOCABULARY = 33  # odd: padded for two ranks
VERSION = WeightVersion(0, "0" * 64)

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.2,  # so that an untrained model's logits differ
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False, rope_parameters=LLAMA3, rms_norm_eps=1e-5),
}


class Ranks:
    """Processes that are ranks in turn."""

    def __init__(self, folder: Path) -> None:
        program = [sys.executable, str(Path(__file__).with_name("rank.py"))]
        self._folder, self._tasks = folder, 0
        self._processes = [
            subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
            for _ in range(MOST_RANKS)
        ]
        self._answers: list[queue.Queue[str]] = [queue.Queue() for _ in self._processes]
        for process, answers in zip(self._processes, self._answers, strict=True):
            threading.Thread(target=self._listen, args=(process, answers), daemon=True).start()

    def run(self, ranks: int, *, stopped: int | None = None, **task: Any) -> list[Any]:
        """The task's result on each of `ranks` ranks. `stopped` is one that stops itself, until the others are done."""
        self._tasks += 1
        task = {"ranks": ranks, "store": str(self._folder / f"store-{self._tasks}")} | task
        for rank in range(ranks):
            pipe = self._processes[rank].stdin
            assert pipe is not None
            print(json.dumps(task | {"rank": rank}), file=pipe, flush=True)
        answers = [self._answer(rank) for rank in range(ranks) if rank != stopped]
        if stopped is not None:
            os.killpg(self._processes[stopped].pid, signal.SIGCONT)
            answers.append(self._answer(stopped))
        errors = [answer["error"] for answer in answers if "error" in answer]
        assert not errors, "\n".join(errors)
        return [answer["result"] for answer in answers]

    def _answer(self, rank: int) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answers[rank].get(timeout=DEADLINE_S))
        return answer

    def stop(self) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @staticmethod
    def _listen(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put(json.dumps({"error": f"a rank ended with {process.wait()}"}))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_model(family, seed)`: a folder with random weights, norms and biases included."""
    made: dict[tuple[str, int], Path] = {}

    def make(family: str = "qwen3", seed: int = 0) -> Path:
        if (family, seed) not in made:
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(CONFIGS[family])
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if parameter.ndim == 1:
                        parameter.add_(0.1 * torch.randn_like(parameter))
                        assert "norm" in name or "bias" in name
            made[family, seed] = tmp_path_factory.mktemp(f"{family}-{seed}")
            model.save_pretrained(made[family, seed])
        return made[family, seed]

    return make


def _group(index: int, samples: int = 4, longest: int = 16, seed: int = 0) -> Group:
    """Ragged responses with holes in their masks; log-probabilities around those of an untrained model."""
    random = np.random.default_rng([seed, index])
    prompt_ids = random.integers(2, VOCABULARY, random.integers(2, 7), dtype=np.int32)

    def sample(place: int) -> Sample:
        length = int(random.integers(1, longest + 1))
        mask = (random.random(length) < 0.8).astype(np.uint8)
        mask[-1] = 1
        return Sample(
            index=place,
            prompt_ids=prompt_ids,
            response_ids=random.integers(2, VOCABULARY, length, dtype=np.int32),
            behavior_logprobs=random.uniform(-4.0, -3.0, length).astype(np.float32),
            loss_mask=mask,
            reward=0.0,
            advantage=float(random.normal()),
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(VERSION, 0, length),),
        )

    return Group("test", 0, 0, index, 1, VERSION, f"p{index}", tuple(sample(place) for place in range(samples)))


@pytest.fixture(scope="session")
def make_group() -> Callable[..., Group]:
    """`make_group(index, samples=4, longest=16, seed=0)`"""
    return _group


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[Group]], list[str]]:
    """Files of groups as the store holds them."""

    def record(groups: Sequence[Group]) -> list[str]:
        folder = tmp_path_factory.mktemp("groups")
        paths = [folder / f"{place}.arrow" for place in range(len(groups))]
        for path, group in zip(paths, groups, strict=True):
            path.write_bytes(encode_group(group))
        return [str(path) for path in paths]

    return record


@pytest.fixture(scope="session")
def groups(recorded: Callable[[Sequence[Group]], list[str]]) -> list[str]:
    """Six recorded groups."""
    return recorded([_group(index) for index in range(6)])


Outcome = tuple[list[dict[str, float]], dict[str, torch.Tensor]]
TWO_ROUNDS = [[[[0], [1]], [[2, 3]]], [[[4, 5]]]]
"""Two updates on one version, of which the first comes in two portions, and one on the next."""


@pytest.fixture(scope="session")
def train(
    ranks: Ranks, make_model: Callable[..., Path], groups: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Outcome]:
    """`train(kind, tensor_parallel=2, ...)`: what each update said, and the tensors of the checkpoint at the end."""

    def run(
        kind: str = "megatron",
        *,
        family: str = "qwen3",
        dtype: str = "float32",
        rounds: Sequence[Any] = TWO_ROUNDS,
        reference: Path | None = None,
        load: Path | None = None,
        save: Path | None = None,
        export: Path | None = None,
        given: list[str] | None = None,
        temperature: float = 1.3,
        loss: dict[str, Any] | None = None,
        optimizer: dict[str, Any] | None = None,
        **trainer: Any,
    ) -> Outcome:
        save = save or tmp_path_factory.mktemp("saved")
        config = {
            "run": "test",
            "model": {"path": str(make_model(family)), "dtype": dtype},
            "loss": loss or {},
            # A gradient far below AdamW's eps is rounding: at the default of 1e-8 its sign would step whole rates.
            "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.5, "eps": 1e-6}
            | (optimizer or {}),
            "trainer": {"kind": kind, "microbatch_tokens": 64} | trainer,
            "sampling": {"temperature": temperature, "max_new_tokens": 16},
        }
        count = 1
        for key in ("data_parallel", "tensor_parallel", "pipeline_parallel"):
            count *= trainer.get(key, 1)
        paths = {"reference": reference, "load": load, "save": save, "export": export}
        results = ranks.run(
            count,
            op="train",
            config=config,
            groups=given or groups,
            rounds=rounds,
            **{key: str(path) if path else None for key, path in paths.items()},
        )
        assert all(result == results[0] for result in results)
        return results[0], load_file(save / "state.safetensors")

    return run
