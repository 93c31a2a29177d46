"""What rank 0 and its followers send one another, as JSON: each pair of functions is there and back.

Orders     {do, number, forget: [numbers of reads], ...}
             read {ref, expected}, fetch {start}, load, begin_round, begin_update {update},
             accumulate {groups: [numbers of reads]}, step, export, save, end (the one without an answer)
Answers    {number}, {number, result} to step, {number, error} to read and fetch
           {alive: true}, unasked, again and again; {failed: why, late: true when others were}: the rank ends
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rolloutpipe_core import errors
from rolloutpipe_core.domain import GroupRef, WeightVersion
from rolloutpipe_core.errors import RankLost, RolloutPipeError
from rolloutpipe_core.gate import Expectation
from rolloutpipe_core.store.commits import Checkpoint

from ..rank import Start

Message = dict[str, Any]


def start_message(start: Start) -> Message:
    checkpoint = start.checkpoint.model_dump() if start.checkpoint else None
    return {"weights": start.weights, "reference": start.reference, "checkpoint": checkpoint}


def start_from(message: Message) -> Start:
    kept = message["checkpoint"]
    return Start(message["weights"], message["reference"], Checkpoint.model_validate(kept) if kept else None)


def read_message(ref: GroupRef, expected: Expectation) -> Message:
    return {"ref": asdict(ref), "expected": asdict(expected)}


def ref_from(message: Message) -> GroupRef:
    return GroupRef(**message | {"version": WeightVersion(*message["version"])})


def expectation_from(message: Message) -> Expectation:
    return Expectation(**message | {"version": WeightVersion(*message["version"])})


def to_message(error: RolloutPipeError) -> dict[str, Any]:
    """As JSON; `from_message` makes the same error of it."""
    parts = {"what": error.what, "given": error.given, "expected": error.expected, "remedy": error.remedy}
    return {"kind": type(error).__name__, **parts}


def from_message(message: Mapping[str, Any]) -> RolloutPipeError:
    """The error that another rank had; of a kind that is not known here it is a RankLost."""
    kind = getattr(errors, str(message["kind"]), None)
    known = isinstance(kind, type) and issubclass(kind, RolloutPipeError)
    made: RolloutPipeError = (kind if known else RankLost)(  # type: ignore[misc]
        *(str(message[part]) for part in ("what", "given", "expected", "remedy"))
    )
    return made
