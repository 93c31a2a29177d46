"""One rank of these tests, a process: a task a line on stdin, an answer a line on stdout.

    {"op": "train", "kind": "megatron", "ranks": 2, "rank": 1, "store": "/tmp/...", "config": {...}, ...}

It stays for all tests, as its imports cost more than any of them, and ends with the pipe. Each task is run by a fork of
it with a torch.distributed of its own over the first `ranks` processes: what groups leave behind, threads that turn on
closed connections among it, ends with the fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from rolloutpipe_components.trainer.backends import policy
from rolloutpipe_components.trainer.backends.choice import make_backend
from rolloutpipe_components.trainer.backends.megatron import vocabulary
from rolloutpipe_components.trainer.backends.megatron.schedule import score as score_batches
from rolloutpipe_components.trainer.backends.megatron.trainer import MegatronTrainer
from rolloutpipe_components.trainer.batch import make_batch
from torch import distributed

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group
from rolloutpipe_core.store.groups import decode_group

DEADLINE = timedelta(seconds=60)


def main() -> None:
    torch.set_num_threads(1)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            with os.fdopen(answers, "w") as file:
                print(json.dumps(answer(json.loads(line))), file=file)
            os._exit(0)
        os.waitpid(child, 0)


def answer(task: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": run(task)}
    except Exception:
        return {"error": traceback.format_exc()}


def run(task: dict[str, Any]) -> Any:
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(task["store"], task["ranks"]),
        rank=task["rank"],
        world_size=task["ranks"],
        timeout=DEADLINE,
    )
    try:
        return {"train": train, "score": score, "stop": stop}[task["op"]](task)
    finally:
        parallel_state.destroy_model_parallel()
        distributed.destroy_process_group()


def train(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Rounds of updates of portions of groups; what each step said."""
    config, groups = RunConfig.model_validate(task["config"]), read_groups(task)
    trainer = make_backend(config, Path(config.model.path), Path(task["reference"]) if task["reference"] else None)
    if task["load"]:
        trainer.load(Path(task["load"]))
    results = []
    for updates in task["rounds"]:
        trainer.begin_round()
        for update, portions in enumerate(updates):
            trainer.begin_update(update)
            for portion in portions:
                trainer.accumulate([groups[index] for index in portion])
            result = trainer.step()
            results.append(
                {"groups": result.groups, "samples": result.samples, "tokens": result.tokens}
                | {"skipped": result.skipped, **result.metrics}
            )
    if task["save"]:
        trainer.save(Path(task["save"]))
    if task["export"]:
        trainer.export_weights(Path(task["export"]))
    return results


def score(task: dict[str, Any]) -> list[list[float]]:
    """Log-probabilities of each group's trained tokens, one group a micro-batch; [] but on the last stage."""
    config = RunConfig.model_validate(task["config"])
    trainer = MegatronTrainer.of(config, Path(config.model.path))
    vocabulary.CHUNK_LOGITS = task.get("chunk_logits", policy.CHUNK_LOGITS)
    batches = [make_batch(group.samples, "token_mean", torch.device("cpu")) for group in read_groups(task)]
    return [logprobs.tolist() for logprobs in score_batches(trainer._model, batches)]


def stop(task: dict[str, Any]) -> str:
    """The last rank stops itself (SIGSTOP) before the first update; what that update says on the others."""
    config = RunConfig.model_validate(task["config"])
    trainer = make_backend(config, Path(config.model.path), None)
    distributed.barrier()
    if task["rank"] == task["ranks"] - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return ""
    try:
        trainer.accumulate(read_groups(task))
        trainer.step()
    except RuntimeError as error:
        return str(error)
    return "stepped"


def read_groups(task: dict[str, Any]) -> list[Group]:
    return [decode_group(Path(path).read_bytes()) for path in task["groups"]]


if __name__ == "__main__":
    main()
