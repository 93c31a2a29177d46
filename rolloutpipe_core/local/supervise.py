"""Runs the services of one run as child processes, and ends all of them when one fails or the caller leaves.

    with Supervisor(children, environment) as services:
        while services.running():                           # all exit 0: the run is finished
            services.raise_failure()                        # one exits otherwise: its last words, its exit code
            time.sleep(0.2)

Each child leads a process group of its own: Ctrl-C in the terminal reaches the caller alone, which then asks the
children to stop (SIGTERM), waits, and kills what is left of their groups. Should the caller be killed itself, the
kernel kills the children.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.local import leash

STOP_S = 20.0
TAIL_BYTES = 2**20
REASON = re.compile(r" ERROR (\S+ \S+ ends: .*)")  # as a service logs it (service.py), behind the time


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run; its output is appended to `log`."""

    name: str  # "trainer", "rollout-0"
    arguments: Sequence[str]  # the program by its path, then its arguments
    log: Path


class ServiceFailed(RolloutPipeError):
    """A child exited with another status than 0; `exit_code` is its own (128 + n when signal n ended it)."""

    def __init__(self, name: str, exit_code: int, last_words: str, log: Path) -> None:
        how = f"was ended by {signal.Signals(exit_code - 128).name}" if exit_code > 128 else f"exited with {exit_code}"
        super().__init__(f"{name} {how}", given=last_words, remedy=f"see {log}")
        self.exit_code = exit_code


class Supervisor:
    """Starts the children on entry, which must be in the main thread (see leash.py); has ended them all on exit."""

    def __init__(self, children: Iterable[Child], environment: Mapping[str, str], stop_s: float = STOP_S) -> None:
        """`stop_s`: what children get to stop before they are killed."""
        self._children = list(children)
        self._environment = environment
        self._stop_s = stop_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log_starts: dict[str, int] = {}

    def __enter__(self) -> Supervisor:
        try:
            for child in self._children:
                self._start(child)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def running(self) -> list[str]:
        """Names of the children that still run."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def raise_failure(self) -> None:
        """Raise ServiceFailed for the first child that exited with another status than 0."""
        for child in self._children:
            status = self._processes[child.name].poll()
            if status:
                exit_code = status if status > 0 else 128 - status
                raise ServiceFailed(child.name, exit_code, self._last_words(child), child.log)

    def stop(self) -> None:
        """SIGTERM to every child, SIGKILL to the groups of those that do not follow in time. Repeatable."""
        try:
            for process in self._processes.values():
                if process.poll() is None:
                    process.terminate()
            end = time.monotonic() + self._stop_s
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        finally:
            # Also after a second Ctrl-C. A group may outlive its leader: a verifier's worker, for one.
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._processes.clear()

    def _start(self, child: Child) -> None:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        with child.log.open("ab") as log:
            self._log_starts[child.name] = log.tell()
            self._processes[child.name] = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *child.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                process_group=0,
            )

    def _last_words(self, child: Child) -> str:
        """The reason that the service logged, else the last line; others may write to the log behind it."""
        with child.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_starts[child.name], size - TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        reasons = [found[1] for line in lines if (found := REASON.search(line))]
        return next((line for line in reversed(reasons or lines) if line), "nothing in its log")
