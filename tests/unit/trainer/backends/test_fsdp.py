"""FSDP2 on several ranks (gloo processes) against one rank, on the same recorded groups.

All cases of a number of ranks share its processes, which start once: importing torch takes longer than training.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rolloutpipe_components.trainer.backends.torch import TorchTrainer
from rolloutpipe_components.trainer.ranks.place import Place
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group
from rolloutpipe_core.local.process import free_ports
from rolloutpipe_core.store.groups import decode_group, encode_group

from .one_rank import Steps, play

RATE = 1e-3
WHOLE = [["round"], ["update", 0, [[0], [1, 2]]], ["update", 1, [[3, 4, 5]]], ["update", 2, [[6]]]]
"""Three updates; with 32 tokens a micro-batch the ranks need different numbers of them."""


@dataclass(frozen=True)
class Case:
    """What both sides train; `files` are written beside it by rank 0."""

    steps: Steps
    family: str = "qwen3"
    sections: dict[str, Any] = field(default_factory=dict)
    reference: bool = False
    change: Callable[[list[Group]], list[Group]] = lambda groups: groups


def ends(steps: Steps) -> Steps:
    """The steps, then a checkpoint and an export."""
    return [*steps, ["save", "state"], ["export", "model"]]


def first_sample_alone(groups: list[Group]) -> list[Group]:
    return [replace(groups[0], samples=groups[0].samples[:1])]


def nothing_trained(groups: list[Group]) -> list[Group]:
    bare = [replace(sample, loss_mask=np.zeros_like(sample.loss_mask)) for sample in groups[0].samples]
    return [replace(groups[0], samples=tuple(bare)), groups[1]]


def broken(groups: list[Group]) -> list[Group]:
    bad = [replace(sample, advantage=float("nan")) for sample in groups[1].samples]
    return [groups[0], replace(groups[1], samples=tuple(bad)), groups[2]]


TERMS = {
    "loss": {
        "old_logprobs": "recompute",
        "importance_cap": 2.0,
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.01,
        "aggregation": "sample_mean",
    },
    "trainer": {"gradient_checkpointing": True},
}
CASES = {
    "plain": Case(ends(WHOLE)),
    "terms": Case(ends(WHOLE), family="llama", sections=TERMS, reference=True),
    "bfloat16": Case(ends(WHOLE), sections={"model": {"dtype": "bfloat16"}, "loss": {"old_logprobs": "recompute"}}),
    "one sample": Case(ends([["update", 0, [[0]]], ["update", 1, [[0]]]]), change=first_sample_alone),
    "untrained": Case(ends([["update", 0, [[0]]], ["update", 1, [[0, 1]]]]), change=nothing_trained),
    "resumed": Case([["load", "../start"], *ends(WHOLE)]),
    "broken": Case(ends([["update", 0, [[0]]], ["update", 1, [[1, 2]]], ["update", 2, [[2]]]]), change=broken),
}
THREE_RANKS = {"one sample": CASES["one sample"], "three": CASES["plain"]}


def config_of(case: Case, model: Path, ranks: int) -> RunConfig:
    sections: dict[str, dict[str, Any]] = {
        "model": {"path": str(model)},
        "sampling": {"max_new_tokens": 16},
        "optimizer": {"learning_rate": RATE},
        "trainer": {"microbatch_tokens": 32, "data_parallel": ranks},
        "loss": {},
    }
    for name, fields in case.sections.items():
        sections[name] |= fields
    return RunConfig.model_validate({"run": "test", **sections})


def run_ranks(folder: Path, cases: dict[str, Any], ranks: int) -> None:
    """Have the cases trained by processes; returns when all have ended well."""
    (folder / "cases.json").write_text(json.dumps(cases))
    ports = free_ports(2)
    script = Path(__file__).with_name("one_rank.py")
    processes = []
    for rank in range(ranks):
        place = Place(rank, ranks, rank, "127.0.0.1", *ports, "token")
        environment = {**os.environ, **place.environment(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), str(folder)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        ends = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(ends)


@dataclass
class Trained:
    """What training left."""

    results: list[dict[str, Any]]
    folder: Path
    state: str = "state"

    @property
    def tensors(self) -> dict[str, Tensor]:
        return load_file(self.folder / self.state / "state.safetensors")


class Comparison:
    """The cases, trained by `ranks` processes and by this one."""

    def __init__(self, cases: dict[str, Case], ranks: int, folder: Path, make_model, make_group) -> None:
        self.cases, self.ranks, self.folder = cases, ranks, folder
        self._make_model = make_model
        recorded = [make_group(seed=5, index=index) for index in range(7)]
        orders = {}
        for name, case in cases.items():
            place = folder / name
            place.mkdir(parents=True)
            groups = []
            for number, group in enumerate(case.change(list(recorded))):
                (place / f"{number}.arrow").write_bytes(encode_group(group))
                groups.append(f"{name}/{number}.arrow")
            model = make_model(case.family)
            orders[name] = {
                "config": config_of(case, model, ranks).model_dump(mode="json"),
                "model": str(model),
                "reference": str(make_model(case.family, seed=1)) if case.reference else None,
                "steps": [
                    [do, *([f"{name}/{rest[0]}"] if do in ("save", "export", "load") else rest)]
                    for do, *rest in case.steps
                ],
                "groups": groups,
            }
        run_ranks(folder, orders, ranks)

    def of_ranks(self, name: str) -> Trained:
        every = [json.loads((self.folder / f"{name}-{rank}.json").read_text()) for rank in range(self.ranks)]
        assert all(results == every[0] for results in every), "ranks differ"
        return Trained(every[0], self.folder / name)

    def of_one(self, name: str, folder: Path) -> Trained:
        case = self.cases[name]
        groups = [decode_group(file.read_bytes()) for file in sorted((self.folder / name).glob("*.arrow"))]
        trainer = self.one_rank(name)
        return Trained(play(trainer, case.steps, groups, folder), folder)

    def one_rank(self, name: str) -> TorchTrainer:
        case = self.cases[name]
        model = self._make_model(case.family)
        reference = self._make_model(case.family, seed=1) if case.reference else None
        return TorchTrainer.of(config_of(case, model, ranks=1), model, reference)


@pytest.fixture(scope="module")
def two(tmp_path_factory, make_model, make_group) -> Comparison:
    folder = tmp_path_factory.mktemp("two")
    before = TorchTrainer.of(config_of(CASES["plain"], make_model(), ranks=1), make_model())
    play(before, [["update", 0, [[0]]], ["save", "start"]], [make_group(seed=6)], folder)
    return Comparison(CASES, 2, folder, make_model, make_group)


@pytest.fixture(scope="module")
def three(tmp_path_factory, make_model, make_group) -> Comparison:
    return Comparison(THREE_RANKS, 3, tmp_path_factory.mktemp("three"), make_model, make_group)


def distance(left: dict[str, Tensor], right: dict[str, Tensor], prefix: str) -> float:
    """Largest difference of any element of the tensors so named."""
    assert left.keys() == right.keys()
    names = [name for name in left if name.startswith(prefix)]
    assert names
    return max((left[name].double() - right[name].double()).abs().max().item() for name in names)


def assert_same_training(ranks: Trained, one: Trained, tolerance: float) -> None:
    """Results to a relative `tolerance`; weights to the same part of what an update moves them by."""
    assert len(ranks.results) == len(one.results)
    for theirs, ours in zip(ranks.results, one.results, strict=True):
        assert theirs["metrics"] == pytest.approx(ours["metrics"], rel=tolerance, abs=tolerance)
        assert {**theirs, "metrics": 0} == {**ours, "metrics": 0}
    assert distance(ranks.tensors, one.tensors, "exp_avg.") < tolerance
    assert distance(ranks.tensors, one.tensors, "master.") < max(tolerance, 1e-5)


@pytest.mark.parametrize("name", ["plain", "terms", "one sample", "untrained", "broken"])
def test_two_ranks_train_as_one_does(name: str, two: Comparison, tmp_path: Path) -> None:
    assert_same_training(two.of_ranks(name), two.of_one(name, tmp_path), 1e-5)


@pytest.mark.parametrize("name", THREE_RANKS)
def test_three_ranks_train_as_one_does(name: str, three: Comparison, tmp_path: Path) -> None:
    """Three divide neither the layers' sizes nor the four samples of a group."""
    assert_same_training(three.of_ranks(name), three.of_one(name, tmp_path), 1e-5)


def test_a_step_that_is_not_finite_is_skipped_by_all(two: Comparison) -> None:
    assert [result["skipped"] for result in two.of_ranks("broken").results] == [False, True, False]


def test_in_bfloat16_masters_stay_float32_and_the_engine_gets_their_rounding(two: Comparison, tmp_path: Path) -> None:
    ranks, one = two.of_ranks("bfloat16"), two.of_one("bfloat16", tmp_path)
    for theirs, ours in zip(ranks.results, one.results, strict=True):
        # 2^-8 a rounding, in another order of summands.
        assert theirs["metrics"]["loss"] == pytest.approx(ours["metrics"]["loss"], abs=2e-2)
        assert theirs["metrics"]["grad_norm"] == pytest.approx(ours["metrics"]["grad_norm"], rel=2e-2)
    masters = {name.removeprefix("master."): tensor for name, tensor in ranks.tensors.items() if "master." in name}
    assert {tensor.dtype for tensor in masters.values()} == {torch.float32}
    exported = load_file(ranks.folder / "model" / "model.safetensors")
    assert exported.keys() == masters.keys()
    assert all(torch.equal(exported[name], masters[name].bfloat16()) for name in exported)
    assert not all(torch.equal(masters[name], masters[name].bfloat16().float()) for name in masters)


@pytest.mark.parametrize("name", ["plain", "terms", "bfloat16"])
def test_an_export_is_what_one_rank_writes(name: str, two: Comparison, tmp_path: Path) -> None:
    one = two.of_one(name, tmp_path)
    left, right = two.of_ranks(name).folder / "model", one.folder / "model"
    assert {file.name for file in left.iterdir()} == {file.name for file in right.iterdir()}
    for file in left.iterdir():
        if file.suffix != ".safetensors":
            assert file.read_bytes() == (right / file.name).read_bytes(), file.name
    assert load_file(left / "model.safetensors").keys() == load_file(right / "model.safetensors").keys()
    assert AutoModelForCausalLM.from_pretrained(left).num_parameters()


def test_a_checkpoint_of_two_ranks_is_the_same_on_one(two: Comparison, tmp_path: Path) -> None:
    state = two.of_ranks("plain").folder / "state"
    there = two.one_rank("plain")
    there.load(state)
    there.save(tmp_path)
    left, right = (load_file(folder / "state.safetensors") for folder in (state, tmp_path))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (state / "state.json").read_bytes() == (tmp_path / "state.json").read_bytes()


def test_a_checkpoint_of_one_rank_is_resumed_by_two(two: Comparison, tmp_path: Path) -> None:
    shutil.copytree(two.folder / "start", tmp_path / "start")
    (tmp_path / "here").mkdir()
    assert_same_training(two.of_ranks("resumed"), two.of_one("resumed", tmp_path / "here"), 1e-5)
