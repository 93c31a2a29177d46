"""The numbers of a round, from its timeline. Definitions: paper.md's metrics, spelled out in docs/timeline.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolloutpipe_core.domain import ENDED_STATES
from rolloutpipe_core.observe.timeline import GroupTimeline, RoundTimeline, UpdateTimeline


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """One round in numbers. Durations are seconds; None: not known yet, or nothing to measure."""

    round: int
    weight_version: int | None  # the version that sampled the round
    state: str
    reward_mean: float | None  # over the samples of every scored group, filtered ones too
    groups: int
    groups_trained: int  # in sealed updates
    groups_ended: int  # filtered, failed or rejected
    readmissions: int  # attempts beyond each group's first
    updates: int  # steps taken; replays count once
    updates_skipped: int  # of these, without effect for a non-finite gradient
    tokens: int  # prompt and response tokens of the groups handed over
    response_length_mean: float | None  # tokens
    response_length_max: int | None  # tokens
    rollout_s: float | None  # rollout start to the (last) drain
    rollout_to_train_end_s: float | None
    round_period_s: float | None  # publish to publish; round 0: from its opening
    waiting_ratio_eq4: float | None  # (train start - rollout start) / (train end - rollout start)
    waiting_ratio_s51: float | None  # wait / (wait + compute)
    first_dispatch_s: float | None  # rollout start to the first claimed group
    trainer_busy_s: float
    blocked_s: float  # only fetching and verifying announced groups kept the trainer from going on
    loss: float | None
    grad_norm: float | None
    clip_fraction: float | None
    kl: float | None
    entropy: float | None
    mismatch_kl: float | None
    mismatch_mean: float | None
    mismatch_max: float | None


def all_round_metrics(timelines: Sequence[RoundTimeline]) -> list[RoundMetrics]:
    """The metrics of consecutive rounds."""
    before = [None, *timelines]
    return [round_metrics(line, previous) for line, previous in zip(timelines, before, strict=False)]


def round_metrics(line: RoundTimeline, previous: RoundTimeline | None) -> RoundMetrics:
    """One round's metrics. `previous`: the round before, which tells when this one's period began."""
    groups = list(line.groups.values())
    steps = [update for update in line.updates.values() if update.stepped_ms is not None]
    busy = line.busy()
    span_s = _seconds(line.rollout_start_ms, line.trained_ms)
    busy_s = sum(end - start for start, end in busy) / 1000
    samples = sum(group.samples for group in groups)
    return RoundMetrics(
        round=line.round,
        weight_version=line.version,
        state=line.state.value,
        reward_mean=_reward_mean(groups),
        groups=len(groups),
        groups_trained=sum(update.groups for update in line.updates.values()),
        groups_ended=sum(group.state in ENDED_STATES for group in groups),
        readmissions=sum(group.attempts - 1 for group in groups if group.attempts),
        updates=len(steps),
        updates_skipped=sum(update.skipped for update in steps),
        tokens=sum(group.tokens for group in groups),
        response_length_mean=sum(group.response_tokens for group in groups) / samples if samples else None,
        response_length_max=max((group.longest_response for group in groups if group.samples), default=None),
        rollout_s=_seconds(line.rollout_start_ms, line.drained_ms),
        rollout_to_train_end_s=span_s,
        round_period_s=_period_s(line, previous),
        waiting_ratio_eq4=_ratio(_seconds(line.rollout_start_ms, busy[0][0]) if busy else None, span_s),
        waiting_ratio_s51=_ratio(None if span_s is None else span_s - busy_s, span_s),
        first_dispatch_s=_seconds(line.rollout_start_ms, line.first_claim_ms()),
        trainer_busy_s=busy_s,
        blocked_s=sum(update.blocked_ms for update in steps) / 1000,
        loss=token_mean(steps, "loss"),
        grad_norm=token_mean(steps, "grad_norm"),
        clip_fraction=token_mean(steps, "clip_fraction"),
        kl=token_mean(steps, "kl"),
        entropy=token_mean(steps, "entropy"),
        mismatch_kl=token_mean(steps, "mismatch_kl"),
        mismatch_mean=token_mean(steps, "mismatch_mean"),
        mismatch_max=max(_finite(update.metrics.get("mismatch_max") for update in steps), default=None),
    )


def token_mean(updates: Sequence[UpdateTimeline], name: str) -> float | None:
    """A metric's mean over updates, weighted by their tokens; updates without a finite value are left out."""
    pairs = [(update.metrics.get(name), update.tokens) for update in updates]
    known = [(value, tokens) for value, tokens in pairs if value is not None and math.isfinite(value) and tokens]
    weight = sum(tokens for _, tokens in known)
    return sum(value * tokens for value, tokens in known) / weight if weight else None


def _reward_mean(groups: Iterable[GroupTimeline]) -> float | None:
    scored = [(group.reward_mean, group.samples) for group in groups if group.reward_mean is not None]
    samples = sum(count for _, count in scored)
    return sum(mean * count for mean, count in scored) / samples if samples else None


def _period_s(line: RoundTimeline, previous: RoundTimeline | None) -> float | None:
    if line.round == 0:
        return _seconds(line.opened_ms, line.published_ms)
    if previous is None or previous.round != line.round - 1:
        return None
    return _seconds(previous.published_ms, line.published_ms)


def _seconds(start_ms: int | None, end_ms: int | None) -> float | None:
    return None if start_ms is None or end_ms is None else (end_ms - start_ms) / 1000


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _finite(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None and math.isfinite(value))
