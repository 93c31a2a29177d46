"""What an audit finds and counts, and the facts that its parts compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from rolloutpipe_core.domain import WeightVersion


class Objects(Protocol):
    """What an audit needs of the object store."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectMissing."""

    def list(self, prefix: str) -> Iterator[Any]:
        """Entries with a `key` and their size in `bytes`, in the order of their keys."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    check: str  # short and stable, for scripts: "chain-link", "object-hash", ...
    where: str  # commit, group, object or version
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Membership:
    """A group as its commit holds it."""

    group: str
    attempt: int
    update: int
    place: int
    object: str
    sha256: str
    samples: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Ending:
    group: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommittedRound:
    """One commit of the chain, read without the trainer's own code."""

    key: str
    sha256: str  # of its bytes
    run: str
    lineage: int
    epoch: int
    round: int
    sampled: WeightVersion  # what the commit before it published
    published: WeightVersion
    trained: tuple[Membership, ...]
    ended: tuple[Ending, ...]
    updates: Mapping[int, tuple[int, int, int]]  # index -> (groups, samples, tokens)
    cohort_sha: str
    cursor: int  # prompts taken from the seeded sequence up to the round's end
    data_fingerprint: str

    @property
    def groups(self) -> frozenset[str]:
        """All groups of the round, trained or ended."""
        return frozenset({*(member.group for member in self.trained), *(end.group for end in self.ended)})


@dataclass(frozen=True, slots=True)
class Chain:
    """The genesis and the committed rounds, consecutive from round 0."""

    genesis_key: str
    genesis_sha256: str
    first: WeightVersion
    rounds: tuple[CommittedRound, ...]

    @property
    def versions(self) -> list[WeightVersion]:
        """Every version that the chain makes, by number."""
        return [self.first, *(commit.published for commit in self.rounds)]

    def cursor_before(self, round: int) -> int:
        """Prompts taken from the seeded sequence by the rounds before."""
        return self.rounds[round - 1].cursor if round else 0

    def commit_of(self, version: int) -> tuple[str, str]:
        """(key, sha256) of the commit that makes a version. Raises IndexError."""
        if version == 0:
            return self.genesis_key, self.genesis_sha256
        commit = self.rounds[version - 1]
        return commit.key, commit.sha256


@dataclass(slots=True)
class Audit:
    """The result: no findings, and what was looked at."""

    run: str
    findings: list[Finding] = field(default_factory=list)
    commits: int = 0
    groups_trained: int = 0
    groups_ended: int = 0
    events: int = 0
    rounds_by_object: list[int] = field(default_factory=list)
    rounds_by_hash: list[int] = field(default_factory=list)  # objects no longer kept: the commit's hashes stand alone
    rounds_in_ledger: int = 0  # committed rounds that the ledger's history covers
    groups_mended: int = 0  # trained by a commit whose assignment Redis had lost
    manifests: int = 0
    manifests_retired: int = 0

    @property
    def passed(self) -> bool:
        return not self.findings

    def report(self, check: str, where: str, what: str) -> None:
        self.findings.append(Finding(check, where, what))

    def to_json(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}
