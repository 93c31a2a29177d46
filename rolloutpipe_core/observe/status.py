"""A run's present state: what `status`, the live display and the Prometheus exporter show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rolloutpipe_core.domain import ENDED_STATES, GroupState
from rolloutpipe_core.ledger.reader import LedgerReader

STALE_AFTER_MS = 5000
"""A service not seen for this long is shown as stale; its hash goes after ten missed heartbeats."""

SCORED = (GroupState.QUEUED, GroupState.CLAIMED, GroupState.TRAINED, GroupState.FILTERED)
CONSUMED = (GroupState.CLAIMED, GroupState.TRAINED, *ENDED_STATES)
ROLES = ("rollout", "trainer")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What a service last said of itself. Ages are seconds before the status was taken."""

    name: str
    role: str
    host: str
    pid: int
    doing: str
    waiting_for: str  # "" = it does not wait
    waiting_s: float | None
    deadline_in_s: float | None  # seconds until its wait gives up; negative: overdue
    seen_s: float
    stale: bool


@dataclass(frozen=True, slots=True)
class Blocker:
    """The group that updates in submission order wait for."""

    group: str
    state: str
    worker: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """What the trainer's housekeeper did: see docs/retention.md."""

    last_s: float  # since its last pass
    error: str  # of that pass, "" = it went through
    deleted_objects: int  # in the run's whole life
    deleted_bytes: int


@dataclass(frozen=True, slots=True)
class Status:
    run: str
    state: str  # active, stopped, or "" when the run is not prepared
    stop_reason: str
    version: int | None
    version_sha: str
    lineage: int | None
    trainer_epoch: int | None
    round: int | None  # the newest opened round; what follows is about it
    round_state: str
    schedule: str
    generation: int
    groups: Mapping[str, int]  # by state, all states, in their order
    updates_sealed: int
    reward_mean: float | None  # over the groups scored so far
    head_of_line: Blocker | None
    fifo_depth: int  # announced and not acknowledged
    pending: int  # of these, read by the trainer
    housekeeping: Housekeeping | None  # None: no pass yet
    services: tuple[ServiceStatus, ...]
    missing_roles: tuple[str, ...]  # roles that no live service holds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status(reader: LedgerReader) -> Status:
    """One look at the run: about ten round trips. Raises RedisUnavailable."""
    run = reader.run_state()
    number = int(run["round"]) if "round" in run else None
    return build_status(
        reader.keys.name,
        run,
        {} if number is None else reader.round_state(number),
        [] if number is None else reader.groups(number),
        reader.services(),
        fifo_depth=reader.fifo_depth(),
        pending=len(reader.pending()),
        now_ms=reader.server_time_ms(),
    )


def build_status(
    name: str,
    run: Mapping[str, str],
    round: Mapping[str, str],
    groups: Sequence[Mapping[str, str]],
    services: Sequence[Mapping[str, str]],
    *,
    fifo_depth: int,
    pending: int,
    now_ms: int,
) -> Status:
    """The status from hashes as Redis holds them; `now_ms` is the server's time."""
    seen = tuple(service_status(service, now_ms) for service in services)
    alive = {service.role for service in seen if not service.stale}
    return Status(
        run=name,
        state=run.get("state", ""),
        stop_reason=run.get("stop_reason", ""),
        version=_whole(run.get("version")),
        version_sha=run.get("version_sha", ""),
        lineage=_whole(run.get("lineage")),
        trainer_epoch=_whole(run.get("trainer_epoch")),
        round=_whole(run.get("round")),
        round_state=round.get("state", ""),
        schedule=round.get("schedule", ""),
        generation=int(round.get("generation", 0)),
        groups={state.value: int(round.get(f"n_{state}", 0)) for state in GroupState},
        updates_sealed=int(round.get("updates_sealed", 0)),
        reward_mean=reward_so_far(groups),
        head_of_line=head_of_line(groups, now_ms) if round.get("order") == "submission" else None,
        fifo_depth=fifo_depth,
        pending=pending,
        housekeeping=housekeeping(run, now_ms),
        services=seen,
        missing_roles=tuple(role for role in ROLES if role not in alive),
    )


def housekeeping(run: Mapping[str, str], now_ms: int) -> Housekeeping | None:
    """The housekeeper's last word in the run's hash."""
    if "housekeeping_ms" not in run:
        return None
    return Housekeeping(
        last_s=max(now_ms - int(run["housekeeping_ms"]), 0) / 1000,
        error=run["housekeeping_error"],
        deleted_objects=int(run.get("deleted_objects", 0)),
        deleted_bytes=int(run.get("deleted_bytes", 0)),
    )


def service_status(fields: Mapping[str, str], now_ms: int) -> ServiceStatus:
    """A service's hash as a status; ages are cut at 0, for clocks differ a little."""
    waiting_for = fields.get("waiting_for", "")
    since, deadline = _whole(fields.get("waiting_since_ms")), _whole(fields.get("deadline_ms"))
    age_ms = max(now_ms - int(fields["seen_ms"]), 0)
    return ServiceStatus(
        name=fields["name"],
        role=fields["role"],
        host=fields["host"],
        pid=int(fields["pid"]),
        doing=fields["doing"],
        waiting_for=waiting_for,
        waiting_s=max(now_ms - since, 0) / 1000 if waiting_for and since is not None else None,
        deadline_in_s=(deadline - now_ms) / 1000 if waiting_for and deadline is not None else None,
        seen_s=age_ms / 1000,
        stale=age_ms > STALE_AFTER_MS,
    )


def reward_so_far(groups: Sequence[Mapping[str, str]]) -> float | None:
    """Mean reward over the scored groups; every group of a round has the same number of samples."""
    scores = [float(group["reward_mean"]) for group in groups if group["state"] in SCORED and "reward_mean" in group]
    return sum(scores) / len(scores) if scores else None


def head_of_line(groups: Sequence[Mapping[str, str]], now_ms: int) -> Blocker | None:
    """The first group in submission order that is neither consumed nor ready, if one behind it is ready."""
    open = [group for group in groups if group["state"] not in CONSUMED]
    if not open or open[0]["state"] == GroupState.QUEUED:
        return None
    if all(group["state"] != GroupState.QUEUED for group in open):
        return None
    head = open[0]
    since_s = max(now_ms - int(head["since_ms"]), 0) / 1000
    return Blocker(head["id"], head["state"], head.get("worker", ""), since_s)


def _whole(text: str | None) -> int | None:
    return int(text) if text else None
