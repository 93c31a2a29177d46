"""Nothing stale or damaged is trained, its reason is stored, and the run goes on."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rolloutpipe_core.domain import FinishReason, Group, GroupState, VersionSpan, WeightVersion, group_id
from rolloutpipe_core.errors import RunStopped
from rolloutpipe_core.ledger.events import AnnouncementRefused
from rolloutpipe_core.store.groups import encode_group

from .conftest import Bench, K, R, with_sample

OTHER_SHA = "f" * 64


@dataclass(frozen=True)
class Damage:
    """A way to announce a group wrongly, and words that its stored reason must hold."""

    reason: str
    group: Callable[[Group], Group] = lambda group: group
    bytes: Callable[[bytes], bytes | None] = lambda data: data
    encode: Callable[[Group], bytes] = encode_group


def restamped(version: WeightVersion) -> Callable[[Group], Group]:
    def change(group: Group) -> Group:
        spans = [(VersionSpan(version, 0, len(sample.response_ids)),) for sample in group.samples]
        samples = [replace(sample, spans=span) for sample, span in zip(group.samples, spans, strict=True)]
        return replace(group, version=version, samples=tuple(samples))

    return change


def mixed_spans(group: Group) -> Group:
    end = len(group.samples[0].response_ids)
    other = WeightVersion(group.version.number + 1, OTHER_SHA)
    return with_sample(group, 0, spans=(VersionSpan(group.version, 0, 1), VersionSpan(other, 1, end)))


def logprob(value: float) -> Callable[[Group], Group]:
    def change(group: Group) -> Group:
        values = group.samples[1].behavior_logprobs.copy()
        values[-1] = value
        return with_sample(group, 1, behavior_logprobs=values)

    return change


def unequal(group: Group) -> Group:
    return with_sample(group, 1, behavior_logprobs=np.array([-1.0], np.float32))


def other_schema_version(group: Group) -> bytes:
    with pa.ipc.open_file(io.BytesIO(encode_group(group))) as reader:
        table = reader.read_all()
    metadata = {key: b"99" if b"schema" in key else value for key, value in table.schema.metadata.items()}
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue()


def flipped(data: bytes) -> bytes:
    return data[:200] + bytes([data[200] ^ 1]) + data[201:]


DAMAGES: dict[str, Damage] = {
    "stale number": Damage("stale version", restamped(WeightVersion(7, OTHER_SHA))),
    "right number, other manifest": Damage("stale version", restamped(WeightVersion(0, OTHER_SHA))),
    "mixed spans": Damage("sample 0", mixed_spans),
    "short group": Damage("wrong samples", lambda group: replace(group, samples=group.samples[:1])),
    "unequal lengths": Damage("sample 1", unequal),
    "NaN logprob": Damage("sample 1", logprob(float("nan"))),
    "positive logprob": Damage("sample 1", logprob(0.5)),
    "aborted sample": Damage("abort", lambda group: with_sample(group, 0, finish_reason=FinishReason.ABORT)),
    "id outside the vocabulary": Damage(
        "sample 0", lambda group: with_sample(group, 0, prompt_ids=np.array([3, 99], np.int32))
    ),
    "truncated object": Damage("altered object", bytes=lambda data: data[:-100]),
    "altered object": Damage("altered object", bytes=flipped),
    "missing object": Damage("missing object", bytes=lambda data: None),
    "not Arrow": Damage("group file", encode=lambda group: b"not an Arrow file"),
    "wrong schema version": Damage("schema", encode=other_schema_version),
    "old attempt": Damage("old attempt", lambda group: replace(group, attempt=group.attempt + 6)),
}


def announce(bench: Bench, index: int, damage: Damage) -> None:
    lease = bench.rollout.admit(index)
    group = damage.group(bench.rollout.group(lease))

    def keep_attempt(ref: Any) -> Any:
        return replace(ref, attempt=lease.attempt)

    bench.rollout.announce(lease, group, change_ref=keep_attempt, change_bytes=damage.bytes, encode=damage.encode)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_group_is_rejected_with_its_reason_and_served_again(bench: Bench, damage: Damage) -> None:
    trainer = bench.start_trainer()
    bench.rollout.open()
    announce(bench, 1, damage)
    bench.rollout.serve(0)
    bench.rollout.serve(2)
    group = group_id(0, 1)
    trainer.wait_for(lambda: bench.reader.group(group)["state"] == GroupState.DEFERRED)
    assert damage.reason in bench.reader.group(group)["reason"]
    assert bench.reader.round_state(0)["state"] == "generating", "the drained round is open again"

    bench.rollout.serve(1)
    trainer.finish()

    assert sorted(trainer.accumulated) == [(group_id(0, 0), 1), (group, 2), (group_id(0, 2), 1)]
    assert trainer.published()
    rejection = next(move for move in bench.rollout.moves(group) if move.before == GroupState.QUEUED)
    assert (rejection.after, rejection.attempt) == (GroupState.DEFERRED, 1)
    assert damage.reason in rejection.reason


def test_a_group_that_stays_damaged_ends_rejected_and_the_round_goes_on(bench: Bench) -> None:
    trainer = bench.start_trainer()
    bench.rollout.open()
    bench.rollout.serve(0)
    bench.rollout.serve(2)
    damage, group = DAMAGES["missing object"], group_id(0, 1)
    for state in (GroupState.DEFERRED, GroupState.REJECTED):
        announce(bench, 1, damage)
        trainer.wait_for(lambda: bench.reader.group(group)["state"] == state)  # noqa: B023
    trainer.finish()
    head = bench.chain.head()
    assert head is not None
    assert sorted(member.group for member in head.commit.groups) == [group_id(0, 0), group_id(0, 2)]
    assert [(end.group, end.state) for end in head.commit.ended] == [(group, "rejected")]
    assert damage.reason in head.commit.ended[0].reason


@pytest.mark.parametrize("bench", [{"max_unusable_fraction": 0.2}], indirect=True)
def test_too_many_unusable_groups_stop_the_run_with_the_reasons(bench: Bench) -> None:
    trainer = bench.start_trainer()
    bench.rollout.open()
    bench.rollout.serve(0)
    bench.rollout.serve(2)
    for state in (GroupState.DEFERRED, GroupState.REJECTED):
        announce(bench, 1, DAMAGES["missing object"])
        trainer.wait_for(lambda: bench.reader.group(group_id(0, 1))["state"] == state or trainer.error)  # noqa: B023
    with pytest.raises(RunStopped, match=r"1 of 3 groups ended unused.*missing"):
        trainer.finish()
    assert bench.reader.run_state()["state"] == "stopped"
    assert not trainer.published(), "nothing was published"
    head = bench.chain.head()
    assert head is not None
    assert head.commit.version.number == 0
    schedule = bench.config.schedule.model_copy(update={"max_unusable_fraction": 0.4})
    bench.start_trainer(bench.config.model_copy(update={"schedule": schedule})).finish()
    assert trainer.published(), "started again with a larger share, the run goes on"


def test_a_duplicate_announcement_is_put_aside(bench: Bench) -> None:
    bench.rollout.open()
    for index in range(R):
        bench.rollout.serve(index)
    client = bench.rollout.ledger.client
    _, fields = client.redis.xrange(client.keys.fifo)[0]
    copy = client.redis.xadd(client.keys.fifo, fields)
    trainer = bench.start_trainer()
    trainer.finish()
    assert sorted(trainer.accumulated) == [(group_id(0, index), 1) for index in range(R)], "each group once"
    refused = [event for event in bench.reader.events() if isinstance(event, AnnouncementRefused)]
    assert [event.group for event in refused] == [fields["group"]]
    assert f"duplicate announcement: entry {copy}" in refused[0].reason
    assert bench.reader.pending() == []


def test_an_old_announcement_of_a_readmitted_group_is_put_aside(bench: Bench) -> None:
    """Attempt 1 was announced, and again by a foreign hand after attempt 2 had become the current one."""
    bench.rollout.open()
    announce(bench, 0, DAMAGES["missing object"])
    client = bench.rollout.ledger.client
    _, fields = client.redis.xrange(client.keys.fifo)[0]
    trainer = bench.start_trainer()
    group = group_id(0, 0)
    trainer.wait_for(lambda: bench.reader.group(group)["state"] == GroupState.DEFERRED)
    bench.rollout.serve(0)
    trainer.wait_for(lambda: bench.reader.group(group)["state"] == GroupState.CLAIMED)
    client.redis.xadd(client.keys.fifo, fields)
    bench.rollout.serve(1)
    bench.rollout.serve(2)
    trainer.finish()
    assert sorted(trainer.accumulated) == [(group, 2), (group_id(0, 1), 1), (group_id(0, 2), 1)]


REFERENCE = {
    **dict.fromkeys(("round", "index", "weight_version", "tokens", "reward_mean", "reward_std"), "0"),
    **dict.fromkeys(("lineage", "attempt", "samples"), "1"),
    **dict.fromkeys(("kind", "group", "weights_sha", "object", "sha256"), "group"),
}


@pytest.mark.parametrize("entry", [{"hello": "world"}, REFERENCE], ids=["no reference", "no group's name"])
def test_a_foreign_entry_is_passed_over(bench: Bench, entry: dict[Any, Any]) -> None:
    bench.rollout.open()
    client = bench.rollout.ledger.client
    client.redis.xadd(client.keys.fifo, entry)
    for index in range(R):
        bench.rollout.serve(index)
    trainer = bench.start_trainer()
    trainer.finish()
    assert len(trainer.accumulated) == R
    assert bench.config.schedule.samples_per_group == K
    assert bench.reader.pending() == [], "it holds up no trimming of the FIFO"
