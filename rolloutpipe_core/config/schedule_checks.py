"""Rules for a round's sizes, its frontier and what replaces filtered groups."""

from __future__ import annotations

from collections.abc import Iterator

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.config.problems import Problem, error, warning


def sizes(config: RunConfig) -> Iterator[Problem]:
    """R, K, B and U."""
    schedule = config.schedule
    r, k, b = schedule.groups_per_round, schedule.samples_per_group, schedule.update_batch_size
    if k == 1:
        yield error(
            "schedule.samples_per_group",
            "with one sample a group every advantage is 0",
            "sample at least 2 responses a prompt",
        )
    if b % k:
        low, high = b // k * k, (b // k + 1) * k
        yield error(
            "schedule.update_batch_size",
            f"B = {b} is not a multiple of K = {k}, and an update takes whole groups",
            f"set it to {f'{low} or {high}' if low else high}",
        )
        return
    u = schedule.groups_per_update
    if u > r:
        yield error(
            "schedule.update_batch_size",
            f"an update needs U = B/K = {u} groups and a round has only R = {r}",
            f"set update_batch_size to at most {r * k}, or groups_per_round to at least {u}",
        )
    elif schedule.contract == "strict" and u != r:
        yield error(
            "schedule.contract",
            f"strict means one update a version, but U = {u} and R = {r}",
            f"set schedule.update_batch_size to {r * k}, or schedule.contract to round",
        )
    elif r % u:
        yield warning(
            "schedule.groups_per_round",
            f"R = {r} is not a multiple of U = {u}: the last update of a round has {r % u} groups",
            f"set it to {r // u * u} or {(r // u + 1) * u}",
        )
    if config.rollout_workers > r:
        yield warning(
            "rollout_workers",
            f"{config.rollout_workers} workers share R = {r} groups: some stay idle",
            f"start at most {r}",
        )


def frontier(config: RunConfig) -> Iterator[Problem]:
    """Settings of frontier-group dispatch and of streaming."""
    schedule = config.schedule
    kind, width, least = schedule.kind, schedule.frontier_width, schedule.stream_min_groups
    given = schedule.model_fields_set
    if kind in ("cgp+fgd", "stream"):
        if width > schedule.groups_per_round:
            yield error(
                "schedule.frontier_width",
                f"F_w = {width} is wider than the round, R = {schedule.groups_per_round}",
                f"set it to at most {schedule.groups_per_round}, or schedule.kind to cgp",
            )
        elif kind == "cgp+fgd" and schedule.frontier_mode == "hard" and config.rollout_workers > width:
            yield warning(
                "schedule.frontier_width",
                f"{config.rollout_workers} workers share a hard frontier of F_w = {width} groups: some stay idle",
                f"set it to a multiple of {config.rollout_workers}, or schedule.frontier_mode to fill",
            )
    elif "frontier_width" in given:
        yield warning("schedule.frontier_width", f"{kind} has no frontier", "remove it, or set kind to cgp+fgd")
    if "frontier_mode" in given and kind != "cgp+fgd":
        yield warning("schedule.frontier_mode", f"it means nothing with {kind}", "remove it, or set kind to cgp+fgd")
    if kind == "stream":
        if least > schedule.groups_per_update:
            yield error(
                "schedule.stream_min_groups",
                f"{least} groups are more than an update has (U = {schedule.groups_per_update})",
                f"set it to at most {schedule.groups_per_update}",
            )
    elif "stream_min_groups" in given:
        yield warning("schedule.stream_min_groups", f"it means nothing with {kind}", "remove it, or set kind to stream")


def refill(config: RunConfig) -> Iterator[Problem]:
    """Dynamic sampling."""
    schedule, rows = config.schedule, config.data.rows
    if schedule.zero_variance != "refill":
        if "refill_limit" in schedule.model_fields_set:
            yield warning(
                "schedule.refill_limit",
                f"it means nothing with {schedule.zero_variance}",
                "remove it, or set schedule.zero_variance to refill",
            )
    elif rows is not None and rows < schedule.most_groups:
        yield warning(
            "schedule.refill_limit",
            f"a round may draw {schedule.most_groups} prompts, but there are {rows} rows: some may come twice in it",
            "lower it, or raise data.rows",
        )
