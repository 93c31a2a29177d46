"""The seam between the trainer service and a training backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rolloutpipe_core.domain import Group


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one optimizer step did."""

    update: int  # place in the round, from 0
    groups: int
    samples: int
    tokens: int  # trained tokens: the sum of the loss masks
    skipped: bool  # True: the gradient was not finite, nothing was stepped
    metrics: dict[str, float] = field(default_factory=dict)
    """loss, grad_norm, learning_rate, clip_fraction, kl, entropy, ratio_mean, mismatch_kl, mismatch_max,
    mismatch_mean: nats a token unless the name says otherwise. `kl` needs a reference, `mismatch_*` the round's
    weights, and what is not finite is left out (docs/losses.md)."""


class Trainer(Protocol):
    """Holds the policy, accumulates unnormalised gradient sums, divides once at the step.

    Several ranks are one trainer: the service drives rank 0's (ranks/), which has every rank do the same.
    """

    def begin_round(self) -> None:
        """The weights are now those of the round's version: `recompute` freezes its copy here."""

    def begin_update(self, update: int) -> None:
        """Forget what was accumulated."""

    def accumulate(self, groups: Sequence[Group]) -> None:
        """Forward and backward of these groups, in micro-batches of the token budget; no step."""

    def step(self) -> UpdateResult:
        """Divide by the denominator of all that was accumulated, clip, step. Works on any number of groups >= 1."""

    def export_weights(self, directory: Path) -> None:
        """Write HF safetensors, config and tokenizer files that transformers loads."""

    def save(self, directory: Path) -> None:
        """Write all that a bit-exact continuation needs (safetensors and JSON, no pickle)."""


class Backend(Trainer, Protocol):
    """One rank's own trainer.

    With several ranks each method is called on all of them, in the same order and with the same groups; a rank takes
    its share by itself (shares.py). `export_weights` and `save` write on rank 0 alone.
    """

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
