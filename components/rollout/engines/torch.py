"""Engine `torch`: continuous batching over a Hugging Face model, in this process.

    asyncio loop                          decode thread
      generate, load, close ──commands──>   load weights, queue requests, step while any is unfinished
      futures <──call_soon_threadsafe────   completions or failures

One thread owns model, caches and queue. It waits for commands while nothing is in flight; between two steps
it takes those that have come. A step that raises fails what is in flight and leaves an empty decoder; a load
that fails leaves none, and calls are refused until a load succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rolloutpipe_core.config.models import EngineConfig, ModelConfig, SamplingConfig
from rolloutpipe_core.domain import Completion, WeightVersion
from rolloutpipe_core.errors import DeadlineExceeded, EngineFailure, RolloutPipeError

from .calls import check_call
from .decoder import SlotDecoder
from .determinism import checked_shapes
from .policy import Policy
from .requests import EngineStatistics, Request, SampleState
from .served import check_served
from .shapes import DeterministicShapes

T = TypeVar("T")
Result = Callable[[T | RolloutPipeError], None]

# Longest wait for the decode thread's last step, in seconds.
CLOSE_DEADLINE_S = 60.0

log = logging.getLogger(__name__)


class TorchEngine:
    """Implements `Engine`. It takes torch's number of threads as the process has set it."""

    def __init__(self, engine: EngineConfig, model: ModelConfig, deterministic: bool = False) -> None:
        """`deterministic`: a sample's bits do not depend on what else is in the batch; checked at the first load."""
        self.statistics = EngineStatistics()
        self._engine = engine
        self._model = model
        self._deterministic = deterministic
        self._policy: Policy | None = None
        self._shapes: DeterministicShapes | None = None  # None in fast mode
        self._decoder: SlotDecoder | None = None
        self._samples_asked = 0
        self._closing = False
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._posting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> WeightVersion | None:
        """The loaded version; None before the first load and after one that failed."""
        decoder = self._decoder
        return decoder.version if decoder else None

    async def load(self, version: WeightVersion, directory: Path) -> None:
        """See `Engine.load`. The first load builds the model, later ones copy weights into it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._post(lambda: self._load(version, directory, _resolver(future)))
        await future

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        """See `Engine.generate`. Raises BadInput for a call that the model cannot take."""
        policy = self._policy
        if policy is None:
            raise _no_weights()
        check_call(policy, prompt_ids, sampling, seeds)
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        request = Request(
            prompt_ids=[int(token) for token in prompt_ids],
            sampling=sampling,
            stop_ids=policy.eos_ids | frozenset(sampling.stop_ids),
            samples=[SampleState(seed) for seed in seeds],
            priority=priority,
            on_end=_resolver(future),
        )
        self._post(lambda: self._submit(request))
        self._samples_asked += len(seeds)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineFailure):  # closed: nothing is in flight any more
                self._post(lambda: self._cancel(request))
            raise

    def spare_slots(self) -> int:
        """See `Engine.spare_slots`."""
        return max(0, self._engine.slots - (self._samples_asked - self.statistics.samples_ended))

    async def close(self) -> None:
        """See `Engine.close`. Returns when the decode thread has ended: after its present step at the latest."""
        with self._posting:
            self._closing = True
            self._commands.put(lambda: None)  # wakes an idle thread
        await asyncio.to_thread(self._thread.join, CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise DeadlineExceeded("the decode thread did not end", expected=f"within {CLOSE_DEADLINE_S:g} s")

    def _post(self, command: Callable[[], None]) -> None:
        """Have the decode thread run a command; refused once it ends, so that no call waits for ever."""
        with self._posting:
            if self._closing:
                raise _closed()
            self._commands.put(command)

    # What follows runs in the decode thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_commands()
                self._step()
        finally:
            with self._posting:
                self._closing = True  # also when a defect ends the thread
            self._discard(_closed())
            self._decoder = None
            while not self._commands.empty():
                self._commands.get()()

    def _take_commands(self) -> None:
        """Run the commands that have come; wait for one while nothing is in flight."""
        while not self._closing:
            idle = self._decoder is None or not self._decoder.requests
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return
            command()

    def _step(self) -> None:
        if self._decoder is None:
            return
        try:
            self._decoder.step()
        except Exception as error:
            log.exception("decoding failed")
            version = self._decoder.version
            self._discard(_failure("decoding failed", error))
            self._decoder = self._new_decoder(version)

    def _submit(self, request: Request) -> None:
        if self._decoder is None:
            self._end(request, _closed() if self._closing else _no_weights())
        else:
            self._decoder.submit(request)

    def _cancel(self, request: Request) -> None:
        if self._decoder is not None:
            self._decoder.cancel(request)

    def _load(self, version: WeightVersion, directory: Path, result: Result[None]) -> None:
        in_flight = len(self._decoder.requests) if self._decoder else 0
        if self._closing or in_flight:
            result(
                _closed()
                if self._closing
                else EngineFailure("weights cannot change now", given=f"{in_flight} calls in flight")
            )
            return
        self._decoder = None
        try:
            self._load_policy(directory)
            self._decoder = self._new_decoder(version)
        except Exception as error:
            result(_failure(f"the weights in {directory} cannot be loaded", error))
        else:
            result(None)

    def _load_policy(self, directory: Path) -> None:
        if self._policy is not None:
            self._policy.load_weights(directory)
            return
        policy = Policy.from_directory(directory, self._model)
        check_served(policy)
        if self._deterministic:
            self._shapes = checked_shapes(policy, self._engine.slots)
        self._policy = policy

    def _new_decoder(self, version: WeightVersion) -> SlotDecoder:
        if self._policy is None:
            raise _no_weights()
        return SlotDecoder(self._policy, version, self._engine.slots, self.statistics, self._shapes)

    def _discard(self, failure: EngineFailure) -> None:
        """Fail all that is in flight."""
        for request in self._decoder.requests if self._decoder else ():
            self._end(request, failure)

    def _end(self, request: Request, failure: EngineFailure) -> None:
        self.statistics.samples_ended += request.unfinished
        # Every caller gets an exception of its own: raising one adds a traceback to it.
        request.on_end(dataclasses.replace(failure))


def _closed() -> EngineFailure:
    return EngineFailure("the engine is closed")


def _no_weights() -> EngineFailure:
    return EngineFailure("the engine holds no weights", remedy="load a version; the last load may have failed")


def _failure(what: str, error: Exception) -> EngineFailure:
    if isinstance(error, EngineFailure):
        return error
    return EngineFailure(what, given=f"{type(error).__name__}: {error}")


def _resolver(future: asyncio.Future[T]) -> Result[T]:
    """A callback, for another thread, that ends the future with a result or an exception."""
    loop = future.get_loop()

    def end(result: T | RolloutPipeError) -> None:
        if future.done():
            return
        if isinstance(result, RolloutPipeError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def resolve(result: T | RolloutPipeError) -> None:
        try:
            loop.call_soon_threadsafe(end, result)
        except RuntimeError:
            log.debug("the event loop is closed: nobody waits for this result")

    return resolve
