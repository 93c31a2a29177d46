"""What a finished run left: per round its groups as they were trained, and the versions that they made."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rolloutpipe_core.domain import Group, Sample
from rolloutpipe_core.errors import Damaged
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.commits import Commit, CommitChain, TrainedGroup
from rolloutpipe_core.store.groups import decode_group
from rolloutpipe_core.store.objects import ObjectStore

ARRAYS = ("prompt_ids", "response_ids", "behavior_logprobs", "loss_mask")
FACTS = ("reward", "advantage", "finish_reason")


@dataclass(frozen=True, slots=True)
class RoundEvidence:
    round: int
    groups: tuple[Group, ...]  # trained ones, in submission order
    ended: dict[str, str]  # group -> how it ended unused, with the reason
    weights: str  # manifest sha256 of the version that the round made
    state: str | None  # the same of the optimizer's state; None when the round wrote none

    @property
    def samples_sha(self) -> str:
        """sha256 of all that was sampled, and of nothing that names the run or its timing."""
        digest = hashlib.sha256()
        for group in self.groups:
            digest.update(f"{group.id} {group.prompt_id}\n".encode())
            for sample in group.samples:
                _add_sample(digest, sample)
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class RunEvidence:
    run: str
    genesis: str  # manifest sha256 of version 0
    rounds: tuple[RoundEvidence, ...]


def read_evidence(store: ObjectStore, run: str) -> RunEvidence:
    """All of a run that is complete. Raises Damaged when the chain or a group is not what was committed."""
    genesis, *links = CommitChain(store, run).read()
    commits = [link.commit for link in links if isinstance(link.commit, Commit)]
    return RunEvidence(run, genesis.commit.weights_sha, tuple(_read_round(store, commit) for commit in commits))


def _read_round(store: ObjectStore, commit: Commit) -> RoundEvidence:
    groups = [_read_group(store, trained) for trained in commit.groups]
    return RoundEvidence(
        round=commit.round,
        groups=tuple(sorted(groups, key=lambda group: group.index)),
        ended={ended.group: f"{ended.state}: {ended.reason}" for ended in commit.ended},
        weights=commit.weights_sha,
        state=commit.checkpoint.manifest_sha if commit.checkpoint else None,
    )


def _read_group(store: ObjectStore, trained: TrainedGroup) -> Group:
    data = store.get(trained.object)
    if sha256_hex(data) != trained.sha256:
        raise Damaged(f"not the committed group: {trained.object}", expected=f"sha256 {trained.sha256}")
    return decode_group(data)


def _add_sample(digest: hashlib._Hash, sample: Sample) -> None:
    facts: Sequence[object] = [getattr(sample, name) for name in FACTS]
    digest.update(f"{sample.index} {' '.join(map(str, facts))}\n".encode())
    for name in ARRAYS:
        array = getattr(sample, name)
        digest.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
        digest.update(array.tobytes())
