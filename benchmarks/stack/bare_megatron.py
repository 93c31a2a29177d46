"""A loop over megatron-core as its own examples have it: its GPT and loss over whole rows, its schedule, its step.

It has no groups, ratio or clipping; it trains the same rows of the same lengths. What it lacks is what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig as MegatronConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from rolloutpipe_components.trainer.backends.megatron import cpu
from rolloutpipe_components.trainer.backends.megatron.architecture import Architecture
from rolloutpipe_components.trainer.backends.megatron.layout import Layout
from rolloutpipe_components.trainer.backends.megatron.mapping import padded_vocabulary
from rolloutpipe_components.trainer.backends.megatron.model import transformer_config
from rolloutpipe_components.trainer.batch import Batch
from torch import Tensor

from rolloutpipe_core.config.models import OptimizerConfig, TrainerConfig


class BareLoop:
    """Randomly initialised, in the process groups that `Layout.start` has made. `step` is collective."""

    def __init__(
        self, architecture: Architecture, layout: Layout, trainer: TrainerConfig, optimizer: OptimizerConfig
    ) -> None:
        config = transformer_config(architecture, layout, trainer, torch.float32)
        spec = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
        buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        settings = MegatronConfig(
            optimizer="adam",
            lr=optimizer.learning_rate,
            adam_beta1=optimizer.betas[0],
            adam_beta2=optimizer.betas[1],
            clip_grad=optimizer.max_grad_norm,
            params_dtype=torch.float32,
        )
        with cpu.cuda_literals():
            model = GPTModel(
                config,
                spec,
                vocab_size=padded_vocabulary(architecture.vocabulary, layout.tensor_parallel),
                max_sequence_length=architecture.positions,
                share_embeddings_and_output_weights=architecture.tied,
                position_embedding_type="rope",
            )
            self._model = DistributedDataParallel(config, buffers, model)
            self._optimizer = get_megatron_optimizer(settings, [self._model], use_gloo_process_groups=False)

    def step(self, batches: Sequence[Batch]) -> None:
        """One update of these micro-batches."""
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        with cpu.cuda_literals():
            get_forward_backward_func()(
                forward_step_func=_forward,
                data_iterator=iter(batches),
                model=[self._model],
                num_microbatches=len(batches),
                seq_length=1,
                micro_batch_size=1,
                forward_only=False,
            )
            finalize_model_grads([self._model])
            self._model.scale_gradients(1 / sum(len(batch.targets) for batch in batches))
            self._optimizer.step()


def _forward(batches: Iterator[Batch], model: Any) -> tuple[Tensor, Any]:
    batch = next(batches)
    ids = batch.input_ids
    rows, length = ids.shape
    positions = torch.arange(length).expand(rows, length)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]  # True: not seen
    losses = model(ids, positions, hidden, labels=ids.roll(-1, dims=1))
    return losses, partial(_sum, batch.predicts)


def _sum(predicts: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    return losses[predicts].sum(), torch.zeros((), dtype=torch.int), {}
