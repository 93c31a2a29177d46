"""The ledger's archive in the object store: closed ranges of the stream as Parquet files, one row an event.

    runs/<run>/ledger/<first id>-<last id>.parquet     id, v, type, at_ms, actor, round, fields (the rest, as JSON)

A part is a function of its range, so writing it again is harmless. Parts may overlap, after a crash between upload
and trim: whoever reads takes the union of their ids.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rolloutpipe_core.domain import RoundState, validate_run_name
from rolloutpipe_core.errors import Damaged
from rolloutpipe_core.ledger.events import Entry, RoundMoved, parse_event, place
from rolloutpipe_core.store.canonical import canonical_json
from rolloutpipe_core.store.objects import ObjectStore

SCHEMA_VERSION = "1"
PART_NAME = re.compile(r"(\d+-\d+)-(\d+-\d+)\.parquet")
COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("v", pa.string()),
        ("type", pa.string()),
        ("at_ms", pa.int64()),
        ("actor", pa.string()),
        ("round", pa.int64()),  # null: the event is of no round
        ("fields", pa.string()),
    ]
)
NUMBERS = ("at_ms", "round")
OWN_COLUMNS = COLUMNS.names[1:-1]

Source = tuple[tuple[int, int], Callable[[], Iterator[Entry]]]
"""Entries in the order of their ids: the place of the first one, and how to open it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the archive, by its name."""

    key: str
    first: str  # stream ids
    last: str


def part_key(run: str, first: str, last: str) -> str:
    """`part_key("demo", "1-0", "7-2") == "runs/demo/ledger/1-0-7-2.parquet"`."""
    return f"runs/{validate_run_name(run)}/ledger/{first}-{last}.parquet"


def closed_part(entries: Iterable[Entry], last_round: int, before_ms: int, least: int) -> list[Entry]:
    """The beginning of the stream that may be archived now: the shortest one of at least `least` events, or else all.

    Its events were told before `before_ms`, and it ends where a round up to `last_round` was published: no event of
    a later round precedes that one. Raises LedgerRefused on an event of another schema.
    """
    part: list[Entry] = []
    closed = 0
    for id, fields in entries:
        event = parse_event(id, fields)
        if event.at_ms >= before_ms:
            break
        part.append((id, fields))
        if isinstance(event, RoundMoved) and event.after is RoundState.PUBLISHED:
            if event.round > last_round:
                break
            closed = len(part)
            if closed >= least:
                break
    return part[:closed]


def encode_part(run: str, entries: Sequence[Entry]) -> bytes:
    """The part's file. The same entries give the same bytes (under one release of pyarrow)."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
    for id, fields in entries:
        rest = dict(fields)
        columns["id"].append(id)
        for name in OWN_COLUMNS:
            text = rest.pop(name, None)
            columns[name].append(int(text) if text is not None and name in NUMBERS else text)
        columns["fields"].append(canonical_json(rest).decode())
    metadata = {"schema_version": SCHEMA_VERSION, "run": run}
    table = pa.table(columns, schema=COLUMNS.with_metadata(metadata))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def decode_part(data: bytes, rounds: Collection[int] | None = None) -> Iterator[Entry]:
    """A file's entries, or those of some rounds alone. Raises Damaged on anything `encode_part` would not write."""
    try:
        table = pq.read_table(pa.BufferReader(data))
        version = (table.schema.metadata or {}).get(b"schema_version", b"").decode()
        if version != SCHEMA_VERSION or not table.schema.equals(COLUMNS):
            raise Damaged(
                "not a part of a ledger's archive",
                given=f"schema version {version!r}, columns {', '.join(table.schema.names)}",
                expected=f"schema version {SCHEMA_VERSION}, columns {', '.join(COLUMNS.names)}",
            )
        if rounds is not None:
            table = table.filter(pc.is_in(table["round"], pa.array(sorted(rounds), pa.int64())))
        for batch in table.to_batches(max_chunksize=1000):
            yield from map(_entry, batch.to_pylist())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged("a part of the ledger's archive is unreadable", given=str(error)) from error


def union(sources: Iterable[Source]) -> Iterator[Entry]:
    """All entries of the sources in the order of their ids, each once; a source is opened when its turn comes."""
    waiting = sorted(enumerate(sources), key=lambda source: source[1][0], reverse=True)
    heads: list[tuple[tuple[int, int], int, Entry, Iterator[Entry]]] = []  # the number keeps entries uncompared

    def advance(number: int, rest: Iterator[Entry]) -> None:
        if (entry := next(rest, None)) is not None:
            heapq.heappush(heads, (place(entry[0]), number, entry, rest))

    told = None
    while waiting or heads:
        if waiting and (not heads or waiting[-1][1][0] <= heads[0][0]):
            number, (_, open) = waiting.pop()
            advance(number, open())
            continue
        at, number, entry, rest = heapq.heappop(heads)
        if at != told:
            yield entry
        told = at
        advance(number, rest)


class Archive:
    """The archived parts of one run. Every method raises the errors of ObjectStore."""

    def __init__(self, store: ObjectStore, run: str) -> None:
        self.store = store
        self._run = validate_run_name(run)

    def parts(self) -> list[Part]:
        """What is there, in the order of the first ids."""
        folder = f"runs/{self._run}/ledger/"
        keys = [info.key for info in self.store.list(folder)]
        names = [(key, PART_NAME.fullmatch(key.removeprefix(folder))) for key in keys]
        parts = [Part(key, match[1], match[2]) for key, match in names if match]
        return sorted(parts, key=lambda part: place(part.first))

    def put(self, entries: Sequence[Entry]) -> Part:
        """Store a range and read it back. Raises Damaged when what stands there afterwards is not that range."""
        part = Part(part_key(self._run, entries[0][0], entries[-1][0]), entries[0][0], entries[-1][0])
        self.store.put_if_absent(part.key, encode_part(self._run, entries))
        # Compared by content: another release of pyarrow may have written the same part in other bytes.
        if list(self._open(part)) != [(id, dict(fields)) for id, fields in entries]:
            raise Damaged(
                f"{part.key} is not what the ledger holds",
                given=f"{len(entries)} events in the stream",
                remedy="move that object away; nothing was trimmed",
            )
        return part

    def entries(self, parts: Iterable[Part], rounds: Collection[int] | None = None) -> Iterator[Entry]:
        """The union of the parts, or of what they hold of some rounds. Raises Damaged and ObjectMissing."""
        return union((place(part.first), partial(self._open, part, rounds)) for part in parts)

    def _open(self, part: Part, rounds: Collection[int] | None = None) -> Iterator[Entry]:
        return decode_part(self.store.get(part.key), rounds)


def _entry(row: dict[str, Any]) -> Entry:
    own = {name: str(row[name]) for name in OWN_COLUMNS if row[name] is not None}
    return row["id"], {**own, **json.loads(row["fields"])}
