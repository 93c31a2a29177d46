"""Exact match, blanks around it left aside."""

from __future__ import annotations

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score


def verify(prompt: Prompt, response: str) -> Score:
    """1 when the stripped response is the stripped answer."""
    if response.strip() == prompt.answer.strip():
        return Score(1.0)
    return Score(0.0, "the response is not the answer")
