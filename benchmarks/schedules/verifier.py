"""Rewards for a model that knows nothing: half of its responses get one, so that every group has something to say.

A verifier as a user brings it: named in the configuration, loaded in the worker process.
"""

from __future__ import annotations

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score


def verify(prompt: Prompt, response: str) -> Score:
    """1 when the answer's letter is anywhere in the response."""
    return Score(1.0 if prompt.answer in response else 0.0)
