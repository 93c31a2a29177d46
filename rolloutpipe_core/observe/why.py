"""One group's history in words: what happened to it, when, by whom, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from rolloutpipe_core.domain import ENDED_STATES, GroupState, parse_group_id
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.ledger.events import (
    AnnouncementRefused,
    EngineNoted,
    Event,
    GroupMoved,
    RoundMoved,
    UpdateSealed,
    UpdateStepped,
)
from rolloutpipe_core.observe.words import seconds


@dataclass(frozen=True, slots=True)
class Step:
    at_s: float  # since the group was created
    after_s: float  # since the step before
    actor: str
    words: str


@dataclass(frozen=True, slots=True)
class GroupHistory:
    group: str
    verdict: str
    steps: tuple[Step, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def group_history(events: Iterable[Event], group: str) -> GroupHistory:
    """The history of one group. Raises BadInput when the ledger does not know it."""
    own, last = _own_events(events, group)
    if last is None:
        raise BadInput("no such group in the ledger", given=group, remedy="`rolloutpipe groups` lists those of a round")
    start = own[0].at_ms
    before = [start, *(event.at_ms for event in own)]
    steps = [
        Step((event.at_ms - start) / 1000, (event.at_ms - earlier) / 1000, event.actor, _words(event))
        for event, earlier in zip(own, before, strict=False)
    ]
    return GroupHistory(group, _verdict(last), tuple(steps))


def history_view(history: GroupHistory) -> Table:
    """The history for a terminal."""
    table = Table(
        box=None, header_style="bright_black", pad_edge=False, title=Text(history.verdict, "bold"), title_justify="left"
    )
    for title in ("at", "after"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("who", style="bright_black")
    table.add_column("what")
    for step in history.steps:
        # As Text: a reason may hold brackets, which rich takes for markup in a str.
        table.add_row(seconds(step.at_s), f"+{seconds(step.after_s)}", step.actor, Text(step.words))
    return table


def _own_events(events: Iterable[Event], group: str) -> tuple[list[Event], GroupMoved | None]:
    """Events about the group, its worker's engine while it is there, its update while it is in one, its round's end."""
    round = parse_group_id(group)[0]
    own: list[Event] = []
    last: GroupMoved | None = None
    update = ""
    for event in events:
        match event:
            case GroupMoved(group=moved) if moved == group:
                last, update = event, event.details.get("update", "")
                own.append(event)
            case AnnouncementRefused(group=refused) if refused == group:
                own.append(event)
            case EngineNoted() if last and last.after is GroupState.ADMITTED and last.actor == event.actor:
                own.append(event)
            case UpdateSealed() | UpdateStepped() if event.round == round and str(event.update) == update:
                own.append(event)
            case RoundMoved(round=moved) if moved == round and own and event.after in ("trained", "published"):
                own.append(event)
    return own, last


def _words(event: Event) -> str:
    match event:
        case GroupMoved():
            return _moved(event)
        case AnnouncementRefused():
            return f"an announcement of attempt {event.attempt} was put aside: {event.reason}"
        case EngineNoted():
            return f"{event.server}: {event.what}"
        case UpdateSealed():
            return (
                f"update {event.update} is final: {event.groups} groups, {event.samples} samples, {event.tokens} tokens"
            )
        case UpdateStepped():
            how = "skipped a gradient that was not finite" if event.skipped else "took the optimizer's step"
            return f"update {event.update} {how}{' (replayed after a restart)' if event.replay else ''}"
        case RoundMoved():
            return f"round {event.round} is {event.after}"
    raise TypeError(f"no words for {type(event).__name__}")


def _moved(event: GroupMoved) -> str:
    details = event.details
    match event.after:
        case GroupState.DEFERRED if event.before is None:
            prompt = f" with prompt {details['prompt']}" if "prompt" in details else ""
            when = f"in place of {details['replaces']}" if "replaces" in details else f"when round {event.round} opened"
            return f"created{prompt} {when}"
        case GroupState.DEFERRED:
            return f"re-admitted: attempt {event.attempt} was lost while {_state(event.before)}: {event.reason}"
        case GroupState.ADMITTED:
            return f"admitted: attempt {event.attempt}"
        case GroupState.SERVING_COMPLETE:
            return "all its responses are finished: it left the frontier"
        case GroupState.MATERIALIZED:
            return "scored, with its advantages"
        case GroupState.QUEUED if event.before is GroupState.CLAIMED:
            return f"its assignment was taken back: {event.reason}"
        case GroupState.QUEUED:
            size = f"{details['samples']} samples, {details['tokens']} tokens"
            reward = f"reward {details['reward_mean']} (std {details['reward_std']})"
            return f"announced: {size}, {reward}, sampled by v{details['weight_version']}, object {details['object']}"
        case GroupState.CLAIMED:
            return f"assigned to update {details['update']}, place {details['update_index']}"
        case GroupState.TRAINED:
            return "trained: the commit that holds it stands"
        case _:
            replaced = f", replaced by {details['replaced_by']}" if "replaced_by" in details else ""
            return f"ended {event.after}: {event.reason}{replaced}"


def _state(state: GroupState | None) -> str:
    return "unknown" if state is None else state.value


def _verdict(last: GroupMoved) -> str:
    attempts = f"after {last.attempt} attempts" if last.attempt > 1 else "with the first attempt"
    if last.after is GroupState.TRAINED:
        return f"{last.group} was trained, {attempts}"
    if last.after in ENDED_STATES:
        return f"{last.group} ended {last.after}: {last.reason}"
    return f"{last.group} is {last.after}"
