"""Which calls a model can take: refused before anything is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.errors import BadInput


class Limits(Protocol):
    """What a model can take."""

    @property
    def vocabulary(self) -> int:
        """Rows of its output: ids are 0 to vocabulary - 1."""

    @property
    def max_positions(self) -> int | None:
        """Longest sequence in tokens; None: no limit."""


def check_call(limits: Limits, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int]) -> None:
    """Raise BadInput for what the model or the noise cannot take."""
    if len(prompt_ids) == 0 or len(seeds) == 0:
        raise BadInput(
            "nothing to sample",
            given=f"{len(prompt_ids)} prompt ids, {len(seeds)} seeds",
            expected="at least one of each",
        )
    for what, ids in (("prompt", prompt_ids), ("stop", sampling.stop_ids)):
        outside = [int(token) for token in ids if not 0 <= token < limits.vocabulary]
        if outside:
            raise BadInput(
                f"a {what} id is not in the model's vocabulary",
                given=str(outside[0]),
                expected=f"0 to {limits.vocabulary - 1}",
                remedy="use the tokenizer of this model",
            )
    positions = len(prompt_ids) + sampling.max_new_tokens
    if limits.max_positions is not None and positions > limits.max_positions:
        raise BadInput(
            "prompt and response may get longer than the model's positions",
            given=f"{len(prompt_ids)} prompt tokens + sampling.max_new_tokens {sampling.max_new_tokens}",
            expected=f"at most {limits.max_positions}",
            remedy="lower sampling.max_new_tokens or data.max_prompt_tokens",
        )
    for seed in seeds:
        if not 0 <= seed < 1 << 128:
            raise BadInput("a seed is not a 128-bit key", given=str(seed), expected="that of noise.sample_seed")
