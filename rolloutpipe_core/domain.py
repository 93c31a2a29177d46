"""The nouns of RolloutPipe: what moves between rollout and trainer, with shapes at the fields.

Prompt ──K samples──> Group ──announced as──> GroupRef ──trained into──> WeightVersion
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolloutpipe_core.errors import BadInput

RUN_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
GROUP_ID = re.compile(r"r(\d{6,})-g(\d{4,})")


class GroupState(StrEnum):
    """Where a group is. The first seven come in this order; the last three are ends."""

    DEFERRED = "deferred"
    ADMITTED = "admitted"
    SERVING_COMPLETE = "serving_complete"
    MATERIALIZED = "materialized"
    QUEUED = "queued"
    CLAIMED = "claimed"
    TRAINED = "trained"
    FILTERED = "filtered"
    FAILED = "failed"
    REJECTED = "rejected"


LEASED_STATES = (GroupState.ADMITTED, GroupState.SERVING_COMPLETE, GroupState.MATERIALIZED)
ENDED_STATES = (GroupState.FILTERED, GroupState.FAILED, GroupState.REJECTED)


class RoundState(StrEnum):
    OPEN = "open"
    GENERATING = "generating"
    DRAINED = "drained"
    TRAINED = "trained"
    COMMITTED = "committed"
    PUBLISHED = "published"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class WeightVersion(NamedTuple):
    """One published set of weights. Two versions are the same only if both parts are."""

    number: int
    sha: str  # sha256 of the weights' manifest.json, 64 hex digits

    def __str__(self) -> str:
        return f"v{self.number}@{self.sha[:12]}"


class VersionSpan(NamedTuple):
    """Response tokens `start <= position < end` were sampled under `version`."""

    version: WeightVersion
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data set.

    `text` goes to the model as it is; `messages` goes through its chat template. Exactly one is set.
    """

    id: str  # unique in the data set, for example "gsm8k-train-000017"
    answer: str  # what the verifier compares with
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None  # ({"role": "user", "content": "..."},)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One response as the engine returned it, never re-tokenised."""

    response_ids: NDArray[np.int32]  # [T], includes the stop id when one was sampled
    behavior_logprobs: NDArray[np.float32]  # [T], log-softmax(logits / T) of each sampled id
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]  # cover [0, T)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One trainable response of a group."""

    index: int  # 0 <= index < K
    prompt_ids: NDArray[np.int32]  # [P]
    response_ids: NDArray[np.int32]  # [T]
    behavior_logprobs: NDArray[np.float32]  # [T]
    loss_mask: NDArray[np.uint8]  # [T], 1 = the token is trained
    reward: float  # in [0, 1]
    advantage: float
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    text: str | None = None  # the response's text, for people; never for training
    reason: str | None = None  # why the verifier gave this reward, for people

    @property
    def tokens(self) -> int:
        """Length of prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Group:
    """One prompt's K samples: the unit that is handed over, gated, assigned and trained."""

    run: str
    lineage: int
    round: int
    index: int  # place in the round's cohort: the submission order
    attempt: int  # 1 for the first admission
    version: WeightVersion
    prompt_id: str
    samples: tuple[Sample, ...]

    @property
    def id(self) -> str:
        return group_id(self.round, self.index)

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The FIFO's entry for a group: all the trainer needs to fetch it and to judge it."""

    group: str  # "r000012-g0034"
    round: int
    index: int
    lineage: int
    attempt: int
    version: WeightVersion
    object: str  # key in the bucket
    sha256: str  # of the object's bytes
    samples: int
    tokens: int  # prompt and response tokens of all samples
    reward_mean: float
    reward_std: float


def group_id(round: int, index: int) -> str:
    """`group_id(12, 34) == "r000012-g0034"`."""
    return f"r{round:06d}-g{index:04d}"


def parse_group_id(text: str) -> tuple[int, int]:
    """Return (round, index) of a group id, or raise BadInput."""
    match = GROUP_ID.fullmatch(text)
    if match is None:
        raise BadInput("not a group id", given=text, expected="a form like r000012-g0034")
    return int(match[1]), int(match[2])


def validate_run_name(name: str) -> str:
    """Return the name, or raise BadInput: it becomes part of Redis keys, object keys and DNS names."""
    if RUN_NAME.fullmatch(name) is None:
        raise BadInput(
            "not a run name",
            given=repr(name),
            expected="1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit",
            remedy="rename the run in the config (key `run`)",
        )
    return name
