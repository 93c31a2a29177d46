"""Numbers and states as people read them."""

from __future__ import annotations

from itertools import groupby

from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.observe.timeline import GroupTimeline, RoundTimeline

STATE_WORDS = {
    GroupState.DEFERRED: "deferred",
    GroupState.ADMITTED: "decoding",
    GroupState.SERVING_COMPLETE: "scoring",
    GroupState.MATERIALIZED: "upload",
    GroupState.QUEUED: "in the FIFO",
    GroupState.CLAIMED: "in the update",
}


def seconds(value: float | None) -> str:
    """`0.0123 -> "12 ms"`, `1.234 -> "1.23 s"`, `75 -> "75.0 s"`, None -> "-"."""
    if value is None:
        return "-"
    if abs(value) < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if abs(value) < 10 else f"{value:.1f} s"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits: `0.00123`, `1.2e-06`, `45.1`, None -> "-"."""
    return "-" if value is None else f"{value:.{digits}g}"


def fixed(value: float | None) -> str:
    """Three decimals, for rewards: `0.850`, None -> "-"."""
    return "-" if value is None else f"{value:.3f}"


def group_words(line: RoundTimeline, group: GroupTimeline) -> str:
    """One line about a group: where its time went, what it scored, where it is."""
    end = line.end_ms() or group.moves[-1].at_ms
    stays = sorted(
        (stay for stay in line.stays(group, end) if stay.state in STATE_WORDS),
        key=lambda s: list(GroupState).index(s.state),
    )
    spans = [
        f"{STATE_WORDS[state]} {seconds(sum(stay.end - stay.start for stay in same) / 1000)}"
        for state, same in groupby(stays, key=lambda stay: stay.state)
    ]
    facts = [group.id, group.state.value, *spans]
    if group.update is not None:
        facts.append(f"update {group.update}")
    if group.reward_mean is not None:
        facts.append(f"reward {group.reward_mean:.3g}")
    if group.tokens:
        facts.append(f"{group.tokens} tokens")
    if group.attempts > 1:
        facts.append(f"{group.attempts} attempts")
    if group.moves[-1].reason:
        facts.append(group.moves[-1].reason)
    return " · ".join(facts)
