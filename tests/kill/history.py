"""The independent history checker: was every group trained exactly once, in versions that commits prove?

It shares no code with the services: it reads the raw streams, the raw commits and the raw objects, and has its own idea
of what they must look like (docs/exactly-once.md). What it holds a finished run to:

    chain        commits 0, 1, 2, ... follow the genesis, each naming its predecessor's bytes by their sha256
    published    registry and ledger name version 0, 1, 2, ... once each, every one with the commit that made it
    drawn        a round's groups take the next places of the sequence without a gap; each group that was filtered has
                 one in its place, drawn once, until the configuration's limit
    ends         every group of a committed round ends exactly once, as the commit says, and never moves again
    moves        a group's history is unbroken: each event begins where the last one ended, by a move that exists
    lease        what happens under a lease is done by the worker that holds it
    epoch        what a trainer does is done by the holder of the role; epochs only rise
    membership   a group is in one update of the chain at most, at the place that the ledger recorded before the commit;
                 every update but its round's last has as many groups as the round was opened for
    version      an update's groups were sampled with their round's version alone: number and manifest sha256
    accepted     what was announced is trained or ended, or was put aside with a reason; nothing stays unacknowledged
    objects      every committed object is there with its bytes (groups, weights, checkpoints), or was retired when the
                 run's configuration let it go
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

Entry = tuple[str, Mapping[str, str]]
"""(stream id, fields)"""

MOVES = {
    "": {"deferred"},
    "deferred": {"admitted"},
    "admitted": {"serving_complete", "deferred", "failed"},
    "serving_complete": {"materialized", "deferred", "failed"},
    "materialized": {"queued", "filtered", "deferred", "failed"},
    "queued": {"claimed", "deferred", "rejected"},
    "claimed": {"trained", "queued"},
}
ENDS = {"trained", "filtered", "failed", "rejected"}
UNDER_LEASE = {
    ("admitted", "serving_complete"),
    ("serving_complete", "materialized"),
    ("materialized", "queued"),
    ("materialized", "filtered"),
}
TRAINER = re.compile(r"trainer-(\d+)")


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and where."""

    promise: str  # a name of the module's list
    text: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


Violations = Iterator[Violation]


@dataclass(frozen=True)
class Evidence:
    """What a run has left behind, as it stands on the servers."""

    run: str
    ledger: Sequence[Entry]  # archive and stream together, oldest first
    fifo: Sequence[Entry]
    registry: Sequence[Entry]
    pending: frozenset[str]  # FIFO entries that were read and not acknowledged
    keys: frozenset[str]  # of all objects under runs/<run>/
    get: Callable[[str], bytes | None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Link:
    """A commit, or the genesis, as its bytes say."""

    key: str
    sha256: str
    body: dict[str, Any]

    @property
    def version(self) -> tuple[str, str]:
        """(number, manifest sha256) of the version that it makes."""
        return str(self.body["round"] + 1 if "round" in self.body else 0), self.body["weights_sha"]

    @property
    def trained(self) -> dict[str, tuple[int, int, dict[str, Any]]]:
        """group -> (update, place in it, record)"""
        return {
            group["group"]: (update["index"], place, group)
            for update in self.body.get("updates", ())
            for place, group in enumerate(update["groups"])
        }


@dataclass(frozen=True)
class History:
    """The evidence, sorted."""

    evidence: Evidence

    @cached_property
    def links(self) -> list[Link]:
        """Genesis and commits, in the order of their rounds."""
        folder = f"runs/{self.evidence.run}/commits/"
        keys = sorted(key for key in self.evidence.keys if key.startswith(f"{folder}c"))
        return [_link(key, self.evidence.get(key) or b"{}") for key in [f"{folder}genesis.json", *keys]]

    @cached_property
    def commits(self) -> list[Link]:
        return [link for link in self.links if "round" in link.body]

    @cached_property
    def schedule(self) -> dict[str, Any]:
        """How the run's configuration replaces filtered groups."""
        config = json.loads(self.evidence.get(f"runs/{self.evidence.run}/config.json") or b"{}")
        return {"zero_variance": "keep", "refill_limit": 1} | config.get("schedule", {})

    @cached_property
    def retention(self) -> dict[str, Any]:
        """What the run's configuration keeps: rounds of groups (None: all), versions of weights and checkpoints."""
        config = json.loads(self.evidence.get(f"runs/{self.evidence.run}/config.json") or b"{}")
        return {"keep_rounds": None, "keep_versions": None} | config.get("retention", {})

    @cached_property
    def released(self) -> set[str]:
        """Sets of objects (`groups/r000001`, `weights/<sha>`, ...) that may be gone: retired, not of the newest."""
        told = self.events("retention", phase="retired")
        retired = {name for _, entry in told for name in entry["sets"].split()}
        newest = self.links[-(self.retention["keep_versions"] or len(self.links)) :]
        checkpoints = [link.body["checkpoint"]["prefix"] for link in newest if link.body.get("checkpoint")]
        rounds = [commit.body["round"] for commit in self.commits][
            -(self.retention["keep_rounds"] or len(self.commits)) :
        ]
        kept = {f"weights/{link.body['weights_sha'][:16]}" for link in newest}
        kept |= {f"checkpoints/{prefix.split('/')[-1]}" for prefix in checkpoints}
        return retired - kept - {f"groups/r{round:06d}" for round in rounds}

    def events(self, kind: str, **fields: str) -> list[tuple[int, Mapping[str, str]]]:
        """(place in the ledger, fields) of the events of a kind with these fields."""
        return [
            (place, entry)
            for place, entry in self._by_kind.get(kind, ())
            if all(entry.get(name) == value for name, value in fields.items())
        ]

    @cached_property
    def _by_kind(self) -> dict[str, list[tuple[int, Mapping[str, str]]]]:
        found: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
        for place, (_, entry) in enumerate(self.evidence.ledger):
            found.setdefault(entry["type"], []).append((place, entry))
        return found

    @cached_property
    def groups(self) -> dict[str, list[tuple[int, Mapping[str, str]]]]:
        """group -> its moves, in order"""
        found: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
        for place, entry in self.events("group"):
            found.setdefault(entry["group"], []).append((place, entry))
        return found


def check(evidence: Evidence) -> list[Violation]:
    """Every promise that the history of a finished run breaks; empty when there is none."""
    history = History(evidence)
    rules = (_chain, _published, _drawn, _ends, _moves, _lease, _epoch, _membership, _version, _accepted, _objects)
    return [violation for rule in rules for violation in rule(history)]


def _chain(history: History) -> Violations:
    before: Link | None = None
    for number, link in enumerate(history.links):
        if not link.body:
            yield Violation("chain", f"{link.key} is missing or empty")
        elif link.body["run"] != history.evidence.run:
            yield Violation("chain", f"{link.key} is of run {link.body['run']}")
        elif before is None:
            if "round" in link.body:
                yield Violation("chain", f"{link.key} is no genesis")
        elif (link.body.get("round"), link.key[-12:]) != (number - 1, f"c{number - 1:06d}.json"):
            yield Violation("chain", f"{link.key} stands where the commit of round {number - 1} should")
        elif link.body["previous"] != {"key": before.key, "sha256": before.sha256}:
            yield Violation("chain", f"{link.key} names another predecessor than {before.key} with its bytes")
        elif before.body.get("lineage") != link.body["lineage"]:
            yield Violation("chain", f"{link.key} changes the lineage")
        before = link


def _published(history: History) -> Violations:
    expected = [(*link.version, link.key, link.sha256) for link in history.links if link.body]
    told = {
        "registry": [entry for _, entry in history.evidence.registry],
        "ledger": [entry for _, entry in history.events("version")],
    }
    for where, entries in told.items():
        found = [(entry["number"], entry["sha"], entry["commit"], entry["commit_sha"]) for entry in entries]
        for version in found:
            if version not in expected:
                yield Violation("published", f"{where}: version {version[0]} has no commit that made it: {version}")
        trimmed = where == "registry" and len(found) > (history.retention["keep_rounds"] or len(expected))
        if found != (expected[-len(found) :] if trimmed else expected):
            numbers = [version[0] for version in found]
            yield Violation("published", f"{where}: versions {numbers}, but there are {len(expected)} in the chain")
        for entry in entries:
            if entry["object"] != f"runs/{history.evidence.run}/weights/{entry['sha'][:16]}":
                yield Violation("published", f"{where}: version {entry['number']} names {entry['object']}")
    for commit in history.commits:
        opened = history.events("round", to="open", round=str(commit.body["round"]))
        sampled = next((link for link in history.links if link.version[0] == str(commit.body["round"])), None)
        shas = [(place, entry["sha"]) for place, entry in history.events("version")]
        published = [place for place, sha in shas if sampled and sha == sampled.version[1]]
        if len(opened) != 1 or not sampled or (opened[0][1]["version"], opened[0][1]["version_sha"]) != sampled.version:
            yield Violation("published", f"round {commit.body['round']} was not opened once, with its version")
        elif not published or published[0] > opened[0][0]:
            yield Violation("published", f"round {commit.body['round']} was opened before its version was published")


def _drawn(history: History) -> Violations:
    taken = 0
    for commit in history.commits:
        round = str(commit.body["round"])
        name = f"round {round}"
        for _, opened in history.events("round", to="open", round=round):
            first, start, end = (int(opened[field]) for field in ("groups", "cursor", "cursor_end"))
            if (start, end) != (taken, taken + first):
                yield Violation("drawn", f"{name}: opened at the places {start} to {end}, {taken} were taken before")
            told = {g: moves[0][1] for g, moves in history.groups.items() if moves[0][1]["round"] == round}
            if set(told) != {f"r{int(round):06d}-g{index:04d}" for index in range(len(told))}:
                yield Violation("drawn", f"{name}: its groups are not numbered from 0: {sorted(told)}")
            if taken + len(told) != (cursor := commit.body["cursor"]):
                yield Violation("drawn", f"{name}: {len(told)} groups are told of, committed up to {cursor}")
            yield from _replaced(history, name, first, told)
        taken = commit.body["cursor"]


def _replaced(history: History, name: str, first: int, told: Mapping[str, Mapping[str, str]]) -> Violations:
    """`told`: how each group of the round came into it; the `first` ones came with its opening."""
    filtered = {g: m[-1][1] for g, m in history.groups.items() if g in told and m[-1][1]["to"] == "filtered"}
    replaced = {group: entry["replaced_by"] for group, entry in filtered.items() if "replaced_by" in entry}
    drawn = {entry["replaces"]: group for group, entry in told.items() if "replaces" in entry}
    if replaced != drawn:
        yield Violation("drawn", f"{name}: filtered and replaced were {replaced}, drawn were {drawn}")
    if sorted(drawn.values()) != sorted(told)[first:]:
        yield Violation("drawn", f"{name}: opened with {first} groups, drawn were {sorted(drawn.values())}")
    schedule = history.schedule
    most = first * (schedule["refill_limit"] if schedule["zero_variance"] == "refill" else 1)
    if len(told) != min(first + len(filtered), most):
        yield Violation("drawn", f"{name}: {len(told)} groups, {len(filtered)} of them filtered; the limit is {most}")


def _ends(history: History) -> Violations:
    for commit in history.commits:
        round = str(commit.body["round"])
        cohort = {group for group, moves in history.groups.items() if moves[0][1]["round"] == round}
        told = Counter([*commit.trained, *(group["group"] for group in commit.body["ended"])])
        as_committed = dict.fromkeys(commit.trained, "trained")
        as_committed |= {group["group"]: group["state"] for group in commit.body["ended"]}
        for group in sorted(cohort | told.keys()):
            ends = [entry["to"] for _, entry in history.groups.get(group, ()) if entry["to"] in ENDS]
            if told[group] != 1:
                yield Violation("ends", f"{group} is in commit {round} {told[group]} times")
            elif ends != [as_committed[group]]:
                yield Violation("ends", f"{group} is {as_committed[group]} by the commit, the ledger ends it as {ends}")


def _moves(history: History) -> Violations:
    for group, moves in history.groups.items():
        state, attempt = "", 0
        for _, entry in moves:
            before, after = entry["from"], entry["to"]
            if before != state or after not in MOVES.get(before, ()):
                yield Violation("moves", f"{group}: {before or 'nothing'} -> {after}, but it was {state or 'nothing'}")
            attempt += after == "admitted"
            if int(entry["attempt"]) != attempt:
                yield Violation("moves", f"{group}: {after} under attempt {entry['attempt']}, not {attempt}")
            state = after


def _lease(history: History) -> Violations:
    for group, moves in history.groups.items():
        holder = ""
        for _, entry in moves:
            if entry["to"] == "admitted":
                holder = entry["actor"]
            elif (entry["from"], entry["to"]) in UNDER_LEASE and entry["actor"] != holder:
                yield Violation("lease", f"{group}: {entry['to']} by {entry['actor']}, the lease was {holder}'s")


def _epoch(history: History) -> Violations:
    held = 0
    for id, entry in history.evidence.ledger:
        actor = TRAINER.fullmatch(entry["actor"])
        if entry["type"] == "role":
            if int(entry["epoch"]) <= held:
                yield Violation("epoch", f"{id}: epoch {entry['epoch']} was taken after {held}")
            held = int(entry["epoch"])
        elif actor and int(actor[1]) != held:
            yield Violation("epoch", f"{id}: {entry['type']} by {entry['actor']}, the role was held under epoch {held}")
    epochs = {int(entry["epoch"]) for _, entry in history.events("role")}
    numbers = [commit.body["trainer_epoch"]["number"] for commit in history.commits]
    if numbers != sorted(numbers) or not epochs.issuperset(numbers):
        yield Violation("epoch", f"commits under the epochs {numbers}, the role was taken under {sorted(epochs)}")


def _membership(history: History) -> Violations:
    times = Counter(group for commit in history.commits for group in commit.trained)
    for group, count in times.items():
        if count > 1:
            yield Violation("membership", f"{group} is in {count} updates of the chain")
    for commit in history.commits:
        round = str(commit.body["round"])
        published = [place for place, _ in history.events("round", to="committed", round=round)]
        end = published[0] if published else len(history.evidence.ledger)
        for group, (update, place, record) in commit.trained.items():
            claims = [
                entry if entry["to"] == "claimed" else None  # None: taken back
                for at, entry in history.groups.get(group, ())
                if at < end and (entry["to"] == "claimed" or (entry["from"], entry["to"]) == ("claimed", "queued"))
            ]
            facts = (str(update), str(place), str(record["attempt"]))
            last = claims[-1] if claims else None
            if last is None or (last["update"], last["update_index"], last["attempt"]) != facts:
                yield Violation("membership", f"{group}: not assigned as committed: (update, place, attempt) {facts}")
        sizes = [len(update["groups"]) for update in commit.body["updates"]]
        for _, opened in history.events("round", to="open", round=round):
            full = int(opened["groups_per_update"])
            if any(size != full for size in sizes[:-1]) or any(size > full for size in sizes):
                yield Violation("membership", f"round {round}: updates of {sizes} groups, not of {full}")
        for update in commit.body["updates"]:
            yield from _update(history, round, update, end)


def _update(history: History, round: str, update: dict[str, Any], end: int) -> Violations:
    """Its seal and its step were told before the commit."""
    name = f"round {round}, update {update['index']}"
    facts = (str(len(update["groups"])), str(update["samples"]), str(update["tokens"]))
    sums = tuple(str(sum(group[what] for group in update["groups"])) for what in ("samples", "tokens"))
    of_update = {"round": round, "update": str(update["index"])}
    seals = [(at, entry) for at, entry in history.events("sealed", **of_update) if at < end]
    if not seals or (seals[-1][1]["groups"], seals[-1][1]["samples"], seals[-1][1]["tokens"]) != facts:
        yield Violation("membership", f"{name}: committed with (groups, samples, tokens) {facts}, not so sealed")
        return
    if facts[1:] != sums:
        yield Violation("membership", f"{name}: its groups hold (samples, tokens) {sums}, not {facts[1:]}")
    members = {group["group"] for group in update["groups"]}
    claimed = [at for group in members for at, entry in history.groups.get(group, ()) if entry["to"] == "claimed"]
    if not any(seals[-1][0] < at < end for at, _ in history.events("stepped", **of_update)):
        yield Violation("membership", f"{name}: no step between its seal and its commit")
    if any(seals[-1][0] < at < end for at in claimed):
        yield Violation("membership", f"{name}: assigned after it was sealed")


def _version(history: History) -> Violations:
    versions = dict(link.version for link in history.links if link.body)
    for commit in history.commits:
        number = str(commit.body["round"])
        sha = versions.get(number, "")
        for group, (_, _, record) in commit.trained.items():
            data = history.evidence.get(record["object"])
            if data is None:
                continue  # told by `objects`
            told = [
                entry
                for _, entry in history.groups.get(group, ())
                if (entry["to"], entry["attempt"]) == ("queued", str(record["attempt"])) and "object" in entry
            ]
            facts = (number, sha, record["object"], record["sha256"])
            if not told or any(
                (entry["weight_version"], entry["weights_sha"], entry["object"], entry["sha256"]) != facts
                for entry in told
            ):
                yield Violation("version", f"{group}: not announced with the version and the object of its commit")
            for fault in _faults_of_group(data, record, history.evidence.run, commit.body["lineage"], (number, sha)):
                yield Violation("version", f"{group}: {fault}")


def _faults_of_group(
    data: bytes, record: dict[str, Any], run: str, lineage: int, version: tuple[str, str]
) -> Iterator[str]:
    """What a group's file says otherwise than its commit."""
    try:
        table = pa.ipc.open_file(io.BytesIO(data)).read_all()
    except pa.ArrowInvalid as error:
        yield f"no Arrow file: {error}"
        return
    facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    round, index = (int(part[1:]) for part in record["group"].split("-"))
    expected = {
        "run": run,
        "lineage": str(lineage),
        "round": str(round),
        "group": str(index),
        "attempt": str(record["attempt"]),
        "weight_version": version[0],
        "weight_sha": version[1],
    }
    for name, value in expected.items():
        if facts.get(name) != value:
            yield f"its file says {name} {facts.get(name)}, not {value}"
    rows = table.to_pylist()
    tokens = sum(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows)
    if (len(rows), tokens) != (record["samples"], record["tokens"]):
        yield f"its file has {len(rows)} samples of {tokens} tokens, not {record['samples']} of {record['tokens']}"
    for row in rows:
        whole = {"version": int(version[0]), "sha": version[1], "start": 0, "end": len(row["response_ids"])}
        if row["weight_version_spans"] != [whole]:
            yield f"sample {row['sample']} was sampled with {row['weight_version_spans']}, not with {whole}"


def _accepted(history: History) -> Violations:
    committed = {group for commit in history.commits for group in commit.trained}
    committed |= {group["group"] for commit in history.commits for group in commit.body["ended"]}
    records = [record for commit in history.commits for *_, record in commit.trained.values()]
    attempts = {record["group"]: record["attempt"] for record in records}
    refused = {(entry["group"], entry["attempt"]) for _, entry in history.events("announcement")}
    for id, entry in history.evidence.fifo:
        if entry["kind"] != "group":
            continue
        group, attempt = entry["group"], entry["attempt"]
        put_aside = (group, attempt) in refused or any(
            (move["from"], move["attempt"]) == ("queued", attempt) and move["to"] in ("deferred", "rejected")
            for _, move in history.groups.get(group, ())
        )
        if group not in committed:
            yield Violation("accepted", f"{group} was announced ({id}), and no commit holds it")
        elif attempts.get(group) != int(attempt) and not put_aside:
            used = attempts.get(group)
            yield Violation("accepted", f"{group}: attempt {attempt} was announced ({id}), attempt {used} was used")
        if id in history.evidence.pending:
            yield Violation("accepted", f"{group}: its announcement {id} was never acknowledged")
    for group, moves in history.groups.items():
        if group not in committed and any(entry["to"] == "queued" for _, entry in moves):
            yield Violation("accepted", f"{group} was queued by the ledger, and no commit holds it")


def _objects(history: History) -> Violations:
    for commit in history.commits:
        for group, (_, _, record) in commit.trained.items():
            name = f"groups/{group.split('-')[0]}/{group.split('-')[1]}-{record['sha256'][:16]}.arrow"
            if record["object"] != f"runs/{history.evidence.run}/{name}":
                yield Violation("objects", f"{group}: its object is {record['object']}, not …/{name}")
            yield from _hashed(history, record["object"], record["sha256"])
        checkpoint = commit.body["checkpoint"]
        if checkpoint is not None:
            yield from _directory(history, checkpoint["prefix"], checkpoint["manifest_sha"])
    for sha in {link.body["weights_sha"] for link in history.links if link.body}:
        yield from _directory(history, f"runs/{history.evidence.run}/weights/{sha[:16]}", sha)


def _directory(history: History, prefix: str, manifest_sha: str) -> Violations:
    """A manifest and all that it names."""
    faults = list(_hashed(history, f"{prefix}/manifest.json", manifest_sha))
    yield from faults
    manifest = history.evidence.get(f"{prefix}/manifest.json")
    if manifest is not None and not faults:
        for file in json.loads(manifest)["files"]:
            yield from _hashed(history, f"{prefix}/{file['name']}", file["sha256"])


def _hashed(history: History, key: str, sha256: str) -> Violations:
    data = history.evidence.get(key)
    if data is None:
        if "/".join(key.split("/")[2:4]) not in history.released:
            yield Violation("objects", f"{key} is missing")
    elif hashlib.sha256(data).hexdigest() != sha256:
        yield Violation("objects", f"{key} has other bytes than were committed")


def _link(key: str, data: bytes) -> Link:
    return Link(key, hashlib.sha256(data).hexdigest(), json.loads(data))
