"""The pointer walk's verifier: the last `#X` of the response names the root."""

from __future__ import annotations

import re

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score

ANSWER = re.compile(r"#([A-Z])")


def verify(prompt: Prompt, response: str) -> Score:
    """1 when the last `#X` is the prompt's answer."""
    answers = ANSWER.findall(response)
    if not answers:
        return Score(0.0, "no answer (#X) in the response")
    if answers[-1] != prompt.answer:
        return Score(0.0, f"answered {answers[-1]}, not {prompt.answer}")
    return Score(1.0)
