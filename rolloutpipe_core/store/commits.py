"""The chain of commits of a run: what was trained into which version. S3 holds it; Redis is rebuilt from it.

    genesis.json (version 0) <── c000000.json (version 1) <── c000001.json (version 2) <── …
                              previous {key, sha256}

A commit is written with create-if-absent at its round's key, so that of two trainers exactly one wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rolloutpipe_core.domain import GroupState, WeightVersion, group_id, parse_group_id, validate_run_name
from rolloutpipe_core.errors import BadInput, CommitLost, Damaged, ObjectMissing
from rolloutpipe_core.store.canonical import canonical_json, sha256_hex
from rolloutpipe_core.store.objects import ObjectStore

COMMIT_NAME = re.compile(r"c(\d{6,})\.json")

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Record = TypeVar("Record", bound="Stored")


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Previous(Part):
    key: str
    sha256: Sha
    """Of the previous commit's bytes."""


class TrainerEpoch(Part):
    number: int
    nonce: str


class TrainedGroup(Part):
    group: str
    """`r000012-g0034`"""
    attempt: Annotated[int, Field(ge=1)]
    object: str
    sha256: Sha
    samples: Count
    tokens: Count
    """Prompt and response together."""


class TrainedUpdate(Part):
    index: Count
    samples: Count
    tokens: Count
    groups: tuple[TrainedGroup, ...]

    @model_validator(mode="after")
    def _sums(self) -> TrainedUpdate:
        for name in ("samples", "tokens"):
            if getattr(self, name) != sum(getattr(group, name) for group in self.groups):
                raise ValueError(f"update {self.index}: {name} is not the sum over its groups")
        return self


class EndedGroup(Part):
    group: str
    state: Literal[GroupState.FILTERED, GroupState.FAILED, GroupState.REJECTED]
    reason: str


class Checkpoint(Part):
    prefix: str
    manifest_sha: Sha


class Stored(Part):
    schema_version: Literal[1] = 1
    run: str
    lineage: Annotated[int, Field(ge=1)]
    weights_sha: Sha
    """Manifest hash of the version that this commit makes."""
    data_fingerprint: str
    config_sha: Sha

    def to_bytes(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))


class Genesis(Stored):
    """Written when the run is prepared: version 0."""

    @property
    def version(self) -> WeightVersion:
        return WeightVersion(0, self.weights_sha)

    @property
    def cursor(self) -> int:
        """Prompts taken from the seeded sequence so far."""
        return 0

    @property
    def key(self) -> str:
        return genesis_key(self.run)


class Commit(Stored):
    """One round: its updates with their groups, and the version that it makes, which is round + 1."""

    previous: Previous
    trainer_epoch: TrainerEpoch
    round: Count
    updates: tuple[TrainedUpdate, ...]
    ended: tuple[EndedGroup, ...]
    """Groups of the round that ended unused."""
    cohort_sha: Sha
    cursor: Count
    """Prompts taken from the seeded sequence up to the round's end."""
    checkpoint: Checkpoint | None
    """The trainer's state after the round; null when this round wrote none."""
    metrics: dict[str, float | None] = {}
    """As reported, null where a number was not finite (see `finite`)."""

    @property
    def version(self) -> WeightVersion:
        return WeightVersion(self.round + 1, self.weights_sha)

    @property
    def key(self) -> str:
        return commit_key(self.run, self.round)

    @property
    def groups(self) -> tuple[TrainedGroup, ...]:
        return tuple(group for update in self.updates for group in update.groups)

    @model_validator(mode="after")
    def _membership(self) -> Commit:
        if [update.index for update in self.updates] != list(range(len(self.updates))):
            raise ValueError("updates are not numbered 0, 1, 2, …")
        names = [group.group for group in self.groups] + [group.group for group in self.ended]
        for name in names:
            round, index = parse_group_id(name)
            if round != self.round or group_id(round, index) != name:
                raise ValueError(f"{name} is not a group of round {self.round}")
        if len(set(names)) != len(names):
            raise ValueError("a group occurs twice")
        return self


@dataclass(frozen=True, slots=True)
class Link:
    """A commit as it stands in the store."""

    key: str
    sha256: str
    commit: Genesis | Commit

    @property
    def as_previous(self) -> Previous:
        """What the next commit must name."""
        return Previous(key=self.key, sha256=self.sha256)

    @property
    def next_round(self) -> int:
        return self.commit.version.number


def genesis_key(run: str) -> str:
    return f"runs/{validate_run_name(run)}/commits/genesis.json"


def commit_key(run: str, round: int) -> str:
    return f"runs/{validate_run_name(run)}/commits/c{round:06d}.json"


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as a commit holds them: JSON knows neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class CommitChain:
    """The commits of one run. Raises the errors of ObjectStore besides its own."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self._store = store
        self._run = validate_run_name(run)

    def begin(self, genesis: Genesis) -> Link:
        """Write the genesis; the same genesis again is harmless, another raises CommitLost."""
        return self._create(genesis)

    def append(self, commit: Commit) -> Link:
        """Write the commit of its round. Raises CommitLost, with the winner's bytes, when another stands there,
        and Damaged when its predecessor is not the one it names."""
        self._check_link(commit)
        return self._create(commit)

    def head(self) -> Link | None:
        """The last commit, or None before the genesis. Reads two objects, and checks the link between them."""
        rounds = self._rounds()
        if rounds is None:
            return None
        if not rounds:
            return self._read_genesis()
        commit, link = self._read_commit(rounds[-1])
        self._check_link(commit)
        return link

    def genesis(self) -> Link:
        """The first link. Raises ObjectMissing before the run is prepared."""
        return self._read_genesis()

    def commit(self, round: int) -> Link:
        """One round's commit. Raises ObjectMissing when there is none."""
        return self._read_commit(round)[1]

    def read(self) -> list[Link]:
        """The whole chain from the genesis on, every link verified. Raises Damaged with the place of a break."""
        rounds = self._rounds()
        if rounds is None:
            return []
        links = [self._read_genesis()]
        for round in rounds:
            commit, link = self._read_commit(round)
            if commit.previous != links[-1].as_previous:
                raise _broken(commit, f"{links[-1].key} with sha256 {links[-1].sha256}")
            links.append(link)
        return links

    def tail(self, count: int | None, after: int = -1) -> list[Link]:
        """The newest `count` commits (None: all) of rounds behind `after`, oldest first, every link verified.

        Raises Damaged when the chain ends before `after`, which was a round of it.
        """
        rounds = self._rounds() or []
        if after >= len(rounds):
            end = commit_key(self._run, after)
            raise Damaged(f"the commit chain got shorter: {end} is missing", remedy="restore the bucket")
        newest = [round for round in rounds if round > after]
        links: list[Link] = []
        for round in newest if count is None else newest[-count:]:
            commit, link = self._read_commit(round)
            if not links:
                self._check_link(commit)
            elif commit.previous != links[-1].as_previous:
                raise _broken(commit, f"{links[-1].key} with sha256 {links[-1].sha256}")
            links.append(link)
        return links

    def _create(self, commit: Genesis | Commit) -> Link:
        if commit.run != self._run:
            raise BadInput("commit of another run", given=commit.run, expected=self._run)
        data = commit.to_bytes()
        result = self._store.put_if_absent(commit.key, data)
        if not result.ours:
            raise CommitLost(f"another commit stands at {commit.key}", winner=result.stored)
        return Link(commit.key, sha256_hex(data), commit)

    def _rounds(self) -> list[int] | None:
        """Rounds with a commit, proven to be 0, 1, 2, …; None without a genesis."""
        folder = genesis_key(self._run).removesuffix("genesis.json")
        names = [info.key.removeprefix(folder) for info in self._store.list(folder)]
        if not names:
            return None
        matches = [COMMIT_NAME.fullmatch(name) for name in names if name != "genesis.json"]
        rounds = sorted(int(match[1]) for match in matches if match)
        for expected, round in enumerate(rounds):
            if round != expected:
                raise Damaged(f"the commit chain has a hole: {commit_key(self._run, expected)} is missing")
        if "genesis.json" not in names:
            raise Damaged(f"the commit chain has no beginning: {folder}genesis.json is missing")
        return rounds

    def _read_genesis(self) -> Link:
        key = genesis_key(self._run)
        data = self._store.get(key)
        return Link(key, sha256_hex(data), self._parse(Genesis, key, data))

    def _read_commit(self, round: int) -> tuple[Commit, Link]:
        key = commit_key(self._run, round)
        data = self._store.get(key)
        commit = self._parse(Commit, key, data)
        if commit.round != round:
            raise Damaged(f"commit of another round: {key}", given=f"round {commit.round}", expected=f"round {round}")
        return commit, Link(key, sha256_hex(data), commit)

    def _parse(self, model: type[Record], key: str, data: bytes) -> Record:
        try:
            commit = model.model_validate_json(data)
        except (ValidationError, BadInput) as error:
            raise Damaged(f"not a commit: {key}", given=str(error)) from error
        if commit.run != self._run:
            raise Damaged(f"commit of another run: {key}", given=commit.run, expected=self._run)
        return commit

    def _check_link(self, commit: Commit) -> None:
        """The predecessor must be the round before, with the bytes that the commit names."""
        expected = commit_key(self._run, commit.round - 1) if commit.round else genesis_key(self._run)
        try:
            found = sha256_hex(self._store.get(expected))
        except ObjectMissing as error:
            raise _broken(commit, f"{expected}, which is missing") from error
        if commit.previous != Previous(key=expected, sha256=found):
            raise _broken(commit, f"{expected} with sha256 {found}")


def _broken(commit: Commit, found: str) -> Damaged:
    return Damaged(
        f"the commit chain breaks at {commit.key}",
        given=f"it follows {commit.previous.key} with sha256 {commit.previous.sha256}",
        expected=found,
    )
