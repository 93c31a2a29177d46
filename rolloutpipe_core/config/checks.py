"""What several fields of a configuration must agree on, each with its remedy. Pure; reads no file."""

from __future__ import annotations

from collections.abc import Iterator

from rolloutpipe_core.config import schedule_checks, sglang_checks
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.config.problems import Problem, error, warning
from rolloutpipe_core.domain import validate_run_name
from rolloutpipe_core.errors import BadInput


def check(config: RunConfig) -> list[Problem]:
    """Everything that does not fit together, errors first."""
    rules = (
        _name,
        schedule_checks.sizes,
        schedule_checks.frontier,
        schedule_checks.refill,
        _model_and_data,
        _sampling,
        sglang_checks.servers,
        sglang_checks.order,
        sglang_checks.times,
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


def _name(config: RunConfig) -> Iterator[Problem]:
    try:
        validate_run_name(config.run)
    except BadInput as refusal:
        yield error("run", f"{refusal.what}: {refusal.given}", f"use {refusal.expected}")


def _model_and_data(config: RunConfig) -> Iterator[Problem]:
    data, builtin = config.data, config.model.path.startswith("builtin:")
    if data.source == "jsonl" and data.path is None:
        yield error("data.path", "source jsonl has no file", "set data.path to a JSONL file")
    if data.source != "jsonl" and data.path is not None:
        yield warning(
            "data.path", f"source {data.source} reads no file", "set data.source to jsonl, or remove data.path"
        )
    if data.system_prompt is not None and not data.chat:
        yield error("data.system_prompt", "without chat it would be left out", "set data.chat to true, or remove it")
    if data.chat and builtin:
        yield error("data.chat", f"{config.model.path} has no chat template", "set data.chat to false")
    if data.source == "jsonl" and builtin:
        yield warning(
            "model.path",
            f"{config.model.path} knows only its own task",
            "set data.source to pointer_walk, or take another model",
        )


def _sampling(config: RunConfig) -> Iterator[Problem]:
    sampling, slots, k = config.sampling, config.engine.slots, config.schedule.samples_per_group
    for key, truncated in (("sampling.top_p", sampling.top_p < 1), ("sampling.top_k", sampling.top_k > 0)):
        if truncated:
            yield warning(
                key,
                "samples are drawn from the truncated distribution, log-probabilities are those of the whole one: "
                "the loss's ratio is not the sampling ratio",
                "set top_p to 1 and top_k to 0 unless you want that",
            )
    if slots < k:
        yield warning(
            "engine.slots", f"{slots} slots do not hold one group of K = {k} samples", f"set it to at least {k}"
        )


def _ranks(config: RunConfig) -> Iterator[Problem]:
    """Parallelism of the trainer."""
    trainer, given = config.trainer, config.trainer.model_fields_set
    if trainer.kind == "torch":
        only = {"tensor_parallel", "pipeline_parallel", "sequence_parallel", "distributed_optimizer"}
        for key in given & only:
            if getattr(trainer, key) not in (1, False):
                yield error(f"trainer.{key}", "torch shards over data_parallel alone", "set trainer.kind to megatron")
    if config.deterministic and (trainer.kind != "torch" or trainer.data_parallel > 1):
        yield error(
            "deterministic",
            "gradients are summed free of order on one torch rank alone",
            "set it to false, or one rank",
        )
    if trainer.sequence_parallel and trainer.tensor_parallel == 1:
        yield warning("trainer.sequence_parallel", "without tensor parallelism it does nothing", "remove it")


def _determinism(config: RunConfig) -> Iterator[Problem]:
    schedule = config.schedule
    if not config.deterministic:
        return
    if not config.model.device.startswith("cpu"):
        yield warning("deterministic", "the promise holds on the CPU only", "set model.device to cpu")
    several = schedule.groups_per_update < schedule.groups_per_round
    if several and schedule.order == "completion" and schedule.kind != "serial":
        yield warning(
            "schedule.order",
            "deterministic, but which groups meet in an update is a matter of time, and with it the weights",
            "set schedule.order to submission, or update_batch_size to the whole round",
        )


def _rewards(config: RunConfig) -> Iterator[Problem]:
    verifier, source = config.rewards.verifier, config.data.source
    own = ":" in verifier  # "module:function" may fit anything
    if not own and (verifier == "pointer_walk") != (source == "pointer_walk"):
        yield warning(
            "rewards.verifier",
            f"{verifier} does not fit the answers of data source {source}",
            "set it to pointer_walk" if source == "pointer_walk" else "set it to exact or math",
        )


def _loss(config: RunConfig) -> Iterator[Problem]:
    loss = config.loss
    if loss.importance_cap is not None and loss.old_logprobs != "recompute":
        yield error(
            "loss.importance_cap",
            "the importance weight compares the engine with the recomputed log-probabilities",
            "set loss.old_logprobs to recompute, or remove loss.importance_cap",
        )
    if (loss.kind == "dr_grpo") != (loss.aggregation == "dr_grpo"):
        yield warning(
            "loss.aggregation",
            f"{loss.aggregation} with kind {loss.kind}: Dr.GRPO is centred advantages over a constant denominator",
            "set kind and aggregation both to dr_grpo, or neither",
        )
    if loss.kind == "dr_grpo" and "advantage_eps" in loss.model_fields_set:
        yield warning("loss.advantage_eps", "dr_grpo divides by no deviation", "remove it")
    if loss.kind == "gspo" and loss.aggregation != "sample_mean":
        yield error(
            "loss.aggregation",
            f"GSPO's loss is one number a response, and {loss.aggregation} would weigh it by its length",
            "set it to sample_mean",
        )
    if loss.kind == "gspo" and loss.importance_cap is not None:
        yield error("loss.importance_cap", "GSPO's ratio is of whole responses, the weight is of tokens", "remove it")
    if loss.kl_coefficient == 0 and "kl_estimator" in loss.model_fields_set:
        yield warning("loss.kl_estimator", "there is no KL term", "remove it, or set loss.kl_coefficient")
    elif loss.kl_estimator == "k1":
        yield warning("loss.kl_estimator", "k1's expected gradient is 0: it only adds noise", "set it to k2 or k3")


def _optimizer(config: RunConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    constant = optimizer.decay == "constant"
    if not constant and optimizer.decay_updates is None:
        updates = -(-config.schedule.groups_per_round // max(1, config.schedule.groups_per_update))
        total = config.schedule.rounds * updates
        yield error(
            "optimizer.decay_updates", f"{optimizer.decay} decay needs an end", f"set it, for example to {total}"
        )
    if constant and optimizer.decay_updates is not None:
        yield warning(
            "optimizer.decay_updates", "decay is constant", "set optimizer.decay to linear or cosine, or remove it"
        )
    if optimizer.decay_updates is not None and optimizer.warmup_updates >= optimizer.decay_updates:
        yield error(
            "optimizer.warmup_updates",
            f"{optimizer.warmup_updates} updates of warm-up do not end before the decay at {optimizer.decay_updates}",
            f"set it below {optimizer.decay_updates}",
        )
    if optimizer.min_learning_rate > optimizer.learning_rate:
        yield error(
            "optimizer.min_learning_rate",
            f"{optimizer.min_learning_rate:g} is above the peak of {optimizer.learning_rate:g}",
            "set it below optimizer.learning_rate",
        )


def _fit(config: RunConfig) -> Iterator[Problem]:
    longest, budget = config.data.max_prompt_tokens + config.sampling.max_new_tokens, config.trainer.microbatch_tokens
    if longest > budget:
        yield warning(
            "trainer.microbatch_tokens",
            f"the longest sample ({longest} tokens) is over the budget of {budget} tokens and goes alone",
            f"set it to at least {longest} if memory allows",
        )


def _times(config: RunConfig) -> Iterator[Problem]:
    leases, deadlines, rewards = config.leases, config.deadlines, config.rewards
    beat = leases.heartbeat_s
    if leases.lease_s < 2 * beat:
        yield error(
            "leases.lease_s",
            f"a lease of {leases.lease_s:g} s with a heartbeat every {beat:g} s ends while its holder is well",
            f"set it to at least {2 * beat:g}",
        )
    slowest = rewards.deadline_s * -(-config.schedule.samples_per_group // rewards.workers)
    if slowest > deadlines.group_s:
        yield warning(
            "rewards.deadline_s",
            f"a group whose responses all hang takes {slowest:g} s, over deadlines.group_s of {deadlines.group_s:g} s",
            "lower it, raise rewards.workers or raise deadlines.group_s",
        )
    if deadlines.engine_s > deadlines.group_s:
        yield warning(
            "deadlines.engine_s",
            f"{deadlines.engine_s:g} s for a group, but the trainer gives up after {deadlines.group_s:g} s without one",
            "set deadlines.group_s to at least deadlines.engine_s",
        )
