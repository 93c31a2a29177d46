"""How a policy lies on the devices, and what that means for a backend: whole on one rank, or sharded (fsdp.py)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel

from ..microbatch import plan_microbatches
from ..objective import Objective
from .policy import Policy, load_model


class Layout(Protocol):
    """All ranks call every method in the same order."""

    writes: bool
    """Whether exports and checkpoints are written here."""

    @property
    def device(self) -> torch.device:
        """Where batches belong."""

    def trained(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        """The policy to train; forward and backward are in `dtype`."""

    def frozen(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        """One for log-probabilities alone."""

    def copier(self, directory: Path, dtype: torch.dtype, temperature: float, /) -> Callable[[Policy], Policy]:
        """A function that makes a frozen copy of the trained policy, loaded from this folder, as it is by then.

        A copy holds until the next one.
        """

    def plan(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """This rank's micro-batches; an empty one is to be run on any sample, to add nothing."""

    def combine(self, objective: Objective) -> None:
        """Make the update's sums those of all ranks."""

    def model(self, policy: Policy, dtype: torch.dtype, /) -> PreTrainedModel | None:
        """The whole model in `dtype`, to be exported; None where nothing is written."""


class OneDevice:
    """Implements `Layout` for one rank."""

    writes = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def trained(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        return Policy(load_model(directory, dtype, self.device), temperature)

    def frozen(self, directory: Path, dtype: torch.dtype, temperature: float) -> Policy:
        return self.trained(directory, dtype, temperature)

    def copier(self, _directory: Path, _dtype: torch.dtype, _temperature: float) -> Callable[[Policy], Policy]:
        return copy.deepcopy

    def plan(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        return plan_microbatches(lengths, budget)

    def combine(self, objective: Objective) -> None:
        pass

    def model(self, policy: Policy, _dtype: torch.dtype) -> PreTrainedModel:
        return policy.model
