"""The commit chain: unbroken from the genesis, consecutive, each group in it once.

It reads the commits' JSON as it stands, without the models and the checks with which the trainer wrote it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rolloutpipe_core.domain import WeightVersion, parse_group_id
from rolloutpipe_core.errors import BadInput, ObjectMissing
from rolloutpipe_core.observe.audit.model import Audit, Chain, CommittedRound, Ending, Membership, Objects


def read_chain(store: Objects, run: str, audit: Audit) -> Chain | None:
    """The chain up to its first unreadable commit; None without a readable genesis."""
    genesis_key = f"runs/{run}/commits/genesis.json"
    genesis = _read(store, genesis_key, audit)
    if genesis is None:
        return None
    genesis_sha256, facts = genesis
    if facts.get("run") != run or "weights_sha" not in facts:
        audit.report("chain-run", genesis_key, "is no genesis of this run")
        return None
    first = WeightVersion(0, str(facts["weights_sha"]))
    rounds: list[CommittedRound] = []
    previous_key, previous_sha, sampled = genesis_key, genesis_sha256, first
    for number in range(_count_commits(store, run, audit)):
        key = commit_key(run, number)
        found = _read(store, key, audit)
        if found is None:
            break
        sha256, facts = found
        try:
            commit = _committed_round(key, sha256, facts, sampled)
        except (KeyError, TypeError, ValueError) as error:
            audit.report("commit-unreadable", key, f"{type(error).__name__}: {error}")
            break
        _check_link(audit, commit, facts, previous_key, previous_sha, run, number)
        if rounds:
            _check_order(audit, rounds[-1], commit)
        rounds.append(commit)
        previous_key, previous_sha, sampled = key, sha256, commit.published
    _check_membership(audit, rounds)
    _check_cursors(audit, rounds)
    audit.commits = len(rounds) + 1
    audit.groups_trained = sum(len(commit.trained) for commit in rounds)
    audit.groups_ended = sum(len(commit.ended) for commit in rounds)
    return Chain(genesis_key, genesis_sha256, first, tuple(rounds))


def commit_key(run: str, round: int) -> str:
    return f"runs/{run}/commits/c{round:06d}.json"


def _count_commits(store: Objects, run: str, audit: Audit) -> int:
    """How many commits follow the genesis without a gap."""
    prefix = f"runs/{run}/commits/"
    names = {entry.key.removeprefix(prefix) for entry in store.list(prefix)} - {"genesis.json"}
    count = 0
    while f"c{count:06d}.json" in names:
        count += 1
    for stray in sorted(names - {f"c{number:06d}.json" for number in range(count)}):
        audit.report("chain-gap", prefix + stray, f"follows no commit: round {count} has none")
    return count


def _read(store: Objects, key: str, audit: Audit) -> tuple[str, dict[str, Any]] | None:
    try:
        data = store.get(key)
        return hashlib.sha256(data).hexdigest(), dict(json.loads(data))
    except ObjectMissing:
        audit.report("commit-missing", key, "there is no such object")
    except (ValueError, TypeError) as error:
        audit.report("commit-unreadable", key, str(error))
    return None


def _committed_round(key: str, sha256: str, facts: Mapping[str, Any], sampled: WeightVersion) -> CommittedRound:
    updates = [(int(update["index"]), update) for update in facts["updates"]]
    trained = [
        Membership(
            group=str(group["group"]),
            attempt=int(group["attempt"]),
            update=index,
            place=place,
            object=str(group["object"]),
            sha256=str(group["sha256"]),
            samples=int(group["samples"]),
            tokens=int(group["tokens"]),
        )
        for index, update in updates
        for place, group in enumerate(update["groups"])
    ]
    return CommittedRound(
        key=key,
        sha256=sha256,
        run=str(facts["run"]),
        lineage=int(facts["lineage"]),
        epoch=int(facts["trainer_epoch"]["number"]),
        round=int(facts["round"]),
        sampled=sampled,
        published=WeightVersion(int(facts["round"]) + 1, str(facts["weights_sha"])),
        trained=tuple(trained),
        ended=tuple(Ending(str(end["group"]), str(end["state"]), str(end["reason"])) for end in facts["ended"]),
        updates={index: (len(u["groups"]), int(u["samples"]), int(u["tokens"])) for index, u in updates},
        cohort_sha=str(facts["cohort_sha"]),
        cursor=int(facts["cursor"]),
        data_fingerprint=str(facts["data_fingerprint"]),
    )


def _check_link(
    audit: Audit, commit: CommittedRound, facts: Mapping[str, Any], key: str, sha256: str, run: str, number: int
) -> None:
    if facts["previous"] != {"key": key, "sha256": sha256}:
        audit.report("chain-link", commit.key, f"follows {facts['previous']}, not {key} with sha256 {sha256}")
    if commit.run != run:
        audit.report("chain-run", commit.key, f"belongs to run {commit.run}")
    if commit.round != number:
        audit.report("chain-round", commit.key, f"is of round {commit.round}")


def _check_order(audit: Audit, before: CommittedRound, commit: CommittedRound) -> None:
    if commit.lineage < before.lineage:
        audit.report("chain-lineage", commit.key, f"lineage {commit.lineage} after {before.lineage}")
    if commit.epoch < before.epoch:
        audit.report("chain-epoch", commit.key, f"trainer epoch {commit.epoch} after {before.epoch}")
    if commit.data_fingerprint != before.data_fingerprint:
        audit.report("chain-data", commit.key, "its data are not those of the commit before")


def _check_membership(audit: Audit, rounds: list[CommittedRound]) -> None:
    """Exactly once: no group twice in the whole chain, whether trained or ended; sums are the groups' sums."""
    seen: dict[str, str] = {}
    for commit in rounds:
        for group, place in _places(commit):
            if group in seen:
                audit.report("group-twice", group, f"{seen[group]} and {place}")
            seen[group] = place
            if _round_of(group) != commit.round:
                audit.report("group-foreign", group, f"{place}, but it is not of round {commit.round}")
        if sorted(commit.updates) != list(range(len(commit.updates))):
            audit.report("updates-gap", commit.key, f"its updates are {sorted(commit.updates)}")
        sums = dict.fromkeys(commit.updates, (0, 0))
        for member in commit.trained:
            samples, tokens = sums[member.update]
            sums[member.update] = (samples + member.samples, tokens + member.tokens)
        for update, (_, *said) in commit.updates.items():
            if sums[update] != tuple(said):
                what = f"says {tuple(said)}, groups {sums[update]}"
                audit.report("update-sums", f"{commit.key} update {update}", what)


def _check_cursors(audit: Audit, rounds: list[CommittedRound]) -> None:
    """Each round took the next prompts of the sequence, one for each of its groups."""
    cursor = 0
    for commit in rounds:
        if commit.cursor - cursor != len(commit.groups):
            what = f"took the prompts {cursor} to {commit.cursor} of the sequence for {len(commit.groups)} groups"
            audit.report("chain-cursor", commit.key, what)
        cursor = commit.cursor


def _places(commit: CommittedRound) -> Iterator[tuple[str, str]]:
    for member in commit.trained:
        yield member.group, f"trained in {commit.key} update {member.update}"
    for end in commit.ended:
        yield end.group, f"ended {end.state} in {commit.key}"


def _round_of(group: str) -> int | None:
    try:
        return parse_group_id(group)[0]
    except BadInput:
        return None
