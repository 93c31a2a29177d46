"""An update's objective, whichever backend makes the log-probabilities: what it holds, its loss, what it measures.

    begin_update ─> count(groups) ─> loss(micro-batch) ─> ... ─> (packed ─> combine) ─> denominator, result
                                                                  several ranks, at the step

Everything is a sum until the step, so that groups, micro-batches and ranks may come in any order and any portions.
Every rank counts all groups; what it sums and measures is of its own samples, until `combine`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rolloutpipe_core.config.models import LossConfig
from rolloutpipe_core.domain import Group, Sample
from rolloutpipe_core.errors import BadInput

from .batch import Batch
from .losses.aggregation import denominator
from .losses.kl import k3
from .losses.objective import TokenLoss, token_loss
from .metrics import MetricSums
from .trainer import UpdateResult


class Scores(Protocol):
    """A policy at a batch's N trained tokens."""

    @property
    def logprobs(self) -> Tensor: ...  # float [N], nats, with a gradient

    @property
    def entropy(self) -> Tensor: ...  # float [N], nats, with a gradient where the loss has an entropy term


@dataclass(slots=True)
class UpdateTotals:
    """What the update in progress holds."""

    update: int = 0
    groups: int = 0
    samples: int = 0
    tokens: int = 0  # trained ones
    loss: float = 0.0  # sum of weight * loss over the tokens


class Objective:
    """One trainer's objective, update after update."""

    def __init__(self, loss: LossConfig, max_new_tokens: int) -> None:
        self._loss, self._max_new_tokens = loss, max_new_tokens
        self.begin_update(0)

    def begin_update(self, update: int) -> None:
        self.totals = UpdateTotals(update)
        self.metrics = MetricSums()

    def count(self, groups: Sequence[Group]) -> list[Sample]:
        """Count groups as the update's; returns their samples that have a trained token."""
        samples = [sample for group in groups for sample in group.samples]
        trained = [sample for sample in samples if sample.loss_mask.any()]
        self.totals.groups += len(groups)
        self.totals.samples += len(samples)
        self.totals.tokens += sum(int(sample.loss_mask.sum()) for sample in trained)
        return trained

    def loss(
        self, batch: Batch, scores: Scores, round_logprobs: Tensor | None, reference_logprobs: Tensor | None
    ) -> Tensor:
        """The micro-batch's part of the update's sum: a scalar to be differentiated. Measures, too.

        `round_logprobs`: [N], the trainer's own under the round's weights; None when only moved weights are at hand.
        """
        old = batch.engine_logprobs if self._loss.old_logprobs == "engine" else round_logprobs
        assert old is not None  # `recompute` keeps the round's weights
        tokens = token_loss(
            self._loss,
            logprobs=scores.logprobs,
            old_logprobs=old,
            engine_logprobs=batch.engine_logprobs,
            advantages=batch.advantages,
            entropy=scores.entropy,
            rows=batch.rows,
            reference_logprobs=reference_logprobs,
        )
        total = (batch.weights * tokens.loss).sum()
        self.totals.loss += total.item()
        self._measure(tokens, scores.entropy)
        if round_logprobs is not None:
            self._measure_mismatch(round_logprobs - batch.engine_logprobs)
        return total

    @property
    def denominator(self) -> int:
        """What the update's sums are divided by. Raises BadInput for an update without a group."""
        totals = self.totals
        if totals.groups == 0:
            raise BadInput("a step without a group", given="0 groups", expected="accumulate before step")
        return denominator(self._loss.aggregation, totals.samples, totals.tokens, self._max_new_tokens)

    def packed(self) -> Tensor:
        """This rank's loss and measures, float64 [n] on the CPU; n is the same for every rank and configuration."""
        return torch.tensor([self.totals.loss, *self.metrics.packed()], dtype=torch.float64)

    def combine(self, rows: Tensor) -> None:
        """Make the `packed` of all data-parallel ranks, [ranks, n], the update's. Once, before `result`.

        The order of the rows is that of the sums: the same on every rank gives every rank the same bits.
        """
        losses, *measures = rows.to(torch.float64).T
        self.totals.loss = sum(losses.tolist())
        self.metrics = MetricSums.combined(torch.stack(measures, dim=1).tolist())

    def result(self, gradient_norm: float, learning_rate: float) -> UpdateResult:
        """What the step did; it was skipped when the norm is not finite."""
        totals = self.totals
        metrics = self.metrics.reduced() | {
            "loss": totals.loss / self.denominator,
            "grad_norm": gradient_norm,
            "learning_rate": learning_rate,
        }
        return UpdateResult(
            update=totals.update,
            groups=totals.groups,
            samples=totals.samples,
            tokens=totals.tokens,
            skipped=not math.isfinite(gradient_norm),
            # A skipped update may hold nan or inf, which JSON cannot say.
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )

    def _measure(self, tokens: TokenLoss, entropy: Tensor) -> None:
        measured = {"ratio_mean": tokens.ratio, "clip_fraction": tokens.clipped, "entropy": entropy}
        if tokens.kl is not None:
            measured["kl"] = tokens.kl
        self.metrics.add({name: value.detach().sum().item() for name, value in measured.items()}, len(entropy))

    def _measure_mismatch(self, difference: Tensor) -> None:
        """`difference` is trainer less engine, both under the round's weights."""
        absolute = difference.abs()
        sums = {"mismatch_kl": k3(difference).sum().item(), "mismatch_mean": absolute.sum().item()}
        self.metrics.add(sums, len(difference))
        self.metrics.add_maximum("mismatch_max", absolute.max().item())
