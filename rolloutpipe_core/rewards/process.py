"""One worker process, as the pool sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rolloutpipe_core.channel import Channel
from rolloutpipe_core.config.models import RewardConfig
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local import leash
from rolloutpipe_core.rewards.score import Score

ANSWER_LIMIT_S = 60.0
"""Longest wait for what costs a worker no verifier's time: its start, and a batch's way to it."""


class WorkerLost(Exception):
    """The worker ended, ran out of memory, or does not answer. The text says which."""


class OverDeadline(Exception):
    """The response took longer than it may."""


class WorkerProcess:
    """Started by `python -m`, so that nothing of this process's threads or memory is in it.

    It has a process group of its own, so that killing it also ends what its verifier started, and dies with the
    *thread* that starts it here. Talking to it raises WorkerLost.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        worker = ["-m", "rolloutpipe_core.rewards.worker", config.verifier, str(config.memory_mb)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable, *worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                # A thread pool's stacks would count against the worker's memory.
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                process_group=0,
            )
        except OSError as error:
            raise WorkerLost(f"cannot start a worker: {error}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())

    def await_ready(self) -> None:
        """Wait for the loaded verifier. Raises BadInput when it cannot be loaded."""
        answer = self._receive(ANSWER_LIMIT_S)
        if answer["event"] == "refused":
            raise BadInput(
                "cannot load the verifier",
                given=f"{self._config.verifier} in a worker of {self._config.memory_mb} MiB: {answer['reason']}",
                expected="pointer_walk, exact, math or module:function, the module on PYTHONPATH or in this folder",
                remedy="set rewards.verifier, or raise rewards.memory_mb",
            )

    def submit(self, prompt: Prompt, responses: Sequence[str]) -> None:
        """Send a batch; then take a `await_start` and a `await_score` for each response, in order."""
        content = {
            "id": prompt.id,
            "answer": prompt.answer,
            "text": prompt.text,
            "messages": None if prompt.messages is None else [dict(message) for message in prompt.messages],
            "metadata": dict(prompt.metadata),
        }
        try:
            self._channel.send({"prompt": content, "responses": list(responses)}, ANSWER_LIMIT_S)
        except BrokenPipeError:
            raise self._lost() from None
        except TimeoutError:
            raise WorkerLost(f"the worker took no batch within {ANSWER_LIMIT_S:g} s") from None

    def await_start(self) -> None:
        """Wait until the worker is about to call the verifier on the next response."""
        self._receive(ANSWER_LIMIT_S)

    def await_score(self) -> Score:
        """Wait for the score of the response that was started. Raises OverDeadline."""
        try:
            answer = self._channel.receive(self._config.deadline_s)
        except TimeoutError:
            raise OverDeadline from None
        except EOFError:
            raise self._lost() from None
        if answer["event"] == "out_of_memory":
            raise WorkerLost(f"out of memory ({self._config.memory_mb} MiB)")
        return Score(answer["value"], answer["reason"], answer["judged"])

    def kill(self) -> None:
        """End it and all it started; returns when it is gone. From any thread, any number of times."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Kill it and close its pipes; only while no thread waits for an answer."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            return self._channel.receive(limit_s)
        except TimeoutError:
            raise WorkerLost(f"the worker gave no sign within {limit_s:g} s") from None
        except EOFError:
            raise self._lost() from None

    def _lost(self) -> WorkerLost:
        """Why it ended: with its pipes closed it has, or is of no use any more."""
        self.kill()
        status = self._process.returncode
        return WorkerLost(f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}")
