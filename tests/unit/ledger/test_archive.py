"""What may be archived, the files, and reading parts that overlap."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpipe_core.errors import Damaged, LedgerRefused, ObjectMissing
from rolloutpipe_core.ledger.archive import Archive, Part, closed_part, decode_part, encode_part, part_key, union
from rolloutpipe_core.ledger.archivist import entries_sha1
from rolloutpipe_core.ledger.events import Entry, place
from rolloutpipe_core.store.objects import ObjectInfo


def entry(second: int, kind: str, **fields: object) -> Entry:
    """Told `second` seconds after 1970."""
    texts = {name.rstrip("_"): str(value) for name, value in fields.items()}
    at_ms = str(second * 1000)
    return f"{at_ms}-0", {"v": "1", "type": kind, "at_ms": at_ms, "actor": "trainer-1", **texts}


def published(second: int, round: int) -> Entry:
    return entry(second, "round", round=round, to="published", generation=1, published_version=round + 1)


def sealed(second: int, round: int) -> Entry:
    return entry(second, "sealed", round=round, update=0, groups=2, samples=4, tokens=9)


RUN = entry(0, "run", to="prepared")
ADMITTED = entry(1, "group", group="r000000-g0000", round=0, from_="", to="deferred", attempt=0, prompt="p\n\u00fc")
STREAM = [RUN, ADMITTED, sealed(2, 0), published(3, 0), sealed(4, 1), published(5, 1), sealed(6, 2), published(7, 2)]


@pytest.mark.parametrize(
    ("last_round", "before_s", "least", "length"),
    [
        (0, 99, 1, 4),  # up to the publishing of round 0
        (1, 99, 1, 4),  # the shortest
        (1, 99, 4, 4),
        (1, 99, 5, 6),  # both rounds, for one has only four events
        (1, 99, 7, 6),  # all that there is
        (2, 99, 7, 8),
        (9, 99, 9, 8),
        (-1, 99, 1, 0),  # every round is one to keep
        (1, 4, 1, 4),  # told before second 4
        (1, 3, 1, 0),  # the publishing of round 0 is of second 3: not before
        (1, 5, 5, 4),
    ],
)
def test_what_may_be_archived(last_round: int, before_s: int, least: int, length: int) -> None:
    assert closed_part(STREAM, last_round, before_s * 1000, least) == STREAM[:length]


def test_a_round_that_redis_forgot_to_publish_closes_with_the_next() -> None:
    """Redis lost its last second: round 0 has no end in the ledger."""
    stream = [RUN, ADMITTED, sealed(2, 0), sealed(4, 1), published(5, 1), sealed(6, 2)]
    assert closed_part(stream, 1, 99_000, 1) == stream[:5]
    assert closed_part(stream, 0, 99_000, 1) == []


def test_an_event_of_another_schema_is_not_archived() -> None:
    with pytest.raises(LedgerRefused, match="unknown ledger entry"):
        closed_part([("1-0", {"v": "2", "type": "run"})], 5, 99_000, 1)


def test_a_part_comes_back_as_it_was() -> None:
    data = encode_part("demo", STREAM)
    assert list(decode_part(data)) == STREAM
    assert list(decode_part(data, {1, 5})) == STREAM[4:6]
    assert encode_part("demo", STREAM) == data
    table = pq.read_table(io.BytesIO(data))
    assert table.schema.metadata == {b"schema_version": b"1", b"run": b"demo"}
    assert table.slice(1, 1).to_pylist() == [
        {
            "id": "1000-0",
            "v": "1",
            "type": "group",
            "at_ms": 1000,
            "actor": "trainer-1",
            "round": 0,
            "fields": '{"attempt":"0","from":"","group":"r000000-g0000","prompt":"p\\nü","to":"deferred"}',
        }
    ]


def test_a_broken_part() -> None:
    data = encode_part("demo", STREAM)
    with pytest.raises(Damaged, match="unreadable"):
        list(decode_part(data[:-9]))
    table = pq.read_table(io.BytesIO(data)).replace_schema_metadata({"schema_version": "2"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with pytest.raises(Damaged, match="schema version '2'"):
        list(decode_part(sink.getvalue().to_pybytes()))


def test_the_hash_of_entries() -> None:
    # sha1 of "3:1-0" "1:v" "1:1" "1:a" "2:\u00fc": lengths are bytes
    assert entries_sha1([("1-0", {"v": "1", "a": "\u00fc"})]) == "498f1a58adc9c1d2748495a99957963ea2498be0"


ids = st.integers(0, 30).map(lambda number: f"{number // 3}-{number % 3}")


@given(st.lists(st.sets(ids, min_size=1), max_size=6))
def test_the_union_of_overlapping_sources(held: list[set[str]]) -> None:
    """Every id once, in order, whatever each source holds; and each is opened not before its turn."""
    told: list[str] = []

    def open(names: list[str]) -> Iterator[Entry]:
        assert all(place(id) < place(names[0]) for id in told)
        for id in names:
            yield id, {"of": id}

    ordered = [sorted(names, key=place) for names in held]
    for id, fields in union((place(names[0]), lambda names=names: open(names)) for names in ordered):
        assert fields == {"of": id}
        told.append(id)
    assert told == sorted(set().union(*held), key=place)


class Shelf:
    """As much of a store as an archive needs."""

    bucket = "shelf"

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(key, len(data)) for key, data in sorted(self.objects.items()) if key.startswith(prefix))

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.objects.setdefault(key, data)


def test_an_archive() -> None:
    assert part_key("demo", "1-0", "7-2") == "runs/demo/ledger/1-0-7-2.parquet"
    shelf = Shelf({"runs/demo/ledger/notes.txt": b"", "runs/demo/ledger/1-0.parquet": b""})
    archive = Archive(shelf, "demo")
    late = [(f"1000{id}", fields) for id, fields in STREAM]  # "10000-0" comes after "7000-0"
    parts = [archive.put(late), archive.put(STREAM[:4]), archive.put(STREAM)]
    assert parts[1] == Part("runs/demo/ledger/0-0-3000-0.parquet", "0-0", "3000-0")
    assert archive.parts() == [parts[1], parts[2], parts[0]]
    assert list(archive.entries(archive.parts())) == STREAM + late
    assert [id for id, _ in archive.entries(archive.parts(), {0})] == [id for id, _ in STREAM[1:4] + late[1:4]]


def test_another_part_under_the_same_name() -> None:
    archive = Archive(Shelf({part_key("demo", STREAM[0][0], STREAM[-1][0]): encode_part("demo", STREAM[:3])}), "demo")
    with pytest.raises(Damaged, match=r"0-0-7000-0.parquet is not what the ledger holds"):
        archive.put(STREAM)


def test_the_same_part_in_other_bytes_is_the_same() -> None:
    key = part_key("demo", STREAM[0][0], STREAM[-1][0])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(io.BytesIO(encode_part("demo", STREAM))), sink, compression="snappy")
    assert Archive(Shelf({key: sink.getvalue().to_pybytes()}), "demo").put(STREAM).key == key
