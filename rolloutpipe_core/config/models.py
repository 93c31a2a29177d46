"""The configuration of a run: one small model a section, every field with its unit.

Addresses and secrets are not here: they come from the environment (see `rolloutpipe_core.config.connections`).
Unknown keys are errors. Validators check and never rewrite; what concerns several fields is in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rolloutpipe_core.advantage import AdvantageKind

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
VERIFIER = r"^(?:pointer_walk|exact|math|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"
DEVICE = r"^(?:cpu|cuda|mps|xpu)(?::[0-9]+)?$"
Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The policy's starting weights."""

    path: str
    """Folder with a Hugging Face causal LM (config.json, *.safetensors, tokenizer), or `builtin:pointer-walk`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in engine and trainer; the optimizer's state and the gradients' sums are wider."""
    device: Annotated[str, Field(pattern=DEVICE)] = "cpu"
    """Torch device of both services: `cpu`, `cuda`, `mps` or `xpu`; one of several by its number, as `cuda:1`."""


class DataConfig(Section):
    """The prompts."""

    source: Literal["pointer_walk", "jsonl"] = "pointer_walk"
    """`pointer_walk` makes its rows from a seed; `jsonl` reads `path`."""
    path: str | None = None
    """JSONL file, one row a line (source `jsonl`)."""
    prompt_field: str = "question"
    """Field of a row with the question (source `jsonl`)."""
    answer_field: str = "answer"
    """Field of a row with the reference answer (source `jsonl`)."""
    answer_format: Literal["plain", "gsm8k"] = "plain"
    """How the answer field is read: as it is, or what follows `####` (GSM8K)."""
    system_prompt: str | None = None
    """System message put before each question; only with `chat`."""
    chat: bool = False
    """Put each question through the model's chat template."""
    rows: Positive | None = None
    """Take only the first rows; unset: all (for `pointer_walk`: 100000)."""
    seed: int = 2
    """Seed of the generated rows (source `pointer_walk`); the order of the prompts follows the run's `seed`."""
    max_prompt_tokens: Positive = 1024
    """Prompts longer than this (tokens) are an error at the start."""


class ScheduleConfig(Section):
    """Rounds, groups, updates, and who waits for what (paper: R, K, B, F_w)."""

    kind: Literal["serial", "cgp", "cgp+fgd", "stream"] = "cgp+fgd"
    """When rollout admits a group and when the trainer starts; see docs/schedules.md."""
    frontier_mode: Literal["hard", "fill"] = "fill"
    """`hard`: only the frontier is in service; `fill`: the frontier first, spare slots filled."""
    contract: Literal["round", "strict"] = "round"
    """`round`: R/U updates on one version; `strict`: one optimizer step a version (needs U = R)."""
    order: Literal["completion", "submission"] = "completion"
    """Order in which groups enter updates; `submission` waits for the head of the line."""
    rounds: Positive = 40
    """Rounds of the whole run; may be raised when a run is resumed."""
    groups_per_round: Positive = 16
    """R: prompts of one round."""
    samples_per_group: Positive = 8
    """K: responses sampled for a prompt."""
    update_batch_size: Positive = 16
    """B: samples of one update; groups_per_update U = B / K."""
    frontier_width: Positive = 2
    """F_w: groups that frontier-group dispatch keeps in service (`cgp+fgd`, `stream`)."""
    stream_min_groups: Positive = 1
    """`stream`: least ready groups with which the trainer starts, unless fewer are missing from the update."""
    zero_variance: Literal["keep", "drop", "refill"] = "keep"
    """Groups whose rewards are all equal: `keep` their tokens in the denominator, or end them as `filtered`: `drop`, or
    `refill` the round with the next prompts until it has R other groups (DAPO's dynamic sampling)."""
    refill_limit: Annotated[int, Field(ge=2)] = 4
    """`refill`: most groups that a round draws, as a multiple of R; past it they are only dropped."""
    max_unusable_fraction: Fraction = 0.5
    """A round with a larger share of groups that ended unused, and were not replaced, stops the run."""

    @property
    def groups_per_update(self) -> int:
        """U = B / K; whole by the cross-field checks."""
        return self.update_batch_size // self.samples_per_group

    @property
    def most_groups(self) -> int:
        """Groups that a round draws at most, those that replace others included."""
        return self.groups_per_round * (self.refill_limit if self.zero_variance == "refill" else 1)


class SamplingConfig(Section):
    """How a response is sampled. Log-probabilities are those of log-softmax(logits / temperature)."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """T; the trainer divides its logits by the same number."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; below 1 the ratio is no longer the sampling ratio (warned)."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k likeliest ids; 0 = all (warned otherwise)."""
    max_new_tokens: Positive = 96
    """Longest response, in tokens."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end a response, besides the model's own eos ids."""


class LaunchConfig(Section):
    """SGLang servers that a rollout worker starts, supervises and ends."""

    replicas: Positive = 1
    """Servers, each with all the weights."""
    python: str = "python3"
    """Interpreter of SGLang's own environment (it pins its torch)."""
    arguments: tuple[str, ...] = ()
    """Passed through to `python -m sglang.launch_server`, for example `[--tp-size, "2"]`; they win over ours."""
    environment: dict[str, str] = {}
    """Environment variables of the servers, besides the worker's own (without its credentials)."""
    start_s: Seconds = 240.0
    """Longest time from a server's start to its first answer."""


class EngineConfig(Section):
    """The inference engine of a rollout worker."""

    kind: Literal["torch", "sglang"] = "torch"
    """`torch`: in process, continuous batching; `sglang`: SGLang servers over HTTP (docs/sglang.md)."""
    slots: Positive = 64
    """Samples decoded at once; with `sglang` by all servers together."""
    urls: tuple[Url, ...] = ()
    """SGLang servers that run already, for example `[http://gpu-1:30000]`; they serve this worker alone."""
    launch: LaunchConfig | None = None
    """SGLang servers that the worker starts itself, instead of `urls`."""
    stall_s: Seconds = 120.0
    """A server whose samples in flight make no step for this long is out, and they go elsewhere (`sglang`)."""
    frontier_by: Literal["admission", "priority"] = "admission"
    """Who puts the frontier first (`sglang`): our admission, or the servers' own priority scheduling."""


class RewardConfig(Section):
    """The verifier and its worker processes."""

    verifier: Annotated[str, Field(pattern=VERIFIER)] = "pointer_walk"
    """`pointer_walk`: last `#X`; `exact`: stripped text equals the answer; `math`: math-verify on the final answer;
    or your own as `module:function`, a `Verifier` (rewards/score.py) on PYTHONPATH or in the working folder."""
    workers: Positive = 1
    """Worker processes."""
    deadline_s: Seconds = 5.0
    """Hard limit for one response; over it the worker is killed and the sample scores 0."""
    memory_mb: Positive = 2048
    """Address space a worker may take, in MiB; over it the sample scores 0."""
    infrastructure_retries: Annotated[int, Field(ge=0)] = 2
    """Retries when a worker dies for a reason of ours; then the group is `failed`."""


class LossConfig(Section):
    """The objective (docs/losses.md has the formulas)."""

    kind: Literal["grpo", "dr_grpo", "gspo", "cispo"] = "grpo"
    """`grpo`: clipped surrogate; `dr_grpo`: the same, advantages only centred; `gspo`: ratio and clip of whole
    responses; `cispo`: the weight is clipped instead of the token. DAPO is `grpo` with its settings
    (docs/losses.md)."""
    aggregation: Literal["token_mean", "sample_mean", "dr_grpo"] = "token_mean"
    """An update's denominator: its tokens (DAPO), samples after a mean in each (GRPO), samples x max_new_tokens."""
    advantage_eps: Annotated[float, Field(ge=0)] = 1e-4
    """Added to the group's deviation."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low; 1 = no lower bound."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL term against the reference (the run's version 0); 0 = none, no reference in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL term is estimated at a token."""
    entropy_coefficient: float = 0.0
    """Weight of the policy's entropy; positive rewards entropy."""
    old_logprobs: Literal["engine", "recompute"] = "engine"
    """Denominator of the ratio: the engine's, or recomputed under a frozen copy of the round's start weights."""
    importance_cap: Annotated[float, Field(gt=0)] | None = None
    """Truncated importance weight, per token: min(exp(old - engine), cap); only with `recompute`."""

    @property
    def advantage(self) -> AdvantageKind:
        """How rewards become advantages."""
        return "dr_grpo" if self.kind == "dr_grpo" else "grpo"


class OptimizerConfig(Section):
    """AdamW."""

    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's two decay rates."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""
    warmup_updates: Annotated[int, Field(ge=0)] = 0
    """Linear warm-up, in updates."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up, over `decay_updates`."""
    decay_updates: Positive | None = None
    """Updates until the end of the decay; needed when `decay` is not `constant`."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    """Where the decay ends."""


class TrainerConfig(Section):
    """The trainer's backend."""

    kind: Literal["torch", "megatron"] = "torch"
    """`torch`: a Hugging Face causal LM, sharded by FSDP2 over several ranks; `megatron`: megatron-core's GPT."""
    data_parallel: Positive = 1
    """Ranks that share an update's samples."""
    tensor_parallel: Positive = 1
    """Ranks that share each layer (`megatron`)."""
    pipeline_parallel: Positive = 1
    """Ranks that share the sequence of layers (`megatron`)."""
    sequence_parallel: bool = False
    """Shard what tensor parallelism leaves whole along the sequence (`megatron`)."""
    distributed_optimizer: bool = False
    """Shard the optimizer's state over the data-parallel ranks (`megatron`)."""
    microbatch_tokens: Positive = 8192
    """Token budget of one forward and backward, padding included."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward: less memory, more time."""


class LeaseConfig(Section):
    """Who may work on what, for how long."""

    lease_s: Seconds = 10.0
    """A rollout worker's lease on a group; renewed at a third of it."""
    heartbeat_s: Seconds = 1.0
    """How often a service says that it is alive and what it waits for."""
    max_attempts: Positive = 4
    """Admissions of one group after which an infrastructure failure ends it as `failed`."""
    max_rejections: Annotated[int, Field(ge=0)] = 2
    """Times a damaged group is re-admitted under the same version before it ends as `rejected`."""


class DeadlineConfig(Section):
    """Longest waits, in seconds. Past one, the service names what it waited for and exits non-zero."""

    group_s: Seconds = 300.0
    """Trainer: from one group's arrival to the next."""
    publish_s: Seconds = 600.0
    """Rollout: from the round's drain to the next version."""
    partner_s: Seconds = 120.0
    """Trainer: until rollout has prepared the run."""
    engine_s: Seconds = 300.0
    """Rollout: one group's K samples, or loading one version."""
    redis_s: Seconds = 60.0
    """Either service: Redis away."""
    store_s: Seconds = 60.0
    """Either service: the object store away."""
    rank_s: Seconds = 300.0
    """Trainer: until every rank has answered."""


class RetentionConfig(Section):
    """What a run keeps, and for how long (docs/retention.md). Commits and the ledger's archive always stay."""

    keep_rounds: Positive | None = 50
    """Rounds whose group objects, ledger events and keys stay at hand after their commit; `null`: all."""
    keep_versions: Positive = 3
    """Newest versions whose weights and trainer state stay, the head's included; pinned ones stay besides."""
    orphan_age_s: Seconds = 86400.0
    """Age, by the store's clock, at which an object that nothing refers to is swept; longer than any upload takes."""
    grace_s: Annotated[float, Field(ge=0)] = 600.0
    """After a Redis that may have lost pins (restart, failover, emptied), no weights are deleted for this long."""
    archive_events: Positive = 10000
    """Ledger events that a Parquet part of the archive has at least."""


class RunConfig(Section):
    """A whole run."""

    run: str
    """Name of the run: 1 to 63 of a-z, 0-9 and '-'; part of every key."""
    seed: int = 0
    """Seed of the prompts' order and of the sampling noise."""
    deterministic: bool = False
    """The same samples and weights to the bit, whatever the schedule and its timing: docs/determinism.md."""
    bucket: str = "rolloutpipe"
    """S3 bucket; made when it is missing."""
    model: ModelConfig
    data: DataConfig = DataConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    rewards: RewardConfig = RewardConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    leases: LeaseConfig = LeaseConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    retention: RetentionConfig = RetentionConfig()
    rollout_workers: Positive = 1
    """Rollout workers expected: each admits its share of a round (`serial`, `cgp`) or of a hard frontier."""
    rollout_module: str = "rolloutpipe_components.rollout"
    """Started as `python -m MODULE`."""
    trainer_module: str = "rolloutpipe_components.trainer"
    """Started as `python -m MODULE`."""
