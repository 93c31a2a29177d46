"""A correct history of three rounds, then each violation by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rolloutpipe_core.domain import FinishReason, Group, GroupState, RoundState, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.ledger.events import GroupMoved, ObjectsMoved, RoundMoved, UpdateSealed, VersionPublished
from rolloutpipe_core.ledger.records import NOT_COMMITTED
from rolloutpipe_core.observe.audit import audit_history
from rolloutpipe_core.observe.audit.objects import stored_keep_rounds
from rolloutpipe_core.observe.audit.view import ranges
from rolloutpipe_core.store.groups import encode_group

RUN = "walk"
ROUNDS, SAMPLES, TOKENS = 3, 2, 2 * (2 + 3)  # tokens of a group: 2 samples of 2 prompt and 3 response tokens
END_MS = 10**12
# Groups 0, 1, 2 are trained in updates 0, 0, 1 (U = 2); group 3 is filtered.
MEMBERS = ((0, 1), (2,))


@dataclass
class Entry:
    key: str
    bytes: int


class DictStore(dict):
    def get(self, key: str) -> bytes:
        if key not in self:
            raise ObjectMissing("no such object", given=key)
        return self[key]

    def list(self, prefix: str) -> Iterator[Entry]:
        return (Entry(key, len(self[key])) for key in sorted(self) if key.startswith(prefix))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest(version: int) -> bytes:
    return json.dumps({"files": [{"name": "model.safetensors", "bytes": 7, "sha256": f"{version:064x}"}]}).encode()


def version(number: int) -> WeightVersion:
    return WeightVersion(number, sha(manifest(number)))


def group_id(round: int, index: int) -> str:
    return f"r{round:06d}-g{index:04d}"


def group_bytes(
    round: int, index: int, *, attempt: int = 1, sampled: WeightVersion | None = None, run: str = RUN
) -> bytes:
    sampled = sampled or version(round)
    samples = tuple(
        Sample(
            index=i,
            prompt_ids=np.array([1, 2], np.int32),
            response_ids=np.array([3, 4, index], np.int32),
            behavior_logprobs=np.full(3, -0.5, np.float32),
            loss_mask=np.ones(3, np.uint8),
            reward=float(i),
            advantage=0.0,
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(sampled, 0, 3),),
        )
        for i in range(SAMPLES)
    )
    return encode_group(Group(run, 1, round, index, attempt, sampled, f"p{index}", samples))


class Run:
    """The parts of a run that the tests break. `link` chains the commits anew after a change."""

    def __init__(self, history) -> None:
        self.history = history
        self.store = DictStore()
        self.registry = [version(number) for number in range(ROUNDS + 1)]
        self.genesis = {"run": RUN, "lineage": 1, "weights_sha": version(0).sha, "data_fingerprint": "d" * 64}
        self.commits = [self._commit(round) for round in range(ROUNDS)]
        for number in range(ROUNDS + 1):
            folder = f"runs/{RUN}/weights/{version(number).sha[:16]}/"
            self.store[folder + "manifest.json"] = manifest(number)
            self.store[folder + "model.safetensors"] = b"weights"
        history.run(0, "prepared")
        history.role(0, epoch=1)
        self.link()
        self._publish(0.1, 0)
        for round in range(ROUNDS):
            self._events(1 + 10 * round, round)

    def link(self) -> None:
        """Write genesis and commits to the store, each naming the bytes before it."""
        key, data = f"runs/{RUN}/commits/genesis.json", json.dumps(self.genesis).encode()
        self.store[key] = data
        for commit in self.commits:
            commit["previous"] = {"key": key, "sha256": sha(data)}
            key, data = f"runs/{RUN}/commits/c{commit['round']:06d}.json", json.dumps(commit).encode()
            self.store[key] = data

    def _commit(self, round: int) -> dict:
        return {
            "run": RUN,
            "lineage": 1,
            "round": round,
            "trainer_epoch": {"number": 1, "nonce": "n"},
            "weights_sha": version(round + 1).sha,
            "data_fingerprint": "d" * 64,
            "cohort_sha": "c" * 64,
            "cursor": 4 * (round + 1),
            "updates": [
                {
                    "index": update,
                    "samples": SAMPLES * len(members),
                    "tokens": TOKENS * len(members),
                    "groups": [self._member(round, index) for index in members],
                }
                for update, members in enumerate(MEMBERS)
            ],
            "ended": [{"group": group_id(round, 3), "state": "filtered", "reason": "zero variance"}],
        }

    def _member(self, round: int, index: int) -> dict:
        data = group_bytes(round, index)
        key = f"runs/{RUN}/groups/r{round:06d}/g{index:04d}-{sha(data)[:16]}.arrow"
        self.store[key] = data
        facts = {"object": key, "sha256": sha(data), "samples": SAMPLES, "tokens": TOKENS}
        return {"group": group_id(round, index), "attempt": 1, **facts}

    def _publish(self, at_s: float, number: int) -> None:
        key = f"runs/{RUN}/commits/" + ("genesis.json" if number == 0 else f"c{number - 1:06d}.json")
        self.history.version(at_s, number)
        self.history.events[-1] = replace(
            self.history.events[-1], version=version(number), commit=key, commit_sha=sha(self.store[key])
        )

    def _events(self, at: float, round: int) -> None:
        h = self.history
        h.open(at, round, version_sha=version(round).sha, groups="4", cursor=str(4 * round))
        for index in range(4):
            h.group(at, group_id(round, index), GroupState.DEFERRED, 0)
        h.round(at, round, RoundState.GENERATING)
        for update in self.commits[round]["updates"]:
            for member in update["groups"]:
                facts = {"object": member["object"], "sha256": member["sha256"], "weights_sha": version(round).sha}
                h.serve(member["group"], at + 1, at + 2, at + 3, **facts)
        h.group(at + 1, group_id(round, 3), GroupState.ADMITTED)
        statistics = {"reward_mean": "1", "reward_std": "0", "response_tokens": "6"}
        h.group(at + 3, group_id(round, 3), GroupState.FILTERED, reason="zero variance", **statistics)
        h.round(at + 3, round, RoundState.DRAINED)
        for update, members in enumerate(MEMBERS):
            for place, index in enumerate(members):
                h.claim(at + 4, group_id(round, index), update, place)
            h.seal(at + 5, round, update, len(members), SAMPLES * len(members), TOKENS * len(members))
            h.step(at + 5, round, update, [(at + 4, at + 5)])
        h.round(at + 5, round, RoundState.TRAINED)
        for members in MEMBERS:
            for index in members:
                h.group(at + 6, group_id(round, index), GroupState.TRAINED)
        h.round(at + 6, round, RoundState.COMMITTED)
        self._publish(at + 6, round + 1)
        h.round(at + 6, round, RoundState.PUBLISHED)

    # What the violations need.

    def replace_object(self, round: int, index: int, data: bytes) -> None:
        """Put other bytes where a group's object is, with a commit and an announcement that agree with them."""
        member = self.member(round, index)
        self.store[member["object"]] = data
        member["sha256"] = sha(data)
        self.link()
        self.change(
            GroupMoved, lambda e: e.group == member["group"] and e.after == "queued", details={"sha256": sha(data)}
        )
        for number, commit in enumerate(self.commits):
            key = f"runs/{RUN}/commits/c{commit['round']:06d}.json"
            self.change(
                VersionPublished, lambda e, n=number: e.version.number == n + 1, commit_sha=sha(self.store[key])
            )

    def member(self, round: int, index: int) -> dict:
        wanted = group_id(round, index)
        return next(g for u in self.commits[round]["updates"] for g in u["groups"] if g["group"] == wanted)

    def change(self, kind: type, which: Callable, **fields) -> None:
        """Change fields of the events that `which` picks; `details` are merged."""
        for place, event in enumerate(self.history.events):
            if isinstance(event, kind) and which(event):
                details = {"details": {**event.details, **fields["details"]}} if "details" in fields else {}
                self.history.events[place] = replace(event, **{**fields, **details})

    def drop(self, kind: type, which: Callable) -> None:
        self.history.events = [e for e in self.history.events if not (isinstance(e, kind) and which(e))]

    def audit(self, keep_rounds: int | None = None, until_ms: int = END_MS):
        return audit_history(RUN, self.store, iter(self.history.events), self.registry, until_ms, keep_rounds)


@pytest.fixture
def run(history) -> Run:
    return Run(history)


def checks(audit) -> set[str]:
    return {finding.check for finding in audit.findings}


def test_a_correct_run_passes(run):
    audit = run.audit()
    assert [str(finding) for finding in audit.findings] == []
    assert (audit.commits, audit.groups_trained, audit.groups_ended) == (4, 9, 3)
    assert (audit.rounds_by_object, audit.rounds_by_hash) == ([0, 1, 2], [])
    assert (audit.rounds_in_ledger, audit.groups_mended) == (3, 0)
    assert (audit.manifests, audit.manifests_retired) == (4, 0)
    assert audit.to_json()["passed"] is True


# --- the chain


def break_link(run):
    key = f"runs/{RUN}/commits/c000001.json"
    run.store[key] = run.store[key].replace(b"filtered", b"filtered ").replace(b"filtered ", b"failed")


def hole(run):
    del run.store[f"runs/{RUN}/commits/c000001.json"]


def no_genesis(run):
    del run.store[f"runs/{RUN}/commits/genesis.json"]


def unreadable(run):
    run.store[f"runs/{RUN}/commits/c000002.json"] = b"{"


def lacking(run):
    del run.commits[2]["cohort_sha"]
    run.link()


def foreign_run(run):
    run.commits[1]["run"] = "other"
    run.link()


def other_round(run):
    key = f"runs/{RUN}/commits/c000002.json"
    run.store[key] = json.dumps({**run.commits[2], "round": 5}).encode()


def older_lineage(run):
    run.commits[0]["lineage"] = 2
    run.link()


def older_epoch(run):
    run.commits[0]["trainer_epoch"]["number"] = 9
    run.link()


def other_data(run):
    run.commits[1]["data_fingerprint"] = "e" * 64
    run.link()


def trained_twice(run):
    run.commits[2]["updates"][1]["groups"].append(run.member(1, 0))
    run.link()


def trained_and_ended(run):
    run.commits[1]["ended"].append({"group": group_id(1, 0), "state": "failed", "reason": "engine"})
    run.link()


def skipped_prompts(run):
    run.commits[1]["cursor"] += 1
    run.link()


def wrong_sums(run):
    run.commits[1]["updates"][0]["tokens"] += 1
    run.link()


def update_gap(run):
    run.commits[1]["updates"][1]["index"] = 4
    run.link()


# --- the objects


def missing_object(run):
    del run.store[run.member(1, 2)["object"]]


def altered_object(run):
    run.store[run.member(1, 2)["object"]] += b"x"


def sampled_by_another_version(run):
    run.replace_object(1, 2, group_bytes(1, 2, sampled=version(0)))


def right_number_other_weights(run):
    run.replace_object(1, 2, group_bytes(1, 2, sampled=WeightVersion(1, "f" * 64)))


def another_attempt(run):
    run.replace_object(1, 2, group_bytes(1, 2, attempt=2))


def another_group(run):
    run.replace_object(1, 2, group_bytes(1, 1))


def another_run(run):
    run.replace_object(1, 2, group_bytes(1, 2, run="other"))


def not_arrow(run):
    run.replace_object(1, 2, b"not arrow")


def manifest_altered(run):
    run.store[f"runs/{RUN}/weights/{version(2).sha[:16]}/manifest.json"] += b" "


def head_without_manifest(run):
    del run.store[f"runs/{RUN}/weights/{version(3).sha[:16]}/manifest.json"]


def head_without_file(run):
    del run.store[f"runs/{RUN}/weights/{version(3).sha[:16]}/model.safetensors"]


# --- the ledger


def group_left_out(run):
    run.commits[2] |= {"ended": [], "cursor": 11}
    run.link()
    run.change(
        VersionPublished, lambda e: e.version.number == 3, commit_sha=sha(run.store[f"runs/{RUN}/commits/c000002.json"])
    )


def group_never_created(run):
    run.drop(GroupMoved, lambda e: e.group == group_id(1, 0))


def assigned_elsewhere(run):
    run.change(GroupMoved, lambda e: e.group == group_id(1, 0) and e.after == "claimed", details={"update": "1"})


def announced_other_bytes(run):
    run.change(GroupMoved, lambda e: e.group == group_id(1, 0) and e.after == "queued", details={"sha256": "b" * 64})


def announced_other_version(run):
    run.change(
        GroupMoved, lambda e: e.group == group_id(1, 0) and e.after == "queued", details={"weights_sha": version(0).sha}
    )


def opened_with_other_weights(run):
    run.change(RoundMoved, lambda e: e.round == 1 and e.after == "open", details={"version_sha": version(0).sha})


def opened_with_other_cohort(run):
    run.change(RoundMoved, lambda e: e.round == 1 and e.after == "open", details={"cohort_sha": "e" * 64})


def opened_with_other_prompts(run):
    run.change(RoundMoved, lambda e: e.round == 1 and e.after == "open", details={"cursor": "5"})


def drawn_without_cause(run):
    run.change(RoundMoved, lambda e: e.round == 1 and e.after == "open", details={"groups": "2"})


def drawn_twice(run):
    for index in (1, 2):
        run.change(
            GroupMoved,
            lambda e, i=index: e.group == group_id(1, i) and e.before is None,
            details={"replaces": group_id(1, 3)},
        )


def small_first_update(run):
    run.change(RoundMoved, lambda e: e.round == 1 and e.after == "open", details={"groups_per_update": "3"})


def sealed_otherwise(run):
    run.change(UpdateSealed, lambda e: e.round == 1 and e.update == 0, tokens=1)


def not_trained_in_the_ledger(run):
    run.drop(GroupMoved, lambda e: e.group == group_id(1, 0) and e.after == "trained")


def ended_otherwise(run):
    run.change(GroupMoved, lambda e: e.group == group_id(1, 3) and e.after == "filtered", reason="engine")


def moved_later(run):
    run.history.group(90, group_id(0, 0), GroupState.DEFERRED, reason="a late worker")


def published_without_commit(run):
    run.history.version(90, 4)


def published_other_weights(run):
    run.change(VersionPublished, lambda e: e.version.number == 2, version=WeightVersion(2, "f" * 64))


def published_by_other_commit(run):
    run.change(VersionPublished, lambda e: e.version.number == 2, commit_sha="f" * 64)


def trained_without_commit(run):
    run.history.group(90, group_id(3, 0), GroupState.TRAINED)


def fenced_off_trainer_acts(run):
    run.history.role(90, epoch=2)
    run.history.seal(91, 3, 0)


def registry_with_foreign_weights(run):
    run.registry[2] = WeightVersion(2, "f" * 64)


VIOLATIONS = {
    break_link: "chain-link",
    hole: "chain-gap",
    no_genesis: "commit-missing",
    unreadable: "commit-unreadable",
    lacking: "commit-unreadable",
    foreign_run: "chain-run",
    other_round: "chain-round",
    older_lineage: "chain-lineage",
    older_epoch: "chain-epoch",
    other_data: "chain-data",
    trained_twice: "group-twice",
    trained_and_ended: "group-twice",
    skipped_prompts: "chain-cursor",
    wrong_sums: "update-sums",
    update_gap: "updates-gap",
    missing_object: "object-missing",
    altered_object: "object-hash",
    sampled_by_another_version: "object-content",
    right_number_other_weights: "object-content",
    another_attempt: "object-content",
    another_group: "object-content",
    another_run: "object-content",
    not_arrow: "object-unreadable",
    manifest_altered: "weights-hash",
    head_without_manifest: "weights-missing",
    head_without_file: "weights-missing",
    group_left_out: "group-missing",
    group_never_created: "group-unknown",
    assigned_elsewhere: "ledger-assignment",
    announced_other_bytes: "ledger-object",
    announced_other_version: "ledger-version",
    opened_with_other_weights: "ledger-opening",
    opened_with_other_cohort: "ledger-opening",
    opened_with_other_prompts: "ledger-opening",
    drawn_without_cause: "group-drawn",
    drawn_twice: "group-drawn",
    small_first_update: "update-size",
    sealed_otherwise: "ledger-seal",
    not_trained_in_the_ledger: "ledger-state",
    ended_otherwise: "ledger-state",
    moved_later: "moved-after-publish",
    published_without_commit: "version-uncommitted",
    published_other_weights: "version-other",
    published_by_other_commit: "version-commit",
    trained_without_commit: "trained-uncommitted",
    fenced_off_trainer_acts: "fenced-actor",
    registry_with_foreign_weights: "registry",
}
# These leave everything else as it was, so nothing else may be found.
ALONE = {
    missing_object,
    altered_object,
    sampled_by_another_version,
    right_number_other_weights,
    another_attempt,
    another_group,
    another_run,
    not_arrow,
    manifest_altered,
    head_without_manifest,
    head_without_file,
    group_left_out,
    group_never_created,
    assigned_elsewhere,
    announced_other_bytes,
    announced_other_version,
    opened_with_other_weights,
    opened_with_other_cohort,
    opened_with_other_prompts,
    drawn_without_cause,
    drawn_twice,
    small_first_update,
    sealed_otherwise,
    not_trained_in_the_ledger,
    ended_otherwise,
    moved_later,
    published_without_commit,
    published_other_weights,
    published_by_other_commit,
    trained_without_commit,
    fenced_off_trainer_acts,
    registry_with_foreign_weights,
}


@pytest.mark.parametrize("violate", VIOLATIONS, ids=lambda violate: violate.__name__)
def test_each_violation_is_found(run, violate):
    violate(run)
    audit = run.audit()
    assert not audit.passed
    found = checks(audit)
    assert VIOLATIONS[violate] in found
    if violate in ALONE:
        assert found == {VIOLATIONS[violate]}


# --- what is no violation


def test_objects_of_rounds_no_longer_kept_are_checked_by_hash_only(run):
    for index in range(3):
        del run.store[run.member(0, index)["object"]]
    audit = run.audit(keep_rounds=2)
    assert audit.passed
    assert (audit.rounds_by_object, audit.rounds_by_hash) == ([1, 2], [0])
    assert not run.audit().passed


@pytest.mark.parametrize("at_ms", [95, END_MS + 7])  # before the audit began, or while it read
def test_objects_that_the_ledger_says_were_retired_may_be_missing(run, at_ms):
    del run.store[run.member(1, 0)["object"]]
    run.history.events.append(ObjectsMoved("1-0", at_ms, "trainer-1", "retired", ("groups/r000001",), 0, 0))
    audit = run.audit()
    assert audit.passed
    assert (audit.rounds_by_object, audit.rounds_by_hash) == ([0, 2], [1])


@pytest.mark.parametrize("at_ms", [95, END_MS + 7])
@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_the_newest_weights_may_be_retired_while_it_reads(run, file, at_ms):
    """The run goes on meanwhile, and what was its head when the audit began is an old version."""
    name = f"weights/{version(ROUNDS).sha[:16]}"
    del run.store[f"runs/{RUN}/{name}/{file}"]
    run.history.events.append(ObjectsMoved("1-0", at_ms, "trainer-1", "retired", (name,), 0, 0))
    assert run.audit().passed
    run.history.events.append(ObjectsMoved("2-0", at_ms, "trainer-1", "kept", (name,), 0, 0))
    assert checks(run.audit()) == {"weights-missing"}


def test_weights_of_old_versions_may_be_retired(run):
    del run.store[f"runs/{RUN}/weights/{version(1).sha[:16]}/manifest.json"]
    audit = run.audit()
    assert audit.passed
    assert (audit.manifests, audit.manifests_retired) == (3, 1)


def test_an_assignment_that_redis_lost_is_counted(run):
    run.drop(GroupMoved, lambda e: e.group == group_id(2, 0) and e.after in ("queued", "claimed"))
    audit = run.audit()
    assert audit.passed
    assert audit.groups_mended == 1


def test_a_running_round_is_fine(run):
    run.history.open(90, 3, version_sha=version(3).sha)
    run.history.group(90, group_id(3, 0), GroupState.DEFERRED, 0)
    run.history.serve(group_id(3, 0), 91, 92, 93)
    run.history.claim(94, group_id(3, 0), 0, 0)
    assert run.audit().passed


def test_the_chain_may_be_ahead_of_the_events(run):
    """Round 2 was committed after the look at the clock: its events end in the middle."""
    at_ms = run.history.T0 + 25_500  # round 2 opened at 21 and claimed at 25
    audit = run.audit(until_ms=at_ms)
    assert audit.passed
    assert audit.rounds_in_ledger == 2


def test_a_group_may_replace_a_filtered_one(run):
    """Round 2 opened with three groups, of which the last was filtered; group 2 came in its place."""
    run.change(RoundMoved, lambda e: e.round == 2 and e.after == "open", details={"groups": "3"})
    run.change(
        GroupMoved, lambda e: e.group == group_id(2, 2) and e.before is None, details={"replaces": group_id(2, 3)}
    )
    assert run.audit().passed


def test_a_group_drawn_in_a_history_that_redis_lost_was_put_aside(run):
    events = run.history.events
    closed = next(place for place, e in enumerate(events) if isinstance(e, RoundMoved) and e.after == "committed")
    run.history.events, rest = events[:closed], events[closed:]
    run.history.group(6, group_id(0, 4), GroupState.DEFERRED, 0, replaces=group_id(0, 3))
    run.history.group(6, group_id(0, 4), GroupState.REJECTED, 0, reason=NOT_COMMITTED)
    run.history.events += rest
    assert run.audit().passed


def test_updates_assigned_anew_are_fine(run):
    """Round 0 begins with another update, whose members are taken back; only what came later must agree."""
    events = run.history.events
    first = next(place for place, e in enumerate(events) if isinstance(e, GroupMoved) and e.after == "claimed")
    run.history.events, rest = events[:first], events[first:]
    run.history.claim(4.5, group_id(0, 1), 0, 0)
    run.history.seal(4.5, 0, 0, 1, 1, 1)
    run.history.group(4.5, group_id(0, 1), GroupState.QUEUED, reason="an object is damaged")
    run.history.events += rest
    assert run.audit().passed


@pytest.mark.parametrize("stored", [b"{", b"[]", b'{"retention": null}', b'{"retention": {"keep_rounds": "2"}}'])
def test_a_configuration_that_is_none(run, stored):
    run.store[f"runs/{RUN}/config.json"] = stored
    with pytest.raises(Damaged, match="not a configuration"):
        stored_keep_rounds(run.store, RUN)


def test_rounds_as_ranges():
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == "none"
