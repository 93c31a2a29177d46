"""The real services as processes, each on a core of its own, forked from a process that has imported torch once.

    benchmark ──> fork server (torch, transformers, both services imported; one thread) ──fork──> rollout, trainer

A service so started runs its own `main`: arguments, configuration, connections and log are those of `python -m`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from rolloutpipe_core.cli.processes import service_environment
from rolloutpipe_core.local.leash import PR_SET_PDEATHSIG

SERVICES = {"rollout": "rolloutpipe_components.rollout.__main__", "trainer": "rolloutpipe_components.trainer.__main__"}
PRELOADED = [
    "torch",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "rolloutpipe_core.preparation",
    "rolloutpipe_core.rewards.pool",
    "rolloutpipe_components.rollout.engines.torch",
    "rolloutpipe_components.rollout.service",
    "rolloutpipe_components.trainer.backends.torch",
    "rolloutpipe_components.trainer.service",
    *SERVICES.values(),
]


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where. On two cores the servers share rollout's: decoding is what waits for them least."""

    rollout: int
    trainer: int
    servers: int

    @classmethod
    def choose(cls, available: set[int]) -> Cores:
        """From the cores this process may use; with one core only, everything shares it."""
        cores = sorted(available)
        return cls(cores[0], cores[1 % len(cores)], cores[2] if len(cores) > 2 else cores[0])

    @property
    def told(self) -> str:
        return f"rollout on core {self.rollout}, trainer on core {self.trainer}, Valkey and S3 on core {self.servers}"


def fork_server() -> ForkServerContext:
    """A context whose processes start in a tenth of a second. Sets this process's environment as services have it."""
    os.environ.update(service_environment(os.environ))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@dataclass(frozen=True, slots=True)
class ServiceStarter:
    """Starts services of runs whose servers belong to `folder`."""

    context: ForkServerContext
    folder: Path
    logs: Path
    cores: Cores

    def log(self, run: str, role: str) -> Path:
        return self.logs / run / f"{role}.log"

    def start(self, role: str, run: str, config: Path, overrides: list[str]) -> BaseProcess:
        """A running service of this role, for this run."""
        sets = [part for override in overrides for part in ("--set", override)]
        arguments = [str(config.resolve()), *sets, "--name", role]
        core = self.cores.rollout if role == "rollout" else self.cores.trainer
        log = self.log(run, role)
        log.parent.mkdir(parents=True, exist_ok=True)
        process = self.context.Process(
            target=_serve, args=(role, arguments, str(self.folder), core, str(log)), name=role, daemon=True
        )
        process.start()
        return process


def _serve(role: str, arguments: list[str], folder: str, core: int, log: str) -> None:
    """In the child: one core, one torch thread, the log, and then the service itself."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the fork server ends with the benchmark
    os.sched_setaffinity(0, {core})
    with Path(log).open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    import torch

    from rolloutpipe_core.service import run_service

    torch.set_num_threads(1)
    sys.exit(run_service(role, import_module(SERVICES[role]).main, arguments))
