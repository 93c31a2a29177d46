"""Rules for an engine that is SGLang servers."""

from __future__ import annotations

from collections.abc import Iterator

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.config.problems import Problem, error, warning


def servers(config: RunConfig) -> Iterator[Problem]:
    """Which there are, and what they cannot do."""
    engine, given = config.engine, config.engine.model_fields_set
    if engine.kind == "torch":
        for key in sorted(given & {"urls", "launch", "stall_s", "frontier_by"}):
            yield warning(f"engine.{key}", "it means nothing with torch", "remove it, or set engine.kind to sglang")
        return
    if bool(engine.urls) == (engine.launch is not None):
        yield error(
            "engine.urls",
            "sglang needs servers: either their addresses or how to start them",
            "set engine.urls or engine.launch, and not both",
        )
    if engine.urls and config.rollout_workers > 1:
        yield error(
            "engine.urls",
            f"{config.rollout_workers} workers would load weights into the same servers",
            "set rollout_workers to 1: one worker serves any number of servers",
        )
    if config.deterministic:
        yield error("deterministic", "SGLang's samples depend on what is batched with them", "set engine.kind to torch")
    if config.sampling.top_k == 1 and config.sampling.temperature != 1:
        yield error(
            "sampling.temperature",
            "with top_k 1 SGLang reports log-probabilities of logits that are not divided by it",
            "set it to 1",
        )


def order(config: RunConfig) -> Iterator[Problem]:
    """Who puts the frontier first."""
    engine, schedule = config.engine, config.schedule
    if engine.kind == "torch" or engine.frontier_by != "priority":
        return
    if schedule.kind == "cgp+fgd" and schedule.frontier_mode == "hard":
        yield error(
            "engine.frontier_by",
            "by priority all groups are sent, and a hard frontier holds them back",
            "set schedule.frontier_mode to fill, or engine.frontier_by to admission",
        )
    if config.rollout_workers > 1:
        yield error(
            "engine.frontier_by",
            f"by priority the first of {config.rollout_workers} workers would take every group",
            "set rollout_workers to 1: one worker serves any number of servers",
        )


def times(config: RunConfig) -> Iterator[Problem]:
    """A server's deadlines within those of a group."""
    engine = config.engine
    if engine.kind == "torch":
        return
    if engine.launch is not None and engine.launch.start_s >= config.deadlines.engine_s:
        yield warning(
            "engine.launch.start_s",
            f"the first load has deadlines.engine_s of {config.deadlines.engine_s:g} s, the start included",
            "set deadlines.engine_s above it",
        )
    if engine.stall_s >= config.deadlines.engine_s:
        yield warning(
            "engine.stall_s",
            f"a group is given up after deadlines.engine_s of {config.deadlines.engine_s:g} s, before its samples "
            "could go elsewhere",
            "set it below deadlines.engine_s",
        )
