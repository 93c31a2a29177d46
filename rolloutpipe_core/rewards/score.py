"""What a verifier is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rolloutpipe_core.domain import Prompt


@dataclass(frozen=True, slots=True)
class Score:
    """One response's reward."""

    value: float  # in [0, 1]
    reason: str | None = None  # why it is what it is, for people
    judged: bool = True  # False: no verdict was reached (it raised, hung, took the memory, returned no score)


Verifier = Callable[[Prompt, str], Score]
"""`verifier(prompt, response)`: pure, and free to be slow, to raise or to take memory: it runs in a worker process."""
