"""The objects that commits name: there, with that hash, and sampled by the version that their round had."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rolloutpipe_core.domain import WeightVersion, parse_group_id
from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.observe.audit.model import Audit, CommittedRound, Finding, Membership, Objects


def check_groups(store: Objects, rounds: Sequence[CommittedRound], audit: Audit) -> list[tuple[int, Membership]]:
    """Read every trained group's object; returns those that are not there, with their rounds."""
    missing = []
    for commit in rounds:
        folder = f"runs/{commit.run}/groups/r{commit.round:06d}/"
        whole_gone = not any(True for _ in store.list(folder))  # one question instead of one a group
        absent = [m for m in commit.trained if whole_gone or not _check_group(store, commit, m, audit)]
        missing += [(commit.round, member) for member in absent]
        (audit.rounds_by_hash if absent else audit.rounds_by_object).append(commit.round)
    return missing


def check_missing(
    missing: Iterable[tuple[int, Membership]],
    rounds: int,
    keep_rounds: int | None,
    retired: Collection[str],
    audit: Audit,
) -> None:
    """Only what was retired may be missing, or is older than the last `keep_rounds` of these rounds."""
    for round, member in missing:
        old = keep_rounds is not None and round < rounds - keep_rounds
        if not old and f"groups/r{round:06d}" not in retired:
            audit.report("object-missing", member.object, f"{member.group} was trained from it")


def stored_keep_rounds(store: Objects, run: str) -> int | None:
    """`retention.keep_rounds` of the configuration that the run began with; None: all, or it is not stored.

    Raises Damaged.
    """
    key = f"runs/{run}/config.json"
    try:
        keep_rounds = json.loads(store.get(key)).get("retention", {}).get("keep_rounds")
    except ObjectMissing:
        return None
    except (ValueError, AttributeError) as error:
        raise Damaged(f"not a configuration: {key}", given=str(error)) from error
    if keep_rounds is not None and not isinstance(keep_rounds, int):
        raise Damaged(f"not a configuration: {key}", given=f"retention.keep_rounds = {keep_rounds!r}")
    return keep_rounds


def check_weights(store: Objects, run: str, versions: Sequence[WeightVersion], audit: Audit) -> list[Finding]:
    """The versions' manifests have the versions' hashes; returns what is missing of the newest.

    Only that one must still be there, with all its files, unless it was retired since the chain was read.
    """
    missing: list[Finding] = []
    for version in versions:
        key = f"runs/{run}/weights/{version.sha[:16]}/manifest.json"
        try:
            data = store.get(key)
        except ObjectMissing:
            if version == versions[-1]:
                missing = [Finding("weights-missing", key, f"the newest version {version} has no manifest")]
            audit.manifests_retired += 1
            continue
        audit.manifests += 1
        if hashlib.sha256(data).hexdigest() != version.sha:
            audit.report("weights-hash", key, f"its bytes are not those of {version}")
        elif version == versions[-1]:
            missing = list(_missing_files(store, key, data))
    return missing


def _check_group(store: Objects, commit: CommittedRound, member: Membership, audit: Audit) -> bool:
    """Whether the object was there to be read."""
    try:
        data = store.get(member.object)
    except ObjectMissing:
        return False
    found = hashlib.sha256(data).hexdigest()
    if found != member.sha256:
        audit.report("object-hash", member.object, f"sha256 {found}, the commit says {member.sha256}")
        return True
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
        contradictions = [*_metadata(commit, member, metadata), *_content(commit, member, table)]
    except (pa.ArrowException, KeyError, ValueError) as error:
        audit.report("object-unreadable", member.object, f"{type(error).__name__}: {error}")
        return True
    for what in contradictions:
        audit.report("object-content", member.object, what)
    return True


def _metadata(commit: CommittedRound, member: Membership, metadata: Mapping[str, str]) -> Iterator[str]:
    expected = {
        "run": commit.run,
        "lineage": str(commit.lineage),
        "round": str(commit.round),
        "group": str(parse_group_id(member.group)[1]),
        "attempt": str(member.attempt),
        "weight_version": str(commit.sampled.number),
        "weight_sha": commit.sampled.sha,
    }
    for name, value in expected.items():
        if metadata.get(name) != value:
            yield f"{name} is {metadata.get(name)}, the chain says {value}"


def _content(commit: CommittedRound, member: Membership, table: pa.Table) -> Iterator[str]:
    """Rows, tokens, and the version of every token."""
    if table.num_rows != member.samples:
        yield f"{table.num_rows} samples, the commit says {member.samples}"
    lengths = [pc.sum(pc.list_value_length(table[name])).as_py() for name in ("prompt_ids", "response_ids")]
    if sum(length or 0 for length in lengths) != member.tokens:
        yield f"{lengths} prompt and response tokens, the commit says {member.tokens} together"
    spans = pc.list_flatten(table["weight_version_spans"]).to_pylist()
    versions = {WeightVersion(span["version"], span["sha"]) for span in spans}
    if versions != {commit.sampled}:
        yield f"its tokens were sampled by {sorted(map(str, versions))}, the round by {commit.sampled}"


def _missing_files(store: Objects, key: str, data: bytes) -> Iterator[Finding]:
    """Files that the manifest names and that are not there in their size."""
    folder = key.removesuffix("manifest.json")
    there = {entry.key: entry.bytes for entry in store.list(folder)}
    for file in json.loads(data)["files"]:
        name = folder + file["name"]
        if there.get(name) != file["bytes"]:
            what = f"{there.get(name, 'no')} bytes, the newest version's manifest says {file['bytes']}"
            yield Finding("weights-missing", name, what)
