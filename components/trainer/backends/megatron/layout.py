"""Which rank is what: tensor, data and pipeline parallelism over the processes of torch.distributed.

    rank = tensor + tensor_parallel * (data + data_parallel * pipeline)      megatron-core's own order

Ranks that share a sample's layers (tensor) are neighbours; the last stages are the last ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor, distributed

from rolloutpipe_core.config.models import TrainerConfig
from rolloutpipe_core.errors import BadInput

from ...ranks.collective import rank_device, rows_of_all
from . import cpu
from .architecture import Architecture
from .mapping import Stage, padded_vocabulary


@dataclass(frozen=True, slots=True)
class Layout:
    """This rank's place."""

    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    tensor_rank: int
    data_rank: int
    stage: Stage
    device: torch.device

    @classmethod
    def start(cls, trainer: TrainerConfig, device: str, deadline_s: float) -> Layout:
        """Collective. Make megatron-core's process groups; a process keeps those of its first trainer.

        No rank waits in one of their operations longer than `deadline_s`. Without torch.distributed this process is the
        only rank. Raises BadInput when the ranks are not as many as the configuration says.
        """
        kind = torch.device(device)
        cuda = torch.cuda.is_available()
        if kind.type != ("cuda" if cuda else "cpu"):
            raise BadInput(
                "megatron-core trains on CUDA where there is one, else on the CPU",
                given=f"model.device {device}",
                expected="cuda" if cuda else "cpu",
                remedy="change model.device; CUDA_VISIBLE_DEVICES='' hides the GPUs",
            )
        cpu.install()
        if not distributed.is_initialized():
            if kind.index is not None:
                torch.cuda.set_device(kind)
            store = distributed.HashStore()  # type: ignore[attr-defined]
            distributed.init_process_group("nccl" if cuda else "gloo", store=store, rank=0, world_size=1)
        tensor, data, pipeline = trainer.tensor_parallel, trainer.data_parallel, trainer.pipeline_parallel
        if distributed.get_world_size() != tensor * data * pipeline:
            raise BadInput(
                "trainer ranks",
                given=str(distributed.get_world_size()),
                expected=f"tensor_parallel {tensor} x data_parallel {data} x pipeline_parallel {pipeline}",
            )
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(
                tensor,
                pipeline,
                create_gloo_process_groups=False,
                distributed_timeout_minutes=deadline_s / 60,  # it makes a timedelta of it
            )
            if cuda:
                model_parallel_cuda_manual_seed(1)  # there is no dropout: nothing is drawn
        return cls(
            tensor_parallel=tensor,
            data_parallel=data,
            pipeline_parallel=pipeline,
            tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
            data_rank=parallel_state.get_data_parallel_rank(),
            stage=Stage(parallel_state.get_pipeline_model_parallel_rank(), pipeline),
            device=rank_device(kind),
        )

    def check(self, architecture: Architecture) -> None:
        """Raise BadInput for a model that does not divide by this layout."""
        divisions = (
            ("tensor_parallel", self.tensor_parallel, ("heads", "groups", "ffn")),
            ("pipeline_parallel", self.pipeline_parallel, ("layers",)),
        )
        for key, ranks, names in divisions:
            for name in names:
                if (size := getattr(architecture, name)) % ranks:
                    raise BadInput(
                        f"trainer.{key} does not divide the model",
                        given=f"{ranks} ranks for {size} {name}",
                        expected=f"a divisor of {', '.join(names)}",
                    )
        ranks = self.tensor_parallel
        if padded_vocabulary(architecture.vocabulary, ranks) // ranks * (ranks - 1) >= architecture.vocabulary:
            raise BadInput("too small a vocabulary", given=f"{architecture.vocabulary} ids for {ranks} ranks")

    @property
    def leader(self) -> bool:
        """The first rank, which alone writes files."""
        return distributed.get_rank() == 0

    def rank_of_stage(self, stage: int) -> int:
        """The first rank of a pipeline stage."""
        return stage * self.tensor_parallel * self.data_parallel

    def loss_rows(self, packed: Tensor) -> Tensor:
        """Collective. Rows [data_parallel, n] of the ranks that have a loss, one for each share; `packed` is [n]."""
        first = self.rank_of_stage(self.pipeline_parallel - 1)
        return rows_of_all(packed)[first :: self.tensor_parallel]
