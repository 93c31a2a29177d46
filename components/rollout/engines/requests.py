"""What is asked of the `torch` engine and how far it is: a call's K samples, and the engine's counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason
from rolloutpipe_core.errors import RolloutPipeError

from .slots import PrefilledPrompt


@dataclass(eq=False, slots=True)
class SampleState:
    """One response as it grows."""

    seed: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass(eq=False, slots=True)
class Request:
    """K samples of one prompt. `on_end` gets the completions, in the order of the seeds, or the failure."""

    prompt_ids: Sequence[int]
    sampling: SamplingConfig
    stop_ids: frozenset[int]
    samples: list[SampleState]
    priority: int
    on_end: Callable[[list[Completion] | RolloutPipeError], None]
    started: int = 0  # samples that have had a slot
    prompt: PrefilledPrompt | None = None  # from the first start to the last

    @property
    def unfinished(self) -> int:
        return sum(sample.finish_reason is None for sample in self.samples)


@dataclass(slots=True)
class EngineStatistics:
    """Counts since the engine was made."""

    steps: int = 0  # decode forwards
    slot_steps: int = 0  # live slots, summed over the steps: slot_steps / (steps * slots) is the occupancy
    prefills: int = 0  # prompts prefilled
    prompt_tokens: int = 0  # of those prompts
    tokens: int = 0  # sampled
    samples_ended: int = 0  # finished, cancelled or failed
