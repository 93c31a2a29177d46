"""The `megatron` backend: a Llama, Qwen2 or Qwen3 in megatron-core, tensor, pipeline and data parallel.

    begin_round ─> begin_update ─> accumulate(groups) ... ─> step ─> (next update) ... ─> export_weights, save
                                        │                     │
     this rank's share in micro-batches;│                     └ sum over ranks / denominator, clip, AdamW
     gradients sum up in float32        │

Each rank runs all of this with the same groups. Weights come in and go out as Hugging Face files and checkpoints hold
whole tensors, so that neither knows how many ranks there are.
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

from ...batch import Batch, make_batch
from ...learning_rate import learning_rate
from ...objective import Objective
from ...shares import plan_shares
from ...trainer import UpdateResult
from ..gradients import wide
from ..policy import Scores
from ..state import read_updates, write_updates
from .architecture import read_architecture, read_config, rotary_frequencies
from .export import Exporter
from .layout import Layout
from .model import PolicyModel
from .optimizer import MegatronAdamW
from .schedule import score, train
from .weights import Shards, TensorFiles


class MegatronTrainer:
    """Implements `Trainer` (components/trainer/trainer.py) on every rank; all methods are collective.

    Of the directories given to `export_weights` and `save` only the first rank's is written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        model: ModelConfig,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        trainer: TrainerConfig,
        sampling: SamplingConfig,
        deadline_s: float,
        reference: Path | None = None,
    ) -> None:
        """Load the weights to start from.

        `directory` and `reference` hold HF files; `reference` is the run's version 0, needed (and held in memory) only
        when `loss.kl_coefficient` > 0. No collective waits longer than `deadline_s`. Raises BadInput for a folder
        without a usable model, one that the backend does not know, and ranks that do not fit the configuration.
        """
        self._loss, self._optimizer, self._trainer = loss, optimizer, trainer
        self._temperature = sampling.temperature
        self._layout = Layout.start(trainer, model.device, deadline_s)
        self._dtype: torch.dtype = getattr(torch, model.dtype)
        config = read_config(directory)
        self._architecture = read_architecture(config)
        self._layout.check(self._architecture)
        self._frequencies = rotary_frequencies(config, self._architecture.head_dim)
        self._shards = Shards(self._architecture, self._layout)
        self._exporter = Exporter(directory, config, self._dtype)
        self._model = self._load_model(directory)
        self._weights = MegatronAdamW(self._model, optimizer, trainer.distributed_optimizer)
        self._reference = self._load_reference(reference) if loss.kl_coefficient > 0 else None
        self._frozen: PolicyModel | None = None
        self._objective = Objective(loss, sampling.max_new_tokens)
        self._updates = 0  # of the run, skipped ones included: the learning rate's clock
        self.begin_round()
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
            deadline_s=config.deadlines.rank_s,
            reference=reference,
        )

    def begin_round(self) -> None:
        self._moved = False

    def begin_update(self, update: int) -> None:
        self._objective.begin_update(update)
        self._weights.clear()

    def accumulate(self, groups: Sequence[Group]) -> None:
        trained = self._objective.count(groups)
        lengths = [sample.tokens for sample in trained]
        shares = plan_shares(lengths, self._layout.data_parallel, self._trainer.microbatch_tokens)
        dtype = wide(self._dtype)
        self._train(
            [
                make_batch([trained[index] for index in indices], self._loss.aggregation, self._layout.device, dtype)
                for indices in shares[self._layout.data_rank]
                if indices  # ranks meet at the step, not in a micro-batch: a filler is left out
            ]
        )

    def step(self) -> UpdateResult:
        self._objective.combine(self._layout.loss_rows(self._objective.packed()))
        self._weights.divide(self._objective.denominator)
        norm = self._weights.norm()
        rate = learning_rate(self._updates, self._optimizer)
        if math.isfinite(norm):
            if self._loss.old_logprobs == "recompute" and not self._moved:
                self._freeze()
            self._weights.step(norm, self._optimizer.max_grad_norm, rate)
            self._moved = True
        self._updates += 1
        return self._objective.result(norm, rate)

    def export_weights(self, directory: Path) -> None:
        parameters = dict(self._model.named_parameters())
        whole = self._shards.gather(parameters.__getitem__)
        if self._layout.leader:
            self._exporter.write(whole, directory)

    def save(self, directory: Path) -> None:
        """`state.safetensors`: float32 masters and AdamW's state; `state.json`: the count of updates."""
        if self._layout.leader:
            directory.mkdir(parents=True, exist_ok=True)
        self._weights.save(directory / "state.safetensors", self._shards)
        if self._layout.leader:
            write_updates(directory, self._updates)

    def load(self, directory: Path) -> None:
        """The loaded weights count as those of a round that begins; raises BadInput for what `save` did not write."""
        self._updates = read_updates(directory)
        with TensorFiles.of_file(directory / "state.safetensors") as files:
            files.check(self._architecture, "master.")
            self._weights.load(files, self._shards)
        self.begin_round()

    def _train(self, batches: Sequence[Batch]) -> None:
        old = score(self._frozen, batches) if self._moved and self._frozen is not None else []
        reference = score(self._reference, batches) if self._reference is not None else []

        def loss(place: int, scores: Scores) -> Tensor:
            kept = old[place] if old else None
            round_logprobs = kept if self._moved else scores.logprobs.detach()
            return self._objective.loss(batches[place], scores, round_logprobs, reference[place] if reference else None)

        train(self._weights.model, batches, loss, entropy_gradient=self._loss.entropy_coefficient != 0)

    def _new_model(self) -> PolicyModel:
        return PolicyModel(
            self._architecture, self._frequencies, self._layout, self._trainer, self._dtype, self._temperature
        )

    def _load_model(self, directory: Path) -> PolicyModel:
        model = self._new_model()
        with TensorFiles.of_model(directory) as files:
            files.check(self._architecture)
            self._shards.load(dict(model.named_parameters()), files.read)
        return model

    def _load_reference(self, directory: Path | None) -> PolicyModel:
        if directory is None:
            raise BadInput(
                "no reference weights", given="kl_coefficient > 0", expected="the folder of the run's version 0"
            )
        model = self._load_model(directory)
        model.eval().requires_grad_(False)
        return model

    @torch.no_grad()
    def _freeze(self) -> None:
        """Put the round's weights aside, before they move for the first time."""
        if self._frozen is None:
            self._frozen = self._new_model().eval().requires_grad_(False)
        for kept, parameter in zip(self._frozen.parameters(), self._model.parameters(), strict=True):
            kept.copy_(parameter)
