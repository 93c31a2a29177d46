"""The seam between the rollout service and an inference engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, WeightVersion


class Engine(Protocol):
    """Samples responses under one loaded weight version. Used from one asyncio loop."""

    async def load(self, version: WeightVersion, directory: Path) -> None:
        """Serve this version from now on. `directory` holds verified HF files; nothing is in flight.

        Raises EngineFailure when the weights cannot be served.
        """

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seeds: Sequence[int], priority: int
    ) -> list[Completion]:
        """Sample len(seeds) responses to one prompt, one a seed, in the order of the seeds.

        Requests of a lower `priority` (the group's submission order) take free slots first. Cancelling the
        call frees what it holds. Raises EngineFailure when a response cannot be finished.
        """

    def spare_slots(self) -> int:
        """Sample slots that would idle now: free ones less requests already waiting, never below 0."""

    async def close(self) -> None:
        """Stop; calls in flight raise EngineFailure."""
