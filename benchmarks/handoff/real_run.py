"""A real run, both services as processes, and what its hand-overs added to its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.observe.timeline import RoundTimeline, Timelines

from .command import rolloutpipe
from .critical_path import critical_path

WARM = 1  # first rounds, in which caches and buffers grow, are left out


@dataclass(frozen=True, slots=True)
class RealRun:
    """Medians over a run's rounds."""

    schedule: str
    rounds: int
    groups_per_round: int
    samples_per_group: int
    round_s: float  # rollout start to train end
    blocked_ms: float
    first_ms: float
    last_ms: float
    handoff_share: float  # blocked, first and last group, of the round
    standstill_share: float  # all that the trainer stood still although what it needed was materialized
    announce_p50_ms: float  # materialized to announced, beside decoding
    worst_handoff_share: float


def measure_run(connections: Connections, folder: Path, name: str, settings: Sequence[str], rounds: int) -> RealRun:
    """Run the shipped configuration `name` with one rollout worker. Raises RolloutPipeError when it fails."""
    settings = [*settings, f"schedule.rounds={WARM + rounds}"]
    with as_file(files("rolloutpipe_configs") / name) as file:
        config = load_config(file, settings)
        sets = [part for setting in settings for part in ("--set", setting)]
        rolloutpipe(connections, folder, "run", str(file), *sets)
    lines = Timelines(LedgerReader(connections.redis.client(), config.run).events()).rounds()
    return summarise(config, lines[WARM:])


def summarise(config: RunConfig, lines: Sequence[RoundTimeline]) -> RealRun:
    paths = [critical_path(line, config.schedule) for line in lines]

    def middle(of: str) -> float:
        return float(median(getattr(path, of) for path in paths))

    return RealRun(
        schedule=config.schedule.kind,
        rounds=len(paths),
        groups_per_round=config.schedule.groups_per_round,
        samples_per_group=config.schedule.samples_per_group,
        round_s=middle("round_ms") / 1000,
        blocked_ms=middle("blocked_ms"),
        first_ms=middle("first_ms"),
        last_ms=middle("last_ms"),
        handoff_share=middle("handoff_share"),
        standstill_share=middle("standstill_share"),
        announce_p50_ms=median(_announcing(lines)),
        worst_handoff_share=max(path.handoff_share for path in paths),
    )


def _announcing(lines: Sequence[RoundTimeline]) -> list[int]:
    groups = [group for line in lines for group in line.groups.values()]
    pairs = [(group.first(GroupState.MATERIALIZED), group.first(GroupState.QUEUED)) for group in groups]
    return [end - start for start, end in pairs if start is not None and end is not None]
