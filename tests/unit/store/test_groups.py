"""Group files: what is written is read back, and nothing else is."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.errors import Damaged
from rolloutpipe_core.store.groups import decode_group, encode_group, group_key, reference_of


def same(left: Group, right: Group) -> bool:
    """Equal in every field, arrays by value and type."""
    names = ("run", "lineage", "round", "index", "attempt", "version", "prompt_id")
    return all(getattr(left, name) == getattr(right, name) for name in names) and all(
        same_sample(a, b) for a, b in zip(left.samples, right.samples, strict=True)
    )


def same_sample(left: Sample, right: Sample) -> bool:
    arrays = ("prompt_ids", "response_ids", "behavior_logprobs", "loss_mask")
    plain = ("index", "reward", "advantage", "finish_reason", "spans", "text")
    return all(getattr(left, name) == getattr(right, name) for name in plain) and all(
        getattr(left, name).dtype == getattr(right, name).dtype
        and np.array_equal(getattr(left, name), getattr(right, name), equal_nan=name == "behavior_logprobs")
        for name in arrays
    )


def table_of(data: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()


def file_of(table: pa.Table, batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for _ in range(batches):
            writer.write_batch(table.combine_chunks().to_batches()[0])
    return sink.getvalue().to_pybytes()


version = st.builds(WeightVersion, st.integers(0, 2**40), st.text("0123456789abcdef", min_size=64, max_size=64))
span = st.builds(VersionSpan, version, st.integers(0, 100), st.integers(0, 100))
float32 = st.floats(width=32, allow_nan=False)


def ids(maximum: int, dtype: type) -> st.SearchStrategy:
    return st.lists(st.integers(0, maximum), max_size=5).map(lambda values: np.array(values, dtype=dtype))


sample = st.builds(
    Sample,
    index=st.integers(0, 100),
    prompt_ids=ids(2**31 - 1, np.int32),
    response_ids=ids(2**31 - 1, np.int32),
    behavior_logprobs=st.lists(st.floats(width=32), max_size=5).map(lambda values: np.array(values, dtype=np.float32)),
    loss_mask=ids(255, np.uint8),
    reward=float32,
    advantage=float32,
    finish_reason=st.sampled_from(FinishReason),
    spans=st.lists(span, max_size=2).map(tuple),
    text=st.none() | st.text(max_size=5),
)
group = st.builds(
    Group,
    run=st.just("demo"),
    lineage=st.integers(1, 9),
    round=st.integers(0, 10**7),
    index=st.integers(0, 10**5),
    attempt=st.integers(1, 9),
    version=version,
    prompt_id=st.text(max_size=9),
    samples=st.lists(sample, max_size=3).map(tuple),
)


@given(group)
def test_a_group_is_read_back_as_it_was(group):
    data = encode_group(group)
    assert same(decode_group(data), group)
    assert encode_group(group) == data
    assert encode_group(decode_group(data)) == data


@given(st.data())
def test_flipped_and_missing_bytes_never_crash(data):
    """Damaged, or, where the byte did not matter or was a value, a group."""
    file = bytearray(WHOLE)
    for place in data.draw(st.lists(st.integers(0, len(file) - 1), max_size=8)):
        file[place] ^= data.draw(st.integers(1, 255))
    try:
        decode_group(bytes(file[: data.draw(st.integers(0, len(file)))]))
    except Damaged as error:
        assert str(error).startswith("group file: ")


@given(st.binary(max_size=64))
def test_other_bytes_are_no_group(data):
    with pytest.raises(Damaged, match="not a whole Arrow file"):
        decode_group(data)


def walk_group() -> Group:
    return Group(
        "demo",
        1,
        12,
        34,
        1,
        WeightVersion(12, "ab" * 32),
        "walk-7",
        tuple(
            Sample(
                index,
                np.array([5, 6], dtype=np.int32),
                np.arange(4, dtype=np.int32),
                np.full(4, -0.5, dtype=np.float32),
                np.ones(4, dtype=np.uint8),
                0.5,
                0.0,
                FinishReason.LENGTH,
                (VersionSpan(WeightVersion(12, "ab" * 32), 0, 4),),
                "#B" if index else None,
            )
            for index in range(2)
        ),
    )


WHOLE = encode_group(walk_group())


def test_the_schema_is_the_documented_one():
    table = table_of(WHOLE)
    assert [f"{field.name}: {field.type}" for field in table.schema] == [
        "sample: int32",
        "prompt_ids: list<item: int32>",
        "response_ids: list<item: int32>",
        "behavior_logprobs: list<item: float>",
        "loss_mask: list<item: uint8>",
        "reward: float",
        "advantage: float",
        "finish_reason: dictionary<values=string, indices=int8, ordered=0>",
        "weight_version_spans: list<item: struct<version: int64, sha: string, start: int32, end: int32>>",
        "text: string",
    ]
    assert table.schema.metadata == {
        b"schema_version": b"1",
        b"run": b"demo",
        b"lineage": b"1",
        b"round": b"12",
        b"group": b"34",
        b"attempt": b"1",
        b"weight_version": b"12",
        b"weight_sha": b"ab" * 32,
        b"prompt_id": b"walk-7",
    }
    assert table["text"].to_pylist() == [None, "#B"]


def test_without_text_there_is_no_text_column(make_group):
    assert "text" not in table_of(encode_group(make_group())).schema.names


def test_decoded_arrays_belong_to_the_group():
    sample = decode_group(WHOLE).samples[0]
    assert sample.response_ids.flags.writeable and sample.behavior_logprobs.flags.aligned


def retyped(name: str, values: pa.Array) -> bytes:
    table = table_of(WHOLE)
    return file_of(table.set_column(table.schema.get_field_index(name), name, values))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (WHOLE[: len(WHOLE) // 2], r"not a whole Arrow file \(\d+ bytes\)"),
        (b"", r"not a whole Arrow file \(0 bytes\)"),
        (file_of(table_of(WHOLE), batches=2), "2 record batches, not 1"),
        (
            file_of(table_of(WHOLE).replace_schema_metadata({"schema_version": "2"})),
            "schema version 2, not 1",
        ),
        (file_of(table_of(WHOLE).replace_schema_metadata(None)), "schema version None, not 1"),
        (
            file_of(table_of(WHOLE).replace_schema_metadata({"schema_version": "1", "run": "demo"})),
            "metadata lacks attempt, group, lineage, prompt_id, round, weight_sha, weight_version",
        ),
        (file_of(table_of(WHOLE).drop_columns(["reward"])), "columns sample, .*, not sample, "),
        (
            retyped("reward", pa.array([0.5, 0.5], pa.float64())),
            "column reward has type double, not float",
        ),
        (retyped("reward", pa.array([0.5, None], pa.float32())), "column reward holds nulls"),
        (
            retyped("response_ids", pa.array([[1, None], [2]], pa.list_(pa.int32()))),
            "column response_ids holds nulls",
        ),
        (
            retyped(
                "finish_reason",
                pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["stop", "tired"])),
            ),
            "unreadable content: 'tired' is not a valid FinishReason",
        ),
    ],
)
def test_the_reason_of_the_damage(file, reason):
    with pytest.raises(Damaged, match=f"^group file: {reason}"):
        decode_group(file)


def test_the_announcement_of_a_group(make_group):
    group = make_group()
    ref = reference_of(group, encode_group(group))
    assert (ref.group, ref.round, ref.index, ref.lineage, ref.attempt) == ("r000012-g0034", 12, 34, 1, 1)
    assert (ref.samples, ref.tokens) == (2, 2 + 3 + 2 + 5)
    assert ref.object == group_key("demo", 12, 34, ref.sha256)
    # Rewards 0 and 0.25: their mean, and their deviation divided by K - 1.
    assert ref.reward_mean == 0.125
    assert ref.reward_std == pytest.approx(0.25 / 2**0.5)


def test_the_key_of_a_group():
    assert group_key("demo", 12, 34, "0123456789abcdef" * 4) == "runs/demo/groups/r000012/g0034-0123456789abcdef.arrow"
