"""An SGLang server that we start: its command, its environment, its log, and its end.

It is three processes: HTTP, scheduler, detokenizer. A warden (it dies with us) leads their process group, which is what
is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.config.models import EngineConfig, LaunchConfig, ModelConfig
from rolloutpipe_core.errors import BadInput, EngineFailure
from rolloutpipe_core.local import warden
from rolloutpipe_core.local.process import free_ports

from .weights import Weights

HOST = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")
LOADS = "sglang_loads_*"
"""SGLang's files with the schedulers' loads: a server that is killed leaves its own."""
SECRET = re.compile(r"^(?:ROLLOUTPIPE_(?:REDIS|S3)_|AWS_)")
"""Variables that a server has no use for: how to reach Redis and the store."""
POLL_S = 0.1
KILL_S = 5.0
"""What the kernel gets to end a killed process; one that waits for a device may take for ever."""
TAIL_BYTES = 4000

log = logging.getLogger("rolloutpipe.sglang")


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How a worker starts its servers."""

    launch: LaunchConfig
    arguments: tuple[str, ...]  # before the user's own, which win
    logs: Path  # folder

    @classmethod
    def of(cls, engine: EngineConfig, model: ModelConfig, logs: Path) -> LaunchPlan:
        """Raises BadInput when `engine.launch` is not set."""
        if engine.launch is None:
            raise BadInput("no servers to start", expected="engine.launch")
        return cls(engine.launch, _arguments(engine, model), logs)


def _arguments(engine: EngineConfig, model: ModelConfig) -> tuple[str, ...]:
    """What follows from the rest of the configuration."""
    replicas = engine.launch.replicas if engine.launch else 1
    device = model.device.partition(":")[0]
    slots = -(-engine.slots // replicas)
    arguments = ["--device", device, "--dtype", model.dtype, "--max-running-requests", str(slots)]
    if device == "cpu":
        arguments += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        # Its scheduler would else turn in an empty loop between two requests, on a core that others need.
        arguments += ["--disable-custom-all-reduce", "--sleep-on-idle"]
    if engine.frontier_by == "priority":
        # Without preemption: it would drop the cache of a sample that a retried group overtakes.
        arguments += ["--enable-priority-scheduling", "--schedule-low-priority-values-first"]
        arguments += ["--disable-priority-preemption"]
    return tuple(arguments)


class LaunchedServer:
    """One server; it can be started again after its end. To be used from the main thread (see warden.py)."""

    def __init__(self, plan: LaunchPlan, name: str) -> None:
        self.name = name
        self.log = plan.logs / f"{name}.log"
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._group: int | None = None  # process group that may still have members

    @property
    def pid(self) -> int | None:
        """Of the process that leads its group."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def state(self) -> str:
        """That the last process runs or how it ended, for people."""
        if self._process is None:
            return "it was not started"
        status = self._process.poll()
        if status is None:
            how = "runs"
        else:
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
        return f"it {how}; {self.log} ends: {self._tail()}"

    async def start(self, weights: Weights) -> str:
        """Start the process with these weights and return its URL; it does not answer yet.

        Raises BadInput when there is no such interpreter, EngineFailure when the last process cannot be ended.
        """
        launch = self._plan.launch
        python = shutil.which(launch.python)
        if python is None:
            raise BadInput(
                "the interpreter of SGLang's environment is missing",
                given=launch.python,
                expected="engine.launch.python to be an executable",
                remedy="install SGLang into an environment of its own; on a CPU: infra/sglang-cpu/install",
            )
        await self._sweep()
        port = free_ports(1)[0]
        command = [sys.executable, "-I", "-S", warden.__file__, str(os.getpid()), python, "-m", "sglang.launch_server"]
        command += server_arguments(self._plan.arguments, launch.arguments, weights, port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=server_environment(os.environ, launch.environment),
                process_group=0,
            )
        self._group = self._process.pid
        return f"http://{HOST}:{port}"

    async def stop(self, deadline_s: float) -> None:
        """Ask it to end, then kill what is left of it."""
        try:
            if self._process is not None and self.running:
                self._process.terminate()
                await self._ends(deadline_s)
        finally:
            try:
                await self._sweep()
            except EngineFailure as error:
                log.error("%s", error)

    async def _sweep(self) -> None:
        """Kill what is left of the process group, and remove what dead servers left in shared memory.

        Raises EngineFailure when it does not end.
        """
        if self._process is None or self._group is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
        if not await self._ends(KILL_S):
            given, expected = f"process {self._process.pid}", f"its end within {KILL_S:g} s of SIGKILL"
            raise EngineFailure(f"{self.name} cannot be ended", given, expected, "see what it waits for in the kernel")
        self._group = None  # once: the number may be another's later
        sweep_shared_memory(SHARED_MEMORY)

    async def _ends(self, deadline_s: float) -> bool:
        """Whether the process ended within the deadline."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self.running:
                    await asyncio.sleep(POLL_S)
        return not self.running

    def _tail(self) -> str:
        """The last line that says something."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
            return next((line[-300:] for line in reversed(lines) if line), "nothing")
        return "nothing"


def server_arguments(ours: Sequence[str], users: Sequence[str], weights: Weights, port: int) -> list[str]:
    """Arguments of `sglang.launch_server`; of an argument that is given twice the last counts, so the user's wins."""
    address = ["--host", HOST, "--port", str(port)]
    served = ["--model-path", str(weights.directory), "--weight-version", weights.tag]
    # Ids come and go: no tokenizer, and no warm-up in its words. The hand-off samples a first token itself.
    return [*ours, "--skip-tokenizer-init", "--skip-server-warmup", *users, *served, *address]


def server_environment(worker: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The worker's variables without its credentials, and the configured ones."""
    kept = {name: value for name, value in worker.items() if not SECRET.match(name)}
    # It would report log-probabilities of logits that are not divided by the temperature.
    kept.pop("SGLANG_RETURN_ORIGINAL_LOGPROB", None)
    return {**kept, **extra}


def sweep_shared_memory(folder: Path) -> None:
    """Remove the load files that no live process maps, as SGLang's do."""
    files = {str(path): path for path in folder.glob(LOADS)}
    if not files:
        return
    used = _used(set(files))
    for name, path in files.items():
        if name not in used:
            with suppress(OSError):
                path.unlink()
                log.info("removed %s, which a dead server left", path)


def _used(names: set[str]) -> set[str]:
    """Those of the files that a process maps. Processes of others that we may not read count as users of none."""
    used: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps = (process / "maps").read_text()
        except OSError:
            continue
        used.update(name for name in names if name in maps)
    return used
