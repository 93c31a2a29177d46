"""The `torch` backend: a Hugging Face causal LM, trained whole in this process or sharded over several ranks.

    begin_round ─> begin_update ─> accumulate(groups) ... ─> step ─> (next update) ... ─> export_weights, save
                                        │                     │
        micro-batches of least padding; │                     └ sums / denominator, clip, AdamW on float32 masters
        each backward adds to the sums

What a token's loss is weighted with is known from its sample; only the denominator waits for the step. So groups may
come in any order and any portions. Ratios are taken to the engine's log-probabilities or to those under the round's
weights, never to those of weights that have moved.

With several ranks each takes its share of every call's samples (shares.py); `layout` is all that differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from rolloutpipe_core.config.models import (
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TrainerConfig,
)
from rolloutpipe_core.domain import Group
from rolloutpipe_core.errors import BadInput

from ..batch import Batch, make_batch
from ..learning_rate import learning_rate
from ..objective import Objective
from ..trainer import UpdateResult
from .determinism import check_order_free
from .export import export_model, read_tokenizer_files
from .gradients import FixedPointSum, FloatSum, GradientSums, wide
from .layout import Layout, OneDevice
from .optimizer import MasterAdamW
from .policy import Policy
from .state import read_updates, write_updates


class TorchTrainer:
    """Implements `Backend` (components/trainer/trainer.py)."""

    def __init__(
        self,
        directory: Path,
        *,
        model: ModelConfig,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        trainer: TrainerConfig,
        sampling: SamplingConfig,
        reference: Path | None = None,
        deterministic: bool = False,
        layout: Layout | None = None,
    ) -> None:
        """Load the weights to start from; without a `layout` whole on `model.device`.

        `directory` and `reference` hold HF files; `reference` is the run's version 0, needed (and held in memory) only
        when `loss.kl_coefficient` > 0. With `deterministic` a step's bits follow from the weights and the groups alone.
        Raises BadInput for a folder without a usable model, and where `deterministic` cannot be promised.
        """
        self._loss, self._optimizer, self._trainer, self._sampling = loss, optimizer, trainer, sampling
        self._layout = layout or OneDevice(torch.device(model.device))
        self._dtype: torch.dtype = getattr(torch, model.dtype)
        self._policy = self._layout.trained(directory, self._dtype, sampling.temperature)
        if trainer.gradient_checkpointing:
            # transformers checkpoints in training mode only; without dropout the two modes are otherwise the same.
            self._policy.model.train().gradient_checkpointing_enable({"use_reentrant": False})
        self._reference = self._load_reference(reference) if loss.kl_coefficient > 0 else None
        if loss.old_logprobs == "recompute":
            self._copy = self._layout.copier(directory, self._dtype, sampling.temperature)
        self._tokenizer_files = read_tokenizer_files(directory)
        parameters = {
            name: parameter for name, parameter in self._policy.model.named_parameters() if parameter.requires_grad
        }
        self._loss_dtype = wide(self._dtype)
        self._deterministic = deterministic
        self._gradients = GradientSums(parameters, FixedPointSum if deterministic else FloatSum)
        self._weights = MasterAdamW(parameters, optimizer)
        self._objective = Objective(loss, sampling.max_new_tokens)
        self._updates = 0  # of the run, skipped ones included: the learning rate's clock
        self.begin_round()
        self.begin_update(0)
        if deterministic:
            check_order_free(self.accumulate, self._gradients.totals, self._policy.vocabulary)
            self.begin_update(0)

    @classmethod
    def of(cls, config: RunConfig, directory: Path, reference: Path | None = None) -> Self:
        """The trainer of a run, at the weights in `directory`; with several ranks each of them makes its own."""
        layout = None
        if config.trainer.data_parallel > 1:
            from .fsdp import Fsdp

            layout = Fsdp(torch.device(config.model.device))
        return cls(
            directory,
            model=config.model,
            loss=config.loss,
            optimizer=config.optimizer,
            trainer=config.trainer,
            sampling=config.sampling,
            reference=reference,
            deterministic=config.deterministic,
            layout=layout,
        )

    def begin_round(self) -> None:
        self._moved = False
        self._round_start: Policy | None = None

    def begin_update(self, update: int) -> None:
        self._objective.begin_update(update)
        self._gradients.clear()

    def accumulate(self, groups: Sequence[Group]) -> None:
        # A row's rounding depends on the micro-batch that it shares: deterministic, no group shares one.
        for together in ([group] for group in groups) if self._deterministic else [groups]:
            self._accumulate(together)

    def _accumulate(self, groups: Sequence[Group]) -> None:
        trained = self._objective.count(groups)
        for indices in self._layout.plan([sample.tokens for sample in trained], self._trainer.microbatch_tokens):
            filler = not indices
            microbatch = [trained[index] for index in indices] or [min(trained, key=lambda sample: sample.tokens)]
            batch = make_batch(microbatch, self._loss.aggregation, self._layout.device, self._loss_dtype)
            self._backward(batch, filler)

    def step(self) -> UpdateResult:
        self._layout.combine(self._objective)
        self._gradients.divide(self._objective.denominator)
        norm = self._gradients.norm()
        rate = learning_rate(self._updates, self._optimizer)
        if math.isfinite(norm):
            self._gradients.clip(norm, self._optimizer.max_grad_norm)
            self._move_weights(rate)
        self._updates += 1
        return self._objective.result(norm, rate)

    def export_weights(self, directory: Path) -> None:
        model = self._layout.model(self._policy, self._dtype)
        if model is not None:
            export_model(model, self._tokenizer_files, directory)

    def save(self, directory: Path) -> None:
        """`state.safetensors`: float32 masters and AdamW's state; `state.json`: the count of updates."""
        if not self._layout.writes:
            self._weights.save(None)
            return
        directory.mkdir(parents=True, exist_ok=True)
        self._weights.save(directory / "state.safetensors")
        write_updates(directory, self._updates)

    def load(self, directory: Path) -> None:
        """The loaded weights count as those of a round that begins; raises BadInput for what `save` did not write."""
        updates = read_updates(directory)
        self._weights.load(directory / "state.safetensors")
        self._updates = updates
        self.begin_round()

    def _load_reference(self, directory: Path | None) -> Policy:
        if directory is None:
            raise BadInput(
                "no reference weights", given="kl_coefficient > 0", expected="the folder of the run's version 0"
            )
        return self._layout.frozen(directory, self._dtype, self._sampling.temperature)

    def _backward(self, batch: Batch, filler: bool) -> None:
        """Forward and backward of one micro-batch; GradientSums takes the gradients.

        A `filler` meets the other ranks wherever a micro-batch does, and adds zeros.
        """
        scores = self._policy.scores(batch, entropy_gradient=self._loss.entropy_coefficient != 0)
        reference = self._reference.logprobs(batch) if self._reference else None
        round_logprobs = self._round_logprobs(batch, scores.logprobs)
        if filler:
            (0.0 * scores.logprobs.sum()).backward()
        else:
            self._objective.loss(batch, scores, round_logprobs, reference).backward()

    def _round_logprobs(self, batch: Batch, logprobs: Tensor) -> Tensor | None:
        """The trainer's log-probabilities under the round's weights; None when only moved weights are at hand."""
        if not self._moved:
            return logprobs.detach()
        return self._round_start.logprobs(batch) if self._round_start else None

    def _move_weights(self, rate: float) -> None:
        """AdamW's step, after the round's weights were put aside if later updates need them."""
        if self._loss.old_logprobs == "recompute" and not self._moved:
            self._round_start = self._copy(self._policy)
        self._weights.step(self._gradients.tensors, rate)
        self._moved = True
