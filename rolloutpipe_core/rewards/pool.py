"""Scores responses in worker processes, each response under a hard deadline and a memory limit.

    score(prompt, K responses) ──one slice a worker──> thread ──one batch──> worker process
                                                         │ <── started, scored ── for each response
                                                         └── over its deadline: kill the worker, go on with a new one

What a response causes scores 0 with a reason: a verifier that raises, that returns no score, that takes longer
than `deadline_s`, or that kills its worker or runs out of memory each time it is tried. What it does not cause (a
worker that cannot start, or died before it began) is retried, then raised as VerifierFailure.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TypeVar

from rolloutpipe_core.config.models import RewardConfig
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import VerifierFailure
from rolloutpipe_core.rewards.process import OverDeadline, WorkerLost, WorkerProcess
from rolloutpipe_core.rewards.score import Score

T = TypeVar("T")


@dataclass(slots=True)
class _Batch:
    """Some of a group's responses, on their way through one worker after another."""

    prompt: Prompt
    responses: Sequence[str]
    scores: list[Score] = field(default_factory=list)
    begun: bool = False  # a worker has begun on the next response
    deaths: int = 0  # workers that ended in the midst of the next response
    failures: int = 0  # workers that ended before they began on it

    @property
    def rest(self) -> Sequence[str]:
        return self.responses[len(self.scores) :]

    def add(self, score: Score) -> None:
        self.scores.append(score)
        self.begun, self.deaths, self.failures = False, 0, 0


class VerifierPool:
    """Use as `async with VerifierPool(config) as pool`, from one asyncio loop.

    A blocking thread drives each worker, so that a decode loop that holds the asyncio loop up cannot make a
    response look late.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(config.workers, thread_name_prefix="verifier")
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._lock = threading.Lock()
        self._workers: set[WorkerProcess] = set()
        self._closed = False

    async def __aenter__(self) -> VerifierPool:
        """Start the workers. Raises BadInput when the verifier cannot be loaded, VerifierFailure when none starts."""
        try:
            await asyncio.gather(*(self._in_thread(self._warm_up) for _ in range(self._config.workers)))
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers; calls in flight raise VerifierFailure. May be called again."""
        with self._lock:
            self._closed = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()
        self._threads.shutdown()
        for worker in workers:
            worker.close()

    async def score(self, prompt: Prompt, responses: Sequence[str]) -> list[Score]:
        """One score a response, in their order; one round trip to each worker. Raises VerifierFailure."""
        slices = _even_slices(responses, self._config.workers)
        parts = await asyncio.gather(*(self._in_thread(self._score, _Batch(prompt, part)) for part in slices))
        return [score for part in parts for score in part]

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _warm_up(self) -> None:
        self._idle.put(self._start())

    def _score(self, batch: _Batch) -> list[Score]:
        while batch.rest:
            worker = self._take()
            try:
                self._serve(worker, batch)
            except OverDeadline:
                self._discard(worker)
                batch.add(Score(0.0, f"over the deadline of {self._config.deadline_s:g} s", judged=False))
            except WorkerLost as lost:
                self._discard(worker)
                self._attribute(lost, batch)
            else:
                self._idle.put(worker)
        return batch.scores

    def _serve(self, worker: WorkerProcess, batch: _Batch) -> None:
        worker.submit(batch.prompt, batch.rest)
        while batch.rest:
            worker.await_start()
            batch.begun = True
            batch.add(worker.await_score())

    def _attribute(self, lost: WorkerLost, batch: _Batch) -> None:
        """The response's doing, or ours? A worker lost in its midst may be either, so it gets further tries."""
        retries = self._config.infrastructure_retries
        if self._closed:
            raise VerifierFailure("the verifier's pool was closed")
        if not batch.begun:
            batch.failures += 1
            if batch.failures > retries:
                raise _failure(f"lost {batch.failures} workers before they began", lost)
            return
        batch.begun = False
        batch.deaths += 1
        if batch.deaths > retries:
            batch.add(Score(0.0, f"its worker ended {batch.deaths} times: {lost}", judged=False))

    def _take(self) -> WorkerProcess:
        try:
            return self._idle.get_nowait()
        except Empty:
            return self._start()

    def _start(self) -> WorkerProcess:
        """A new worker, its verifier loaded."""
        tries = 1 + self._config.infrastructure_retries
        while True:
            tries -= 1
            try:
                return self._try_to_start()
            except WorkerLost as lost:
                if tries == 0:
                    raise _failure("cannot start a worker", lost) from None

    def _try_to_start(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise VerifierFailure("the verifier's pool was closed")
            worker = WorkerProcess(self._config)
            self._workers.add(worker)
        try:
            worker.await_ready()
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: WorkerProcess) -> None:
        worker.close()
        with self._lock:
            self._workers.discard(worker)


def _failure(what: str, lost: WorkerLost) -> VerifierFailure:
    return VerifierFailure(
        f"the verifier's pool {what}", given=str(lost), remedy="see the log; raise rewards.memory_mb if it is short"
    )


def _even_slices(items: Sequence[str], count: int) -> list[Sequence[str]]:
    """At most `count` contiguous slices, none empty, whose lengths differ by at most one."""
    count = min(count, len(items))
    bounds = [len(items) * place // count for place in range(count + 1)] if count else []
    return [items[start:end] for start, end in pairwise(bounds)]
