"""megatron-core's gradients and AdamW, driven as this trainer needs them, with a checkpoint that knows no layout.

    clear ─> (forward, backward: sums into float32 buffers) ─> divide ─> norm ─> step

megatron-core's own step divides, clips and steps at once and cannot leave a step out; its parts can be called alone. It
also leaves weight decay's exceptions and the rate to its scheduler, whose place is taken here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig as MegatronConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.parallel_state import get_data_parallel_group
from safetensors.torch import save_file
from torch import Tensor, distributed, nn

from rolloutpipe_core.config.models import OptimizerConfig
from rolloutpipe_core.errors import BadInput

from . import cpu
from .model import PolicyModel
from .weights import Shards, TensorFiles

MOMENTS = ("exp_avg", "exp_avg_sq")


class Master(NamedTuple):
    """What AdamW steps for a parameter on this rank: the parameter, its float32 copy, or a run of either's elements."""

    tensor: Tensor  # float32; [end - start] or the parameter's shape
    start: int  # in the flattened parameter
    end: int

    def run(self, whole: Tensor) -> Tensor:
        """A copy of what of the parameter's `whole` is the master's, in its shape and beside it."""
        part = whole.flatten()[self.start : self.end].view_as(self.tensor)
        return part.to(self.tensor.device, copy=True)


class MegatronAdamW:
    """A model in megatron-core's DistributedDataParallel with its optimizer. Every method is collective but `clear`."""

    def __init__(self, model: PolicyModel, config: OptimizerConfig, distributed_optimizer: bool) -> None:
        """The model has its weights. `distributed_optimizer` shards masters and moments over data-parallel ranks."""
        self.model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=distributed_optimizer, overlap_grad_reduce=False
            ),
            model,
        )
        dtype: torch.dtype = model.config.params_dtype
        settings = MegatronConfig(
            optimizer="adam",
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            use_distributed_optimizer=distributed_optimizer,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
        )
        with cpu.cuda_literals():
            self._optimizer: Any = get_megatron_optimizer(settings, [self.model], use_gloo_process_groups=False)
        (self._inner,) = self._optimizer.chained_optimizers
        self._sharded = distributed_optimizer
        self._adamw = self._inner.optimizer
        if not isinstance(self._adamw, torch.optim.AdamW):
            raise BadInput(
                "megatron-core took another AdamW than torch's",
                given=f"{type(self._adamw).__module__}, which it prefers where it is installed",
                expected="torch.optim.AdamW, whose state the checkpoints hold",
                remedy="uninstall transformer_engine and apex from the trainer's environment",
            )
        for group in self._optimizer.param_groups:
            group["weight_decay"] = config.weight_decay * group["wd_mult"]  # 0 for vectors
        self._parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self._steps = 0

    def clear(self) -> None:
        """Forget the sums."""
        self.model.zero_grad_buffer()
        self._optimizer.zero_grad()

    def divide(self, by: int) -> None:
        """Sum over the ranks, and divide. Once an update."""
        finalize_model_grads([self.model])
        self.model.scale_gradients(1 / by)

    def norm(self) -> float:
        """Euclidean norm of all gradients of all ranks together, after `divide`; not finite when any is not."""
        with cpu.cuda_literals():
            self._optimizer.prepare_grads()
            return float(self._optimizer.get_grad_norm())

    def step(self, norm: float, limit: float, learning_rate: float) -> None:
        """Scale the gradients of `norm` down to `limit` if they are larger, and step."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
            for master in group["params"] if norm > limit else ():
                master.grad.div_(norm / limit)
        with cpu.cuda_literals():
            self._optimizer.step_with_ready_grads()
        self._steps += 1

    def save(self, path: Path, shards: Shards) -> None:
        """The first rank writes whole tensors `master.NAME`, `exp_avg.NAME`, `exp_avg_sq.NAME` and each `step.NAME`."""
        state = self._gathered("master", shards, lambda master: master)
        if self._steps:
            names = [key.removeprefix("master.") for key in state]
            for moment in MOMENTS:
                state |= self._gathered(moment, shards, partial(self._moment, moment))
            state |= {f"step.{name}": torch.tensor(float(self._steps)) for name in names}
        if state:
            save_file(state, path)

    @torch.no_grad()
    def load(self, files: TensorFiles, shards: Shards) -> None:
        """Read what `save` or the `torch` backend wrote, in whatever layout. Nothing is sent."""
        steps = {int(files.read(name)) for name in files.names if name.startswith("step.")}
        self._steps = max(steps, default=0)
        self._adamw.state.clear()
        keys = ("master", *MOMENTS) if steps else ("master",)
        for name, parameter in self._parameters.items():
            whole = {key: shards.cut(name, partial(_read, files, key)) for key in keys}
            parameter.copy_(whole["master"])
            if (master := self._master(parameter)) is not None:
                mine = {key: master.run(tensor) for key, tensor in whole.items()}
                master.tensor.copy_(mine.pop("master"))
                if steps:
                    self._adamw.state[master.tensor] = mine | {"step": torch.tensor(float(self._steps))}

    def _gathered(self, key: str, shards: Shards, of: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """What `of` gives for each parameter's master, whole, as `key.NAME`."""
        whole = shards.gather(lambda name: self._joined(self._parameters[name], of))
        return {f"{key}.{name}": tensor for name, tensor in whole.items()}

    def _joined(self, parameter: nn.Parameter, of: Callable[[Tensor], Tensor]) -> Tensor:
        """`of` the parameter's master, from the runs that data-parallel ranks hold. Each element is one rank's."""
        master = self._master(parameter)
        flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        if master is not None:
            flat[master.start : master.end] = of(master.tensor).flatten()
        if self._sharded:
            distributed.all_reduce(flat, group=get_data_parallel_group())
        return flat.view_as(parameter)

    def _moment(self, key: str, master: Tensor) -> Tensor:
        moment: Tensor = self._adamw.state[master][key]
        return moment

    def _master(self, parameter: nn.Parameter) -> Master | None:
        """None: other data-parallel ranks hold all of it."""
        if not self._sharded:
            return Master(getattr(parameter, "main_param", parameter), 0, parameter.numel())
        if parameter not in self._inner.model_param_gbuf_map:
            return None
        buffer, dtype, bucket = self._inner.model_param_gbuf_map[parameter]
        run = self._inner.gbuf_ranges[buffer][dtype][bucket]["param_map"][parameter]["param"]
        group, place = self._inner.model_param_group_index_map[parameter]
        return Master(self._adamw.param_groups[group]["params"][place], run.start, run.end)


def _read(files: TensorFiles, key: str, name: str) -> Tensor:
    return files.read(f"{key}.{name}")
