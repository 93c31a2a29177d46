"""The `torch` backend: a Hugging Face causal LM trained in this process.

    begin_round ─> begin_update ─> accumulate(groups) ... ─> step ─> (next update) ... ─> export_weights, save
                                        │                     │
        micro-batches of least padding; │                     └ sums / denominator, clip, AdamW on float32 masters
        each backward adds to the sums

What a token's loss is weighted with is known from its sample; only the denominator waits for the step. So groups may
come in any order and any portions. Ratios are taken to the engine's log-probabilities or to those under the round's
weights, never to those of weights that have moved.
"""

from __future__ import annotations

import copy
import json
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
from ..microbatch import plan_microbatches
from ..objective import Objective
from ..trainer import UpdateResult
from .determinism import check_order_free
from .export import export_model, read_tokenizer_files
from .gradients import FixedPointSum, FloatSum, GradientSums, wide
from .optimizer import MasterAdamW
from .policy import Policy, load_model

STATE_FORMAT = 1


class TorchTrainer:
    """Implements `Trainer` (components/trainer/trainer.py) on one device."""

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
    ) -> None:
        """Load the weights to start from.

        `directory` and `reference` hold HF files; `reference` is the run's version 0, needed (and held in memory) only
        when `loss.kl_coefficient` > 0. With `deterministic` a step's bits follow from the weights and the groups alone.
        Raises BadInput for a folder without a usable model, and where `deterministic` cannot be promised.
        """
        self._loss, self._optimizer, self._trainer, self._sampling = loss, optimizer, trainer, sampling
        self._device = torch.device(model.device)
        dtype: torch.dtype = getattr(torch, model.dtype)
        self._policy = Policy(load_model(directory, dtype, self._device), sampling.temperature)
        if trainer.gradient_checkpointing:
            # transformers checkpoints in training mode only; without dropout the two modes are otherwise the same.
            self._policy.model.train().gradient_checkpointing_enable({"use_reentrant": False})
        self._reference = self._load_reference(reference, dtype) if loss.kl_coefficient > 0 else None
        self._tokenizer_files = read_tokenizer_files(directory)
        parameters = {
            name: parameter for name, parameter in self._policy.model.named_parameters() if parameter.requires_grad
        }
        self._loss_dtype = wide(dtype)
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
        """The trainer of a run, at the weights in `directory`."""
        return cls(
            directory,
            model=config.model,
            loss=config.loss,
            optimizer=config.optimizer,
            trainer=config.trainer,
            sampling=config.sampling,
            reference=reference,
            deterministic=config.deterministic,
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
        for indices in plan_microbatches([sample.tokens for sample in trained], self._trainer.microbatch_tokens):
            microbatch = [trained[index] for index in indices]
            self._backward(make_batch(microbatch, self._loss.aggregation, self._device, self._loss_dtype))

    def step(self) -> UpdateResult:
        self._gradients.divide(self._objective.denominator)
        norm = self._gradients.norm()
        rate = learning_rate(self._updates, self._optimizer)
        if math.isfinite(norm):
            self._gradients.clip(norm, self._optimizer.max_grad_norm)
            self._move_weights(rate)
        self._updates += 1
        return self._objective.result(norm, rate)

    def export_weights(self, directory: Path) -> None:
        export_model(self._policy.model, self._tokenizer_files, directory)

    def save(self, directory: Path) -> None:
        """`state.safetensors`: float32 masters and AdamW's state; `state.json`: the count of updates."""
        directory.mkdir(parents=True, exist_ok=True)
        self._weights.save(directory / "state.safetensors")
        (directory / "state.json").write_text(json.dumps({"format": STATE_FORMAT, "updates": self._updates}))

    def load(self, directory: Path) -> None:
        """The loaded weights count as those of a round that begins; raises BadInput for what `save` did not write."""
        try:
            state = json.loads((directory / "state.json").read_text())
        except (OSError, ValueError) as error:
            raise BadInput("no trainer checkpoint", given=f"{directory}: {error}") from error
        if state["format"] != STATE_FORMAT:
            raise BadInput("a checkpoint of another format", given=str(state["format"]), expected=str(STATE_FORMAT))
        self._weights.load(directory / "state.safetensors")
        self._updates = state["updates"]
        self.begin_round()

    def _load_reference(self, directory: Path | None, dtype: torch.dtype) -> Policy:
        if directory is None:
            raise BadInput(
                "no reference weights", given="kl_coefficient > 0", expected="the folder of the run's version 0"
            )
        return Policy(load_model(directory, dtype, self._device), self._sampling.temperature)

    def _backward(self, batch: Batch) -> None:
        """Forward and backward of one micro-batch; GradientSums takes the gradients."""
        scores = self._policy.scores(batch, entropy_gradient=self._loss.entropy_coefficient != 0)
        reference = self._reference.logprobs(batch) if self._reference else None
        self._objective.loss(batch, scores, self._round_logprobs(batch, scores.logprobs), reference).backward()

    def _round_logprobs(self, batch: Batch, logprobs: Tensor) -> Tensor | None:
        """The trainer's log-probabilities under the round's weights; None when only moved weights are at hand."""
        if not self._moved:
            return logprobs.detach()
        return self._round_start.logprobs(batch) if self._round_start else None

    def _move_weights(self, rate: float) -> None:
        """AdamW's step, after the round's weights were put aside if later updates need them."""
        if self._loss.old_logprobs == "recompute" and not self._moved:
            self._round_start = copy.deepcopy(self._policy)
        self._weights.step(self._gradients.tensors, rate)
        self._moved = True
