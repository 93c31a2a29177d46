"""What is asked of the engine and how far it is: a call's K samples, and the engine's counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason
from rolloutpipe_core.errors import BadInput, RolloutPipeError

from .policy import Policy
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


def check_call(policy: Policy, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int]) -> None:
    """Raise BadInput for what the model, the noise or the caches cannot take."""
    if len(prompt_ids) == 0 or len(seeds) == 0:
        raise BadInput(
            "nothing to sample",
            given=f"{len(prompt_ids)} prompt ids, {len(seeds)} seeds",
            expected="at least one of each",
        )
    for what, ids in (("prompt", prompt_ids), ("stop", sampling.stop_ids)):
        outside = [int(token) for token in ids if not 0 <= token < policy.vocabulary]
        if outside:
            raise BadInput(
                f"a {what} id is not in the model's vocabulary",
                given=str(outside[0]),
                expected=f"0 to {policy.vocabulary - 1}",
                remedy="use the tokenizer of this model",
            )
    positions = len(prompt_ids) + sampling.max_new_tokens
    if policy.max_positions is not None and positions > policy.max_positions:
        raise BadInput(
            "prompt and response may get longer than the model's positions",
            given=f"{len(prompt_ids)} prompt tokens + sampling.max_new_tokens {sampling.max_new_tokens}",
            expected=f"at most {policy.max_positions}",
            remedy="lower sampling.max_new_tokens or data.max_prompt_tokens",
        )
    for seed in seeds:
        if not 0 <= seed < 1 << 128:
            raise BadInput("a seed is not a 128-bit key", given=str(seed), expected="that of noise.sample_seed")
