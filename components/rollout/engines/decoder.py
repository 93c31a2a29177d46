"""Continuous batching: which sample sits in which slot, one decode step at a time. No threads in here.

    submit ──> queue by (priority, arrival) ──free slot──> first token from the group's prefilled prompt
                                                              │
               ended <──stop id, max_new_tokens── slots 0..n-1, one token a step

A slot that a sample leaves is taken by the next waiting sample before the next step; when none waits, the
last live slot moves into it, so that live slots stay contiguous. The prompt of a group is prefilled once and
kept until its last sample has started.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan, WeightVersion
from rolloutpipe_core.errors import EngineFailure

from .policy import Policy
from .requests import EngineStatistics, Request, SampleState
from .sampling import SamplingRows, SlotNoise, choose
from .shapes import DeterministicShapes
from .slots import PrefilledPrompt, SlotCache

# Fast mode's windows are multiples of this many positions.
WINDOW_QUANTUM = 16
# Padded tokens of one fast prefill forward: bounds its memory, and the pause it makes in decoding.
PREFILL_TOKENS = 8192


class SlotDecoder:
    """Decodes requests under one weight version. Not thread-safe. After an exception it is to be thrown away."""

    def __init__(
        self,
        policy: Policy,
        version: WeightVersion,
        slots: int,
        statistics: EngineStatistics,
        shapes: DeterministicShapes | None = None,
    ) -> None:
        """`shapes` turn deterministic mode on; without them a forward is as small as it can be."""
        self._policy = policy
        self.version = version
        self._statistics = statistics
        self._shapes = shapes
        rows = shapes.rows(slots) if shapes else slots
        self._cache = SlotCache(rows, shapes.window_quantum if shapes else WINDOW_QUANTUM)
        self._noise = SlotNoise(slots, policy.vocabulary)
        self._sampling = SamplingRows(slots)
        self._tokens = np.zeros(rows, dtype=np.int64)  # the last sampled, to be fed next
        self._positions = np.zeros(rows, dtype=np.int64)  # where that token goes
        self._owners: list[tuple[Request, SampleState] | None] = [None] * slots
        self._live = 0  # slots in use are among the first so many
        self._queue: list[tuple[int, int, Request]] = []
        self._arrivals = itertools.count()
        self._requests: set[Request] = set()

    @property
    def requests(self) -> frozenset[Request]:
        """Those that have not ended."""
        return frozenset(self._requests)

    def submit(self, request: Request) -> None:
        self._requests.add(request)
        heapq.heappush(self._queue, (request.priority, next(self._arrivals), request))

    def cancel(self, request: Request) -> None:
        """Forget a request: its slots are free again and `on_end` is not called. No-op when it has ended."""
        if request not in self._requests:
            return
        self._requests.discard(request)
        self._statistics.samples_ended += request.unfinished
        self._queue = [entry for entry in self._queue if entry[2] is not request]
        heapq.heapify(self._queue)
        self._owners = [None if owner and owner[0] is request else owner for owner in self._owners]

    @torch.inference_mode()
    def step(self) -> None:
        """Give free slots to waiting samples, then decode one token in every live slot."""
        self._admit()
        self._compact()
        if self._live:
            self._decode()

    def _admit(self) -> None:
        """Start waiting samples until no slot is free or none waits (some end with their first token)."""
        while self._queue:
            free = [slot for slot, owner in enumerate(self._owners) if owner is None]
            if not free:
                return
            starting = self._take_waiting(len(free))
            self._prefill({request for request, _ in starting if request.prompt is None})
            self._start(free[: len(starting)], starting)

    def _take_waiting(self, count: int) -> list[tuple[Request, SampleState]]:
        """The next samples, at most `count`, by (priority, arrival)."""
        taken: list[tuple[Request, SampleState]] = []
        while self._queue and len(taken) < count:
            request = self._queue[0][2]
            first = request.started
            request.started = min(len(request.samples), first + count - len(taken))
            taken += [(request, sample) for sample in request.samples[first : request.started]]
            if request.started == len(request.samples):
                heapq.heappop(self._queue)
        return taken

    def _prefill(self, requests: Iterable[Request]) -> None:
        waiting = sorted(requests, key=lambda request: len(request.prompt_ids))
        while waiting:
            batch, length = self._prefill_batch(waiting)
            least_rows = self._shapes.least_rows if self._shapes else 1
            prompts = self._policy.prefill([request.prompt_ids for request in batch], length, least_rows)
            for request, prompt in zip(batch, prompts, strict=True):
                request.prompt = prompt
            self._statistics.prefills += len(batch)
            self._statistics.prompt_tokens += sum(prompt.length for prompt in prompts)
            waiting = waiting[len(batch) :]

    def _prefill_batch(self, waiting: Sequence[Request]) -> tuple[Sequence[Request], int]:
        """The next requests (shortest first) for one forward, and its padded length.

        Deterministic: only prompts whose own lengths round up to the same one.
        """
        if self._shapes:
            length = self._shapes.prompt_length(len(waiting[0].prompt_ids))
            batch = waiting[: self._shapes.prefill_prompts(length)]
            return [request for request in batch if len(request.prompt_ids) <= length], length
        count = 1
        while count < len(waiting) and (count + 1) * len(waiting[count].prompt_ids) <= PREFILL_TOKENS:
            count += 1
        return waiting[:count], len(waiting[count - 1].prompt_ids)

    def _start(self, slots: Sequence[int], starting: Sequence[tuple[Request, SampleState]]) -> None:
        """Sample the first token of each from its prompt's logits; those that go on keep their slot."""
        prompts = [_prefilled(request) for request, _ in starting]
        for slot, prompt, owner in zip(slots, prompts, starting, strict=True):
            request, sample = self._owners[slot] = owner
            self._noise.start(slot, sample.seed)
            self._sampling.set(slot, request.sampling)
            self._positions[slot] = prompt.length - 1
        self._sample(np.asarray(slots), torch.stack([prompt.logits for prompt in prompts]))
        for slot, prompt in zip(slots, prompts, strict=True):
            if self._owners[slot] is not None:
                self._cache.put(slot, prompt)
        self._live = max(self._live, slots[-1] + 1)
        for request, _ in starting:
            if request.started == len(request.samples):
                request.prompt = None

    def _compact(self) -> None:
        """Move the last live slots into the gaps: a step runs over slots 0 .. live-1."""
        gaps = [slot for slot in range(self._live) if self._owners[slot] is None]
        self._live -= len(gaps)
        beyond = (slot for slot in range(self._live, self._live + len(gaps)) if self._owners[slot] is not None)
        for gap, slot in zip(gaps, beyond, strict=False):
            self._move(slot, gap)

    def _move(self, source: int, target: int) -> None:
        self._cache.move(source, target, int(self._positions[source]))
        self._noise.move(source, target)
        self._sampling.move(source, target)
        for values in (self._tokens, self._positions):
            values[target] = values[source]
        self._owners[target], self._owners[source] = self._owners[source], None

    def _decode(self) -> None:
        live = self._live
        # Rows beyond the live ones compute on what is left there; nobody reads them.
        rows = self._shapes.rows(live) if self._shapes else live
        self._positions[live:rows] = 0
        logits = self._policy.decode(
            self._cache, self._tokens[:rows], self._positions[:rows], int(self._positions[:live].max())
        )
        self._statistics.steps += 1
        self._statistics.slot_steps += live
        self._sample(np.arange(live), logits[:live])

    def _sample(self, slots: NDArray[np.int64], logits: Tensor) -> None:
        """Append one token to the sample in each of these slots; those that end leave their slot."""
        logprobs = self._sampling.logprobs(logits, slots)
        ids, chosen = choose(logprobs, self._noise.take(slots), self._sampling.forbidden(logprobs, slots))
        if not chosen.isfinite().all():
            raise EngineFailure("the model's logits are not finite", given=f"weights {self.version}")
        tokens = ids.tolist()
        self._tokens[slots] = tokens
        self._positions[slots] += 1
        self._statistics.tokens += len(tokens)
        for slot, token, logprob in zip(slots.tolist(), tokens, chosen.tolist(), strict=True):
            owner = self._owners[slot]
            assert owner is not None, "live slots are contiguous"
            request, sample = owner
            sample.ids.append(token)
            sample.logprobs.append(logprob)
            if token in request.stop_ids:
                sample.finish_reason = FinishReason.STOP
            elif len(sample.ids) == request.sampling.max_new_tokens:
                sample.finish_reason = FinishReason.LENGTH
            else:
                continue
            self._owners[slot] = None
            self._end_sample(request)

    def _end_sample(self, request: Request) -> None:
        self._statistics.samples_ended += 1
        if not request.unfinished:
            self._requests.discard(request)
            request.on_end([self._completion(sample) for sample in request.samples])

    def _completion(self, sample: SampleState) -> Completion:
        assert sample.finish_reason is not None
        return Completion(
            response_ids=np.asarray(sample.ids, dtype=np.int32),
            behavior_logprobs=np.asarray(sample.logprobs, dtype=np.float32),
            finish_reason=sample.finish_reason,
            spans=(VersionSpan(self.version, 0, len(sample.ids)),),
        )


def _prefilled(request: Request) -> PrefilledPrompt:
    assert request.prompt is not None, "a prompt is prefilled before its first sample starts and kept to its last"
    return request.prompt
