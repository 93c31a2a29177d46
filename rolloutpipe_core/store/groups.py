"""A group as an Arrow IPC file: one row a sample, what they share in the schema's metadata.

    metadata: schema_version, run, lineage, round, group, attempt, weight_version, weight_sha, prompt_id

Ids come from the engine and go to the loss as they are. The same group always gives the same bytes, whose
sha256 names the object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rolloutpipe_core.advantage import group_statistics
from rolloutpipe_core.domain import FinishReason, Group, GroupRef, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.errors import Damaged

SCHEMA_VERSION = 1

FACTS = {"run", "lineage", "round", "group", "attempt", "weight_version", "weight_sha", "prompt_id"}
SPAN = pa.struct([("version", pa.int64()), ("sha", pa.string()), ("start", pa.int32()), ("end", pa.int32())])
FINISH_REASONS = tuple(reason.value for reason in FinishReason)
COLUMNS = pa.schema(
    [
        ("sample", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("reward", pa.float32()),
        ("advantage", pa.float32()),
        ("finish_reason", pa.dictionary(pa.int8(), pa.string())),
        ("weight_version_spans", pa.list_(SPAN)),
    ]
)
FOR_PEOPLE = pa.schema([("text", pa.string()), ("reason", pa.string())])
"""Each is present when a sample has it; the only columns that may hold nulls."""
LISTS = ("prompt_ids", "response_ids", "behavior_logprobs", "loss_mask")
WRITING = pa.ipc.IpcWriteOptions()


def encode_group(group: Group) -> bytes:
    """The group's file. Reward and advantage are kept as float32."""
    samples = group.samples
    columns: dict[str, Any] = {
        "sample": [sample.index for sample in samples],
        **{name: [getattr(sample, name) for sample in samples] for name in LISTS},
        "reward": [sample.reward for sample in samples],
        "advantage": [sample.advantage for sample in samples],
        "weight_version_spans": [[_span_row(span) for span in sample.spans] for sample in samples],
    }
    arrays = {name: pa.array(values, COLUMNS.field(name).type) for name, values in columns.items()}
    reasons = pa.array([FINISH_REASONS.index(sample.finish_reason) for sample in samples], pa.int8())
    # The same dictionary in every file, whichever reasons occur.
    arrays["finish_reason"] = pa.DictionaryArray.from_arrays(reasons, pa.array(FINISH_REASONS, pa.string()))
    schema = COLUMNS
    for field in FOR_PEOPLE:
        words = [getattr(sample, field.name) for sample in samples]
        if any(word is not None for word in words):
            schema = schema.append(field)
            arrays[field.name] = pa.array(words, field.type)
    schema = schema.with_metadata(_metadata(group))
    batch = pa.record_batch([arrays[name] for name in schema.names], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=WRITING) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def decode_group(data: bytes) -> Group:
    """The group of a file. Raises Damaged, with the reason, on anything `encode_group` would not write."""
    batch = _read(data)
    try:
        facts = _facts(batch.schema.metadata or {})
        _check_columns(batch)
        return _group(facts, batch)
    except Damaged:
        raise
    except (pa.ArrowException, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _damaged(f"unreadable content: {error}") from error


def group_key(run: str, round: int, index: int, sha256: str) -> str:
    """`group_key("demo", 12, 34, sha) == "runs/demo/groups/r000012/g0034-<sha[:16]>.arrow"`."""
    return f"runs/{run}/groups/r{round:06d}/g{index:04d}-{sha256[:16]}.arrow"


def reference_of(group: Group, data: bytes) -> GroupRef:
    """What is announced about a group whose file is `data`."""
    sha256 = hashlib.sha256(data).hexdigest()
    statistics = group_statistics([sample.reward for sample in group.samples])
    return GroupRef(
        group=group.id,
        round=group.round,
        index=group.index,
        lineage=group.lineage,
        attempt=group.attempt,
        version=group.version,
        object=group_key(group.run, group.round, group.index, sha256),
        sha256=sha256,
        samples=len(group.samples),
        tokens=group.tokens,
        reward_mean=statistics.mean,
        reward_std=statistics.std,
    )


def _damaged(reason: str) -> Damaged:
    return Damaged(f"group file: {reason}")


def _span_row(span: VersionSpan) -> dict[str, Any]:
    return {"version": span.version.number, "sha": span.version.sha, "start": span.start, "end": span.end}


def _metadata(group: Group) -> dict[str, str]:
    return {
        "schema_version": str(SCHEMA_VERSION),
        "run": group.run,
        "lineage": str(group.lineage),
        "round": str(group.round),
        "group": str(group.index),
        "attempt": str(group.attempt),
        "weight_version": str(group.version.number),
        "weight_sha": group.version.sha,
        "prompt_id": group.prompt_id,
    }


def _read(data: bytes) -> pa.RecordBatch:
    """The file's one batch, with every offset and index proven to lie inside its buffers."""
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            if reader.num_record_batches != 1:
                raise _damaged(f"{reader.num_record_batches} record batches, not 1")
            batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise _damaged(f"not a whole Arrow file ({len(data)} bytes): {error}") from error
    return batch


def _facts(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    facts = {key.decode(): value.decode() for key, value in metadata.items()}
    if facts.get("schema_version") != str(SCHEMA_VERSION):
        raise _damaged(f"schema version {facts.get('schema_version')}, not {SCHEMA_VERSION}")
    if missing := FACTS - facts.keys():
        raise _damaged(f"metadata lacks {', '.join(sorted(missing))}")
    return facts


@cache
def _expected(words: tuple[str, ...]) -> pa.Schema:
    return pa.schema([*COLUMNS, *(FOR_PEOPLE.field(name) for name in words)])


def _check_columns(batch: pa.RecordBatch) -> None:
    expected = _expected(tuple(name for name in FOR_PEOPLE.names if name in batch.schema.names))
    if batch.schema.names != expected.names:
        raise _damaged(f"columns {', '.join(batch.schema.names)}, not {', '.join(expected.names)}")
    for name, kind, column in zip(expected.names, expected.types, batch.columns, strict=True):
        if column.type != kind:
            raise _damaged(f"column {name} has type {column.type}, not {kind}")
        if name not in FOR_PEOPLE.names and _nulls(column):
            raise _damaged(f"column {name} holds nulls")


def _nulls(column: pa.Array) -> int:
    """Nulls of a column at any depth."""
    nulls = int(column.null_count)
    if isinstance(column, pa.ListArray):
        nulls += _nulls(column.values)
    elif isinstance(column, pa.StructArray):
        nulls += sum(_nulls(column.field(place)) for place in range(column.type.num_fields))
    elif isinstance(column, pa.DictionaryArray):
        nulls += int(column.dictionary.null_count)
    return nulls


def _group(facts: Mapping[str, str], batch: pa.RecordBatch) -> Group:
    columns = {name: batch.column(name) for name in batch.schema.names}
    numbers = {name: _rows(columns[name]) for name in LISTS}
    plain = {name: columns[name].to_pylist() for name in ("sample", "reward", "advantage")}
    reasons = [FinishReason(reason) for reason in columns["finish_reason"].dictionary.to_pylist()]
    finished = columns["finish_reason"].indices.to_pylist()
    spans = columns["weight_version_spans"].to_pylist()
    nothing = [None] * batch.num_rows
    words = {name: columns[name].to_pylist() if name in columns else nothing for name in FOR_PEOPLE.names}
    samples = (
        Sample(
            index=plain["sample"][row],
            prompt_ids=numbers["prompt_ids"][row],
            response_ids=numbers["response_ids"][row],
            behavior_logprobs=numbers["behavior_logprobs"][row],
            loss_mask=numbers["loss_mask"][row],
            reward=plain["reward"][row],
            advantage=plain["advantage"][row],
            finish_reason=reasons[finished[row]],
            spans=tuple(
                VersionSpan(WeightVersion(span["version"], span["sha"]), span["start"], span["end"])
                for span in spans[row]
            ),
            text=words["text"][row],
            reason=words["reason"][row],
        )
        for row in range(batch.num_rows)
    )
    return Group(
        run=facts["run"],
        lineage=int(facts["lineage"]),
        round=int(facts["round"]),
        index=int(facts["group"]),
        attempt=int(facts["attempt"]),
        version=WeightVersion(int(facts["weight_version"]), facts["weight_sha"]),
        prompt_id=facts["prompt_id"],
        samples=tuple(samples),
    )


def _rows(column: pa.ListArray) -> list[NDArray[Any]]:
    """The column's lists, writable and aligned: parts of one array of their own."""
    values = np.array(column.values.to_numpy(zero_copy_only=False))
    return [values[start:end] for start, end in pairwise(column.offsets.to_pylist())]
