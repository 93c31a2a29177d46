"""What several fields of a configuration must agree on, each with its remedy. Pure; reads no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import validate_run_name
from rolloutpipe_core.errors import BadInput


@dataclass(frozen=True, slots=True)
class Problem:
    """An `error` forbids the run; a `warning` says what may surprise."""

    severity: Literal["error", "warning"]
    key: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}; do: {self.remedy}"


def check(config: RunConfig) -> list[Problem]:
    """Everything that does not fit together, errors first."""
    rules = (
        _name,
        _sizes,
        _frontier,
        _refill,
        _model_and_data,
        _sampling,
        _engine,
        _determinism,
        _rewards,
        _loss,
        _ranks,
        _optimizer,
        _fit,
        _times,
    )
    problems = [problem for rule in rules for problem in rule(config)]
    return sorted(problems, key=lambda problem: problem.severity != "error")


def _error(key: str, message: str, remedy: str) -> Problem:
    return Problem("error", key, message, remedy)


def _warning(key: str, message: str, remedy: str) -> Problem:
    return Problem("warning", key, message, remedy)


def _name(config: RunConfig) -> Iterator[Problem]:
    try:
        validate_run_name(config.run)
    except BadInput as error:
        yield _error("run", f"{error.what}: {error.given}", f"use {error.expected}")


def _sizes(config: RunConfig) -> Iterator[Problem]:
    """R, K, B and U."""
    schedule = config.schedule
    r, k, b = schedule.groups_per_round, schedule.samples_per_group, schedule.update_batch_size
    if k == 1:
        yield _error(
            "schedule.samples_per_group",
            "with one sample a group every advantage is 0",
            "sample at least 2 responses a prompt",
        )
    if b % k:
        low, high = b // k * k, (b // k + 1) * k
        yield _error(
            "schedule.update_batch_size",
            f"B = {b} is not a multiple of K = {k}, and an update takes whole groups",
            f"set it to {f'{low} or {high}' if low else high}",
        )
        return
    u = schedule.groups_per_update
    if u > r:
        yield _error(
            "schedule.update_batch_size",
            f"an update needs U = B/K = {u} groups and a round has only R = {r}",
            f"set update_batch_size to at most {r * k}, or groups_per_round to at least {u}",
        )
    elif schedule.contract == "strict" and u != r:
        yield _error(
            "schedule.contract",
            f"strict means one update a version, but U = {u} and R = {r}",
            f"set schedule.update_batch_size to {r * k}, or schedule.contract to round",
        )
    elif r % u:
        yield _warning(
            "schedule.groups_per_round",
            f"R = {r} is not a multiple of U = {u}: the last update of a round has {r % u} groups",
            f"set it to {r // u * u} or {(r // u + 1) * u}",
        )
    if config.rollout_workers > r:
        yield _warning(
            "rollout_workers",
            f"{config.rollout_workers} workers share R = {r} groups: some stay idle",
            f"start at most {r}",
        )


def _frontier(config: RunConfig) -> Iterator[Problem]:
    """Settings of frontier-group dispatch and of streaming."""
    schedule = config.schedule
    kind, width, least = schedule.kind, schedule.frontier_width, schedule.stream_min_groups
    given = schedule.model_fields_set
    if kind in ("cgp+fgd", "stream"):
        if width > schedule.groups_per_round:
            yield _error(
                "schedule.frontier_width",
                f"F_w = {width} is wider than the round, R = {schedule.groups_per_round}",
                f"set it to at most {schedule.groups_per_round}, or schedule.kind to cgp",
            )
        elif kind == "cgp+fgd" and schedule.frontier_mode == "hard" and config.rollout_workers > width:
            yield _warning(
                "schedule.frontier_width",
                f"{config.rollout_workers} workers share a hard frontier of F_w = {width} groups: some stay idle",
                f"set it to a multiple of {config.rollout_workers}, or schedule.frontier_mode to fill",
            )
    elif "frontier_width" in given:
        yield _warning("schedule.frontier_width", f"{kind} has no frontier", "remove it, or set kind to cgp+fgd")
    if "frontier_mode" in given and kind != "cgp+fgd":
        yield _warning("schedule.frontier_mode", f"it means nothing with {kind}", "remove it, or set kind to cgp+fgd")
    if kind == "stream":
        if least > schedule.groups_per_update:
            yield _error(
                "schedule.stream_min_groups",
                f"{least} groups are more than an update has (U = {schedule.groups_per_update})",
                f"set it to at most {schedule.groups_per_update}",
            )
    elif "stream_min_groups" in given:
        yield _warning(
            "schedule.stream_min_groups", f"it means nothing with {kind}", "remove it, or set kind to stream"
        )


def _refill(config: RunConfig) -> Iterator[Problem]:
    """Dynamic sampling."""
    schedule, rows = config.schedule, config.data.rows
    if schedule.zero_variance != "refill":
        if "refill_limit" in schedule.model_fields_set:
            yield _warning(
                "schedule.refill_limit",
                f"it means nothing with {schedule.zero_variance}",
                "remove it, or set schedule.zero_variance to refill",
            )
    elif rows is not None and rows < schedule.most_groups:
        yield _warning(
            "schedule.refill_limit",
            f"a round may draw {schedule.most_groups} prompts, but there are {rows} rows: some may come twice in it",
            "lower it, or raise data.rows",
        )


def _model_and_data(config: RunConfig) -> Iterator[Problem]:
    data, builtin = config.data, config.model.path.startswith("builtin:")
    if data.source == "jsonl" and data.path is None:
        yield _error("data.path", "source jsonl has no file", "set data.path to a JSONL file")
    if data.source != "jsonl" and data.path is not None:
        yield _warning(
            "data.path", f"source {data.source} reads no file", "set data.source to jsonl, or remove data.path"
        )
    if data.system_prompt is not None and not data.chat:
        yield _error("data.system_prompt", "without chat it would be left out", "set data.chat to true, or remove it")
    if data.chat and builtin:
        yield _error("data.chat", f"{config.model.path} has no chat template", "set data.chat to false")
    if data.source == "jsonl" and builtin:
        yield _warning(
            "model.path",
            f"{config.model.path} knows only its own task",
            "set data.source to pointer_walk, or take another model",
        )


def _sampling(config: RunConfig) -> Iterator[Problem]:
    sampling, slots, k = config.sampling, config.engine.slots, config.schedule.samples_per_group
    for key, truncated in (("sampling.top_p", sampling.top_p < 1), ("sampling.top_k", sampling.top_k > 0)):
        if truncated:
            yield _warning(
                key,
                "samples are drawn from the truncated distribution, log-probabilities are those of the whole one: "
                "the loss's ratio is not the sampling ratio",
                "set top_p to 1 and top_k to 0 unless you want that",
            )
    if slots < k:
        yield _warning(
            "engine.slots", f"{slots} slots do not hold one group of K = {k} samples", f"set it to at least {k}"
        )


def _engine(config: RunConfig) -> Iterator[Problem]:
    """SGLang's settings."""
    engine, given, schedule = config.engine, config.engine.model_fields_set, config.schedule
    if engine.kind == "torch":
        for key in sorted(given & {"urls", "launch", "stall_s", "frontier_by"}):
            yield _warning(f"engine.{key}", "it means nothing with torch", "remove it, or set engine.kind to sglang")
        return
    if bool(engine.urls) == (engine.launch is not None):
        yield _error(
            "engine.urls",
            "sglang needs servers: either their addresses or how to start them",
            "set engine.urls or engine.launch, and not both",
        )
    if engine.urls and config.rollout_workers > 1:
        yield _error(
            "engine.urls",
            f"{config.rollout_workers} workers would load weights into the same servers",
            "set rollout_workers to 1: one worker serves any number of servers",
        )
    if config.deterministic:
        yield _error(
            "deterministic", "SGLang's samples depend on what is batched with them", "set engine.kind to torch"
        )
    if config.sampling.top_k == 1 and config.sampling.temperature != 1:
        yield _error(
            "sampling.temperature",
            "with top_k 1 SGLang reports log-probabilities of logits that are not divided by it",
            "set it to 1",
        )
    if engine.frontier_by == "priority":
        if schedule.kind == "cgp+fgd" and schedule.frontier_mode == "hard":
            yield _error(
                "engine.frontier_by",
                "by priority all groups are sent, and a hard frontier holds them back",
                "set schedule.frontier_mode to fill, or engine.frontier_by to admission",
            )
        if config.rollout_workers > 1:
            yield _error(
                "engine.frontier_by",
                f"by priority the first of {config.rollout_workers} workers would take every group",
                "set rollout_workers to 1: one worker serves any number of servers",
            )
    if engine.launch is not None and engine.launch.start_s >= config.deadlines.engine_s:
        yield _warning(
            "engine.launch.start_s",
            f"the first load has deadlines.engine_s of {config.deadlines.engine_s:g} s, the start included",
            "set deadlines.engine_s above it",
        )
    if engine.stall_s >= config.deadlines.engine_s:
        yield _warning(
            "engine.stall_s",
            f"a group is given up after deadlines.engine_s of {config.deadlines.engine_s:g} s, before its samples "
            "could go elsewhere",
            "set it below deadlines.engine_s",
        )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    """Parallelism of the trainer."""
    trainer, given = config.trainer, config.trainer.model_fields_set
    if trainer.kind == "torch":
        only = {"tensor_parallel", "pipeline_parallel", "sequence_parallel", "distributed_optimizer"}
        for key in given & only:
            if getattr(trainer, key) not in (1, False):
                yield _error(f"trainer.{key}", "torch shards over data_parallel alone", "set trainer.kind to megatron")
    if config.deterministic and (trainer.kind != "torch" or trainer.data_parallel > 1):
        yield _error(
            "deterministic",
            "gradients are summed free of order on one torch rank alone",
            "set it to false, or one rank",
        )
    if trainer.sequence_parallel and trainer.tensor_parallel == 1:
        yield _warning("trainer.sequence_parallel", "without tensor parallelism it does nothing", "remove it")


def _determinism(config: RunConfig) -> Iterator[Problem]:
    schedule = config.schedule
    if not config.deterministic:
        return
    if not config.model.device.startswith("cpu"):
        yield _warning("deterministic", "the promise holds on the CPU only", "set model.device to cpu")
    several = schedule.groups_per_update < schedule.groups_per_round
    if several and schedule.order == "completion" and schedule.kind != "serial":
        yield _warning(
            "schedule.order",
            "deterministic, but which groups meet in an update is a matter of time, and with it the weights",
            "set schedule.order to submission, or update_batch_size to the whole round",
        )


def _rewards(config: RunConfig) -> Iterator[Problem]:
    verifier, source = config.rewards.verifier, config.data.source
    own = ":" in verifier  # "module:function" may fit anything
    if not own and (verifier == "pointer_walk") != (source == "pointer_walk"):
        yield _warning(
            "rewards.verifier",
            f"{verifier} does not fit the answers of data source {source}",
            "set it to pointer_walk" if source == "pointer_walk" else "set it to exact or math",
        )


def _loss(config: RunConfig) -> Iterator[Problem]:
    loss = config.loss
    if loss.importance_cap is not None and loss.old_logprobs != "recompute":
        yield _error(
            "loss.importance_cap",
            "the importance weight compares the engine with the recomputed log-probabilities",
            "set loss.old_logprobs to recompute, or remove loss.importance_cap",
        )
    if (loss.kind == "dr_grpo") != (loss.aggregation == "dr_grpo"):
        yield _warning(
            "loss.aggregation",
            f"{loss.aggregation} with kind {loss.kind}: Dr.GRPO is centred advantages over a constant denominator",
            "set kind and aggregation both to dr_grpo, or neither",
        )
    if loss.kind == "dr_grpo" and "advantage_eps" in loss.model_fields_set:
        yield _warning("loss.advantage_eps", "dr_grpo divides by no deviation", "remove it")
    if loss.kind == "gspo" and loss.aggregation != "sample_mean":
        yield _error(
            "loss.aggregation",
            f"GSPO's loss is one number a response, and {loss.aggregation} would weigh it by its length",
            "set it to sample_mean",
        )
    if loss.kind == "gspo" and loss.importance_cap is not None:
        yield _error("loss.importance_cap", "GSPO's ratio is of whole responses, the weight is of tokens", "remove it")
    if loss.kl_coefficient == 0 and "kl_estimator" in loss.model_fields_set:
        yield _warning("loss.kl_estimator", "there is no KL term", "remove it, or set loss.kl_coefficient")
    elif loss.kl_estimator == "k1":
        yield _warning("loss.kl_estimator", "k1's expected gradient is 0: it only adds noise", "set it to k2 or k3")


def _optimizer(config: RunConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    constant = optimizer.decay == "constant"
    if not constant and optimizer.decay_updates is None:
        updates = -(-config.schedule.groups_per_round // max(1, config.schedule.groups_per_update))
        total = config.schedule.rounds * updates
        yield _error(
            "optimizer.decay_updates", f"{optimizer.decay} decay needs an end", f"set it, for example to {total}"
        )
    if constant and optimizer.decay_updates is not None:
        yield _warning(
            "optimizer.decay_updates", "decay is constant", "set optimizer.decay to linear or cosine, or remove it"
        )
    if optimizer.decay_updates is not None and optimizer.warmup_updates >= optimizer.decay_updates:
        yield _error(
            "optimizer.warmup_updates",
            f"{optimizer.warmup_updates} updates of warm-up do not end before the decay at {optimizer.decay_updates}",
            f"set it below {optimizer.decay_updates}",
        )
    if optimizer.min_learning_rate > optimizer.learning_rate:
        yield _error(
            "optimizer.min_learning_rate",
            f"{optimizer.min_learning_rate:g} is above the peak of {optimizer.learning_rate:g}",
            "set it below optimizer.learning_rate",
        )


def _fit(config: RunConfig) -> Iterator[Problem]:
    longest, budget = config.data.max_prompt_tokens + config.sampling.max_new_tokens, config.trainer.microbatch_tokens
    if longest > budget:
        yield _warning(
            "trainer.microbatch_tokens",
            f"the longest sample ({longest} tokens) is over the budget of {budget} tokens and goes alone",
            f"set it to at least {longest} if memory allows",
        )


def _times(config: RunConfig) -> Iterator[Problem]:
    leases, deadlines, rewards = config.leases, config.deadlines, config.rewards
    beat = leases.heartbeat_s
    if leases.lease_s < 2 * beat:
        yield _error(
            "leases.lease_s",
            f"a lease of {leases.lease_s:g} s with a heartbeat every {beat:g} s ends while its holder is well",
            f"set it to at least {2 * beat:g}",
        )
    slowest = rewards.deadline_s * -(-config.schedule.samples_per_group // rewards.workers)
    if slowest > deadlines.group_s:
        yield _warning(
            "rewards.deadline_s",
            f"a group whose responses all hang takes {slowest:g} s, over deadlines.group_s of {deadlines.group_s:g} s",
            "lower it, raise rewards.workers or raise deadlines.group_s",
        )
    if deadlines.engine_s > deadlines.group_s:
        yield _warning(
            "deadlines.engine_s",
            f"{deadlines.engine_s:g} s for a group, but the trainer gives up after {deadlines.group_s:g} s without one",
            "set deadlines.group_s to at least deadlines.engine_s",
        )
