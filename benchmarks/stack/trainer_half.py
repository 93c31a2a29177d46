"""Updates by the Megatron backend and by a bare megatron-core loop, in turns, on two tensor parallel ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import DeadlineExceeded, RolloutPipeError
from rolloutpipe_core.local import leash
from rolloutpipe_core.local.process import free_ports

from .pairs import Pair

RANKS = 2
TURN_S = 120.0
"""Most that a turn of both may take."""


@dataclass(frozen=True, slots=True)
class Updates:
    """What is trained."""

    groups: int  # U
    samples: int  # K
    longest: int  # tokens of a response; the shortest have 8
    each: int  # updates by either in a turn
    turns: int  # measured, behind one to warm up


def make_config(model: str, updates: Updates) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run": "bench",
            "model": {"path": model},
            "schedule": {
                "groups_per_round": updates.groups,
                "samples_per_group": updates.samples,
                "update_batch_size": updates.groups * updates.samples,
            },
            "sampling": {"max_new_tokens": updates.longest},
            "trainer": {"kind": "megatron", "tensor_parallel": RANKS},
        }
    )


def measure(folder: Path, model: str, updates: Updates) -> list[Pair]:
    """Raises RolloutPipeError with the end of a rank's log when one fails, DeadlineExceeded when it takes too long."""
    config = make_config(model, updates).model_dump_json()
    command = [sys.executable, "-m", "rolloutpipe_benchmarks.stack.trainer_rank"]
    arguments = [config, str(updates.turns), str(updates.each)]
    (port,) = free_ports(1)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())]
    logs = [folder / f"rank-{rank}.log" for rank in range(RANKS)]
    processes = []
    try:
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                environment = {**os.environ, **meeting, "RANK": str(rank)}
                processes.append(
                    subprocess.Popen(
                        [*leashed, *command, *arguments], stdout=subprocess.PIPE, stderr=file, env=environment
                    )
                )
        outputs = [process.communicate(timeout=TURN_S * (1 + updates.turns))[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"the ranks take longer than {TURN_S:g} s a turn") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        if process.returncode:
            raise RolloutPipeError(f"rank {rank} failed", given=logs[rank].read_text()[-2000:])
    return [Pair(*json.loads(line)) for line in outputs[0].splitlines()]
