"""megatron-core's GPT as a policy: one pipeline stage of it, and on the last one the scores of given tokens."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor
from torch.nn.functional import pad, silu

from rolloutpipe_core.config.models import TrainerConfig

from ...batch import Batch
from ..policy import Scores
from . import cpu
from .architecture import Architecture
from .layout import Layout
from .mapping import padded_vocabulary
from .modules import CausalAttention, Norm
from .vocabulary import score_shard


class PolicyModel(GPTModel):  # type: ignore[misc]
    """This rank's stage and shard of a policy at a temperature. Its weights are undefined until they are loaded."""

    def __init__(
        self,
        architecture: Architecture,
        frequencies: Tensor,
        layout: Layout,
        trainer: TrainerConfig,
        dtype: torch.dtype,
        temperature: float,
    ) -> None:
        """`frequencies` as `rotary_frequencies` gives them."""
        config = transformer_config(architecture, layout, trainer, dtype)
        layers = [_layer_spec(architecture)] * len(layout.stage.layers(architecture))
        vocabulary = padded_vocabulary(architecture.vocabulary, layout.tensor_parallel)
        with cpu.cuda_literals():
            super().__init__(
                config,
                TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm),
                vocab_size=vocabulary,
                max_sequence_length=architecture.positions,
                pre_process=layout.stage.first,
                post_process=layout.stage.last,
                share_embeddings_and_output_weights=architecture.tied,
                position_embedding_type="rope",
            )
        self.rotary_pos_emb.inv_freq = frequencies.to(layout.device)
        self._temperature = temperature
        self._first_id = layout.tensor_rank * (vocabulary // layout.tensor_parallel)
        self._ids = architecture.vocabulary - self._first_id  # from there on, of which a shard has the first
        self._multiple = layout.tensor_parallel if trainer.sequence_parallel else 1

    def forward(self, batch: Batch, entropy_gradient: bool = False) -> Any:
        """`Scores` of the batch's N trained tokens; on an earlier stage the hidden states for the next one."""
        missing = -batch.input_ids.shape[1] % self._multiple
        input_ids = pad(batch.input_ids, (0, missing))
        hidden = self.embedding(input_ids=input_ids, position_ids=None) if self.pre_process else None
        positions = self.rotary_pos_emb(input_ids.shape[1])
        hidden = self.decoder(hidden_states=hidden, attention_mask=None, rotary_pos_emb=positions)
        return self._scores(hidden, batch, entropy_gradient) if self.post_process else hidden

    def _scores(self, hidden: Tensor, batch: Batch, entropy_gradient: bool) -> Scores:
        """hidden is [L, B, hidden], of sequence-parallel ranks [L / ranks, B, hidden]."""
        # Each rank has its own columns of the head, so in the backward their parts of a state's gradient are summed:
        # by the gather where the sequence is split, by the copy where it is not.
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden)
        states = hidden.transpose(0, 1)[:, : batch.predicts.shape[1]][batch.predicts]
        if not self.config.sequence_parallel:
            states = copy_to_tensor_model_parallel_region(states)
        shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        return score_shard(
            states,
            weight,
            batch.targets,
            first=self._first_id,
            ids=self._ids,
            temperature=self._temperature,
            group=self.tp_group,
            entropy_gradient=entropy_gradient,
        )


def transformer_config(
    architecture: Architecture, layout: Layout, trainer: TrainerConfig, dtype: torch.dtype
) -> TransformerConfig:
    """megatron-core's config: no dropout, no fused kernel, gradients as sums."""
    recompute: dict[str, Any] = {}
    if trainer.gradient_checkpointing:
        recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=architecture.layers,
        hidden_size=architecture.hidden,
        ffn_hidden_size=architecture.ffn,
        num_attention_heads=architecture.heads,
        num_query_groups=architecture.groups,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.eps,
        qk_layernorm=architecture.qk_norm,
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        # Weights are loaded; but where nothing initialises a shard, megatron-core does not mark it as one either.
        init_method=_as_it_is,
        output_layer_init_method=_as_it_is,
        embedding_init_method=_as_it_is,
        use_cpu_initialization=not torch.cuda.is_available(),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        sequence_parallel=trainer.sequence_parallel and layout.tensor_parallel > 1,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the default refuses the line above, experts or not
        calculate_per_token_loss=True,  # sums, not means over ranks and micro-batches
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        **recompute,
    )


def _layer_spec(architecture: Architecture) -> Any:
    spec = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = Norm
    attention.core_attention = CausalAttention
    if architecture.qk_norm:
        attention.q_layernorm = attention.k_layernorm = Norm
    return spec


def _as_it_is(weight: Tensor) -> Tensor:
    return weight
