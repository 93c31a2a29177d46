"""The checker is checked: each broken promise, forged into a history that is otherwise whole, must be found."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from .history import Evidence, check

RUN = "forged"
ROUNDS, GROUPS = 2, ("g0000", "g0001")  # two updates of one group in each round
SPAN = pa.struct([("version", pa.int64()), ("sha", pa.string()), ("start", pa.int32()), ("end", pa.int32())])


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


class Forged:
    """A whole history of two rounds; a test breaks it, and reads it as evidence."""

    def __init__(self) -> None:
        self.ledger: list[dict[str, str]] = []
        self.fifo: list[tuple[str, dict[str, str]]] = []
        self.registry: list[dict[str, str]] = []
        self.pending: set[str] = set()
        self.lost: set[str] = set()  # keys of commits
        self.objects: dict[str, bytes] = {
            f"runs/{RUN}/config.json": as_json({"retention": {"keep_rounds": 1, "keep_versions": 2}})
        }
        self.commits: list[dict[str, Any]] = [{"run": RUN, "lineage": 1, "weights_sha": self.directory("weights", 0)}]
        self.tell("run", "rollout-0", to="prepared")
        self.publish(0)
        self.tell("role", "trainer-1", role="trainer", epoch="1")
        for round in range(ROUNDS):
            self.round(round)

    def tell(self, kind: str, actor: str, **fields: str) -> None:
        self.ledger.append({"v": "1", "type": kind, "at_ms": str(len(self.ledger)), "actor": actor, **fields})

    def directory(self, kind: str, number: int) -> str:
        """A directory of one file with its manifest; returns the manifest's hash."""
        data = f"{kind} {number}".encode()
        manifest = as_json({"files": [{"name": "model", "bytes": len(data), "sha256": sha(data)}]})
        name = f"weights/{sha(manifest)[:16]}" if kind == "weights" else f"checkpoints/r{number}"
        self.objects[f"runs/{RUN}/{name}/manifest.json"] = manifest
        self.objects[f"runs/{RUN}/{name}/model"] = data
        return sha(manifest)

    def round(self, round: int) -> None:
        version = {"version": str(round), "version_sha": self.commits[round]["weights_sha"]}
        taken = {"cursor": str(round * len(GROUPS)), "cursor_end": str((round + 1) * len(GROUPS))}
        shape = {"groups": str(len(GROUPS)), "samples_per_group": "1", "groups_per_update": "1", **taken}
        self.tell("round", "rollout-0", round=str(round), to="open", generation="1", **version, **shape)
        names = [f"r{round:06d}-{name}" for name in GROUPS]
        for group in names:
            self.move(group, "", "deferred", "rollout-0", attempt=0)
        updates = []
        for index, group in enumerate(names):
            record = self.serve(group, round, f"worker-{index}")
            facts = {"round": str(round), "update": str(index)}
            self.move(group, "queued", "claimed", "trainer-1", update=str(index), update_index="0")
            self.tell("sealed", "trainer-1", **facts, groups="1", samples="1", tokens="5")
            self.tell("stepped", "trainer-1", **facts)
            updates.append({"index": index, "samples": 1, "tokens": 5, "groups": [record]})
        self.commits.append(
            {
                "run": RUN,
                "lineage": 1,
                "weights_sha": self.directory("weights", round + 1),
                "trainer_epoch": {"number": 1, "nonce": "n"},
                "round": round,
                "updates": updates,
                "ended": [],
                "cursor": (round + 1) * len(GROUPS),
                "checkpoint": {
                    "prefix": f"runs/{RUN}/checkpoints/r{round}",
                    "manifest_sha": self.directory("checkpoint", round),
                },
            }
        )
        for index, group in enumerate(names):
            self.move(group, "claimed", "trained", "trainer-1", update=str(index), update_index="0")
        self.tell("round", "trainer-1", round=str(round), to="committed", generation="1")
        self.publish(round + 1)

    def serve(self, group: str, round: int, worker: str) -> dict[str, Any]:
        """Admitted to queued; returns the commit's record of it."""
        version = {"number": round, "sha": self.commits[round]["weights_sha"]}
        data = self.file(group, version)
        key = f"runs/{RUN}/groups/{group.split('-')[0]}/{group.split('-')[1]}-{sha(data)[:16]}.arrow"
        self.objects[key] = data
        reference = {
            "object": key,
            "sha256": sha(data),
            "weight_version": str(round),
            "weights_sha": str(version["sha"]),
        }
        self.move(group, "deferred", "admitted", worker, worker=worker)
        self.move(group, "admitted", "serving_complete", worker)
        self.move(group, "serving_complete", "materialized", worker)
        self.move(group, "materialized", "queued", worker, **reference)
        self.fifo.append((f"{len(self.fifo) + 1}-0", {"kind": "group", "group": group, "attempt": "1"}))
        return {"group": group, "attempt": 1, "object": key, "sha256": sha(data), "samples": 1, "tokens": 5}

    def file(self, group: str, version: dict[str, Any], **changes: str) -> bytes:
        """A group's Arrow file: one sample of three prompt and two response tokens."""
        round, index = (str(int(part[1:])) for part in group.split("-"))
        metadata = {"run": RUN, "lineage": "1", "round": round, "group": index, "attempt": "1"}
        metadata |= {"weight_version": str(version["number"]), "weight_sha": version["sha"], **changes}
        span = {"version": version["number"], "sha": version["sha"], "start": 0, "end": 2}
        columns = {
            "sample": pa.array([0], pa.int32()),
            "prompt_ids": pa.array([[1, 2, 3]], pa.list_(pa.int32())),
            "response_ids": pa.array([[4, 5]], pa.list_(pa.int32())),
            "weight_version_spans": pa.array([[span]], pa.list_(SPAN)),
        }
        table = pa.table(columns).replace_schema_metadata(metadata)
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def move(self, group: str, before: str, after: str, actor: str, attempt: int = 1, **fields: str) -> None:
        facts = {"group": group, "round": str(int(group[1:7])), "from": before, "to": after, "attempt": str(attempt)}
        self.tell("group", actor, **facts, **fields)

    def publish(self, number: int) -> None:
        weights = self.commits[number]["weights_sha"]
        entry = {"number": str(number), "sha": weights, "object": f"runs/{RUN}/weights/{weights[:16]}"}
        self.registry.append(entry)
        self.tell("version", "trainer-1" if number else "rollout-0", **entry)

    # What tests change by

    def find(self, kind: str, **fields: str) -> dict[str, str]:
        """The first event of this kind with these fields."""
        return next(entry for entry in self.ledger if entry["type"] == kind and fields.items() <= entry.items())

    def record(self, round: int = 0, update: int = 0) -> dict[str, Any]:
        """A commit's record of the one group of an update."""
        record: dict[str, Any] = self.commits[round + 1]["updates"][update]["groups"][0]
        return record

    def replace_file(self, data: bytes, round: int = 0) -> None:
        """Another file for the round's first group, and all that tells of it, so that only its content is wrong."""
        record = self.record(round)
        queued = self.find("group", group=record["group"], to="queued")
        key = f"{record['object'].rsplit('-', 1)[0]}-{sha(data)[:16]}.arrow"
        for told in (record, queued):
            told |= {"object": key, "sha256": sha(data)}
        self.objects[key] = data

    def evidence(self) -> Evidence:
        """The commits are written last, each chained to the one before; versions name them unless a test says else."""
        objects = dict(self.objects)
        before: dict[str, str] = {}
        places = []
        for number, commit in enumerate(self.commits):
            key = f"runs/{RUN}/commits/" + (f"c{number - 1:06d}.json" if number else "genesis.json")
            body = {**({"previous": before} if number else {}), **commit}
            before = {"key": key, "sha256": sha(as_json(body))}
            objects[key] = as_json(body)
            places.append({"commit": key, "commit_sha": before["sha256"]})
        for entry in [*self.registry, *(entry for entry in self.ledger if entry["type"] == "version")]:
            number = int(entry["number"])
            for name, value in places[number].items() if number < len(places) else ():
                entry.setdefault(name, value)
        for key in self.lost:
            del objects[key]
        return Evidence(
            run=RUN,
            ledger=[(f"{place + 1}-0", entry) for place, entry in enumerate(self.ledger)],
            fifo=self.fifo,
            registry=[(f"{place + 1}-0", entry) for place, entry in enumerate(self.registry)],
            pending=frozenset(self.pending),
            keys=frozenset(objects),
            get=objects.get,
        )


def promises(forged: Forged) -> set[str]:
    return {violation.promise for violation in check(forged.evidence())}


def test_a_whole_history_breaks_no_promise() -> None:
    assert check(Forged().evidence()) == []


def test_a_group_given_back_and_served_again_is_well() -> None:
    forged = Forged()
    group = "r000000-g0000"
    at = forged.ledger.index(forged.find("group", group=group, to="serving_complete"))
    lost = Forged()
    lost.ledger = []
    lost.move(group, "admitted", "deferred", "worker-1")
    lost.move(group, "deferred", "admitted", "worker-1", attempt=2)
    forged.ledger[at:at] = lost.ledger
    for entry in forged.ledger[at + 2 :]:
        if entry.get("group") == group:
            entry["attempt"] = "2"
            entry["actor"] = entry["actor"].replace("worker-0", "worker-1")
    record = forged.record()
    record["attempt"] = 2
    forged.fifo[0][1]["attempt"] = "2"
    version = {"number": 0, "sha": forged.commits[0]["weights_sha"]}
    forged.replace_file(forged.file(group, version, attempt="2"))
    assert check(forged.evidence()) == []


def test_what_the_configuration_lets_go_may_be_gone_once_it_was_retired() -> None:
    forged = Forged()
    first = forged.registry[0]["object"]
    forged.tell("retention", "trainer-1", phase="retired", sets=f"groups/r000000 {first.split('/', 2)[2]}")
    for key in [key for key in forged.objects if "/groups/r000000/" in key or key.startswith(first)]:
        del forged.objects[key]
    del forged.registry[0]
    assert check(forged.evidence()) == []


def break_link(forged: Forged) -> None:
    forged.commits[2]["previous"] = {"key": f"runs/{RUN}/commits/c000000.json", "sha256": "0" * 64}


def lose_commit(forged: Forged) -> None:
    forged.lost.add(f"runs/{RUN}/commits/c000000.json")


def change_lineage(forged: Forged) -> None:
    forged.commits[2]["lineage"] = 2


def publish_without_commit(forged: Forged) -> None:
    weights = forged.directory("weights", 9)
    entry = {
        "number": "3",
        "sha": weights,
        "object": f"runs/{RUN}/weights/{weights[:16]}",
        "commit": "",
        "commit_sha": "",
    }
    forged.registry.append(entry)
    forged.tell("version", "trainer-1", **entry)


def publish_other_weights(forged: Forged) -> None:
    forged.registry[1]["sha"] = forged.registry[0]["sha"]
    forged.registry[1]["object"] = forged.registry[0]["object"]


def publish_other_commit(forged: Forged) -> None:
    forged.find("version", number="1")["commit_sha"] = "0" * 64


def publish_twice(forged: Forged) -> None:
    forged.registry.append(dict(forged.registry[-1]))


def commit_unpublished(forged: Forged) -> None:
    forged.registry.pop()
    forged.ledger.remove(forged.find("version", number="2"))


def open_before_publish(forged: Forged) -> None:
    opened = forged.find("round", to="open", round="1")
    forged.ledger.remove(opened)
    forged.ledger.insert(2, opened)


def open_with_other_version(forged: Forged) -> None:
    forged.find("round", to="open", round="1")["version_sha"] = forged.commits[0]["weights_sha"]


def skip_prompts(forged: Forged) -> None:
    forged.commits[2]["cursor"] += 1


def open_elsewhere(forged: Forged) -> None:
    forged.find("round", to="open", round="1")["cursor"] = "3"


def skip_an_index(forged: Forged) -> None:
    for entry in forged.ledger:
        if entry.get("group") == "r000001-g0001":
            entry["group"] = "r000001-g0002"


def drawn_for_nobody(forged: Forged) -> None:
    forged.find("round", to="open", round="1").update(groups="1", cursor_end="3")


def drawn_by_one_and_told_by_another(forged: Forged) -> None:
    forged.find("group", group="r000001-g0001", to="deferred")["replaces"] = "r000001-g0000"


def filtered_and_not_replaced(forged: Forged) -> None:
    forged.objects[f"runs/{RUN}/config.json"] = as_json({"schedule": {"zero_variance": "refill", "refill_limit": 2}})
    forged.find("group", group="r000001-g0001", to="trained")["to"] = "filtered"


def two_ends(forged: Forged) -> None:
    forged.move("r000000-g0000", "trained", "filtered", "worker-0")


def no_end(forged: Forged) -> None:
    forged.ledger.remove(forged.find("group", group="r000001-g0001", to="trained"))


def end_otherwise(forged: Forged) -> None:
    forged.commits[2]["ended"] = [{"group": "r000001-g0001", "state": "filtered", "reason": "zero variance"}]
    del forged.commits[2]["updates"][1]


def forget_group(forged: Forged) -> None:
    del forged.commits[2]["updates"][1]


def skip_a_state(forged: Forged) -> None:
    forged.ledger.remove(forged.find("group", group="r000000-g0001", to="materialized"))


def trained_from_nowhere(forged: Forged) -> None:
    forged.find("group", group="r000000-g0000", to="trained")["from"] = "queued"


def skip_an_attempt(forged: Forged) -> None:
    forged.find("group", group="r000000-g0000", to="materialized")["attempt"] = "2"


def stale_worker_announces(forged: Forged) -> None:
    forged.find("group", group="r000000-g0000", to="queued")["actor"] = "worker-9"


def stale_worker_materializes(forged: Forged) -> None:
    forged.find("group", group="r000000-g0000", to="materialized")["actor"] = "worker-9"


def stale_trainer_steps(forged: Forged) -> None:
    at = forged.ledger.index(forged.find("sealed", round="1", update="0"))
    forged.ledger.insert(at, {"v": "1", "type": "role", "at_ms": "0", "actor": "trainer-2", "epoch": "2"})


def epoch_falls(forged: Forged) -> None:
    forged.tell("role", "trainer-1", role="trainer", epoch="1")


def commit_of_unknown_epoch(forged: Forged) -> None:
    forged.commits[2]["trainer_epoch"]["number"] = 7


def trained_in_two_rounds(forged: Forged) -> None:
    forged.commits[2]["updates"][0]["groups"].append(forged.record(0))


def trained_twice_in_a_round(forged: Forged) -> None:
    forged.commits[1]["updates"][1]["groups"].append(forged.record(0))


def commit_another_place(forged: Forged) -> None:
    updates = forged.commits[1]["updates"]
    updates[0]["groups"], updates[1]["groups"] = updates[1]["groups"], updates[0]["groups"]


def commit_another_attempt(forged: Forged) -> None:
    forged.record()["attempt"] = 2


def never_assigned(forged: Forged) -> None:
    forged.find("group", group="r000000-g0000", to="claimed")["update"] = "1"


def assigned_after_commit(forged: Forged) -> None:
    claimed = forged.find("group", group="r000000-g0000", to="claimed")
    forged.ledger.remove(claimed)
    forged.ledger.append(claimed)


def assignment_taken_back(forged: Forged) -> None:
    at = forged.ledger.index(forged.find("sealed", round="0", update="0"))
    taken = Forged()
    taken.ledger = []
    taken.move("r000000-g0000", "claimed", "queued", "trainer-1")
    forged.ledger[at:at] = taken.ledger


def never_sealed(forged: Forged) -> None:
    forged.ledger.remove(forged.find("sealed", round="0", update="1"))


def sealed_otherwise(forged: Forged) -> None:
    forged.find("sealed", round="0", update="1")["tokens"] = "6"


def an_update_that_is_not_full(forged: Forged) -> None:
    forged.find("round", to="open", round="0")["groups_per_update"] = "2"


def assigned_after_seal(forged: Forged) -> None:
    sealed = forged.find("sealed", round="0", update="0")
    forged.ledger.remove(sealed)
    at = forged.ledger.index(forged.find("group", group="r000000-g0000", to="claimed"))
    forged.ledger.insert(at, sealed)


def never_stepped(forged: Forged) -> None:
    forged.ledger.remove(forged.find("stepped", round="1", update="0"))


def sampled_with_other_version(forged: Forged) -> None:
    forged.replace_file(forged.file("r000000-g0000", {"number": 1, "sha": forged.commits[1]["weights_sha"]}))


def sampled_with_same_number_of_other_weights(forged: Forged) -> None:
    forged.replace_file(forged.file("r000000-g0000", {"number": 0, "sha": forged.commits[1]["weights_sha"]}))


def file_of_another_group(forged: Forged) -> None:
    forged.replace_file(forged.file("r000000-g0001", {"number": 0, "sha": forged.commits[0]["weights_sha"]}))


def file_of_a_stale_attempt(forged: Forged) -> None:
    version = {"number": 0, "sha": forged.commits[0]["weights_sha"]}
    forged.replace_file(forged.file("r000000-g0000", version, attempt="2"))


def announced_with_other_version(forged: Forged) -> None:
    forged.find("group", group="r000001-g0000", to="queued")["weights_sha"] = "0" * 64


def spans_of_two_versions(forged: Forged) -> None:
    other = {"number": 0, "sha": "0" * 64}
    good = {"number": 0, "sha": forged.commits[0]["weights_sha"]}
    forged.replace_file(forged.file("r000000-g0000", other, weight_sha=good["sha"]))


def announced_and_lost(forged: Forged) -> None:
    forged.fifo.append(("99-0", {"kind": "group", "group": "r000000-g0007", "attempt": "1"}))


def announced_attempt_lost(forged: Forged) -> None:
    forged.fifo.append(("99-0", {"kind": "group", "group": "r000000-g0000", "attempt": "2"}))


def queued_and_lost(forged: Forged) -> None:
    for before, after in (("", "deferred"), ("deferred", "admitted"), ("admitted", "serving_complete")):
        forged.move("r000002-g0000", before, after, "worker-0", attempt=int(before != ""))
    forged.move("r000002-g0000", "serving_complete", "materialized", "worker-0")
    forged.move("r000002-g0000", "materialized", "queued", "worker-0")


def never_acknowledged(forged: Forged) -> None:
    forged.pending.add("1-0")


def group_lost(forged: Forged) -> None:
    del forged.objects[forged.record()["object"]]


def group_altered(forged: Forged) -> None:
    forged.objects[forged.record()["object"]] += b"."


def group_elsewhere(forged: Forged) -> None:
    record = forged.record()
    queued = forged.find("group", group=record["group"], to="queued")
    forged.objects[f"runs/{RUN}/elsewhere"] = forged.objects[record["object"]]
    record["object"] = queued["object"] = f"runs/{RUN}/elsewhere"


def weights_lost(forged: Forged) -> None:
    del forged.objects[f"{forged.registry[2]['object']}/model"]


def weights_altered(forged: Forged) -> None:
    forged.objects[f"{forged.registry[0]['object']}/model"] = b"other weights"


def manifest_altered(forged: Forged) -> None:
    forged.objects[f"{forged.registry[1]['object']}/manifest.json"] = b'{"files": []}'


def deleted_too_early(forged: Forged) -> None:
    forged.tell("retention", "trainer-1", phase="retired", sets="groups/r000001")
    del forged.objects[forged.record(round=1)["object"]]


def checkpoint_lost(forged: Forged) -> None:
    del forged.objects[f"runs/{RUN}/checkpoints/r1/model"]


FORGERIES: dict[str, list[Callable[[Forged], None]]] = {
    "chain": [break_link, lose_commit, change_lineage],
    "published": [
        publish_without_commit,
        publish_other_weights,
        publish_other_commit,
        publish_twice,
        commit_unpublished,
        open_before_publish,
        open_with_other_version,
    ],
    "drawn": [
        skip_prompts,
        open_elsewhere,
        skip_an_index,
        drawn_for_nobody,
        drawn_by_one_and_told_by_another,
        filtered_and_not_replaced,
    ],
    "ends": [two_ends, no_end, end_otherwise, forget_group],
    "moves": [skip_a_state, trained_from_nowhere, skip_an_attempt],
    "lease": [stale_worker_announces, stale_worker_materializes],
    "epoch": [stale_trainer_steps, epoch_falls, commit_of_unknown_epoch],
    "membership": [
        trained_in_two_rounds,
        trained_twice_in_a_round,
        commit_another_place,
        commit_another_attempt,
        never_assigned,
        assigned_after_commit,
        assignment_taken_back,
        never_sealed,
        sealed_otherwise,
        assigned_after_seal,
        an_update_that_is_not_full,
        never_stepped,
    ],
    "version": [
        sampled_with_other_version,
        sampled_with_same_number_of_other_weights,
        file_of_another_group,
        file_of_a_stale_attempt,
        announced_with_other_version,
        spans_of_two_versions,
    ],
    "accepted": [announced_and_lost, announced_attempt_lost, queued_and_lost, never_acknowledged],
    "objects": [
        group_lost,
        group_altered,
        group_elsewhere,
        weights_lost,
        weights_altered,
        manifest_altered,
        checkpoint_lost,
        deleted_too_early,
    ],
}


@pytest.mark.parametrize(
    ("promise", "forge"),
    [(promise, forge) for promise, forgeries in FORGERIES.items() for forge in forgeries],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_promise_is_found(promise: str, forge: Callable[[Forged], None]) -> None:
    forged = Forged()
    forge(forged)
    assert promise in promises(forged)


def test_every_promise_of_the_checker_is_forged() -> None:
    from . import history

    assert history.__doc__ is not None
    named = [line.split()[0] for line in history.__doc__.splitlines() if line.startswith("    ") and line[4] != " "]
    assert set(named) == set(FORGERIES)
