"""Reading a run's ledger: present state and history, for status, timeline, report and audit. Writes nothing.

The history is the archive's parts, then what the stream still holds:  archive ── `archived_to` ──> stream
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import redis

from rolloutpipe_core.domain import WeightVersion, group_id
from rolloutpipe_core.errors import BadInput, Damaged
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import Entry, Event, parse_event, place
from rolloutpipe_core.ledger.keys import CONSUMER_GROUP, RunKeys

if TYPE_CHECKING:
    from rolloutpipe_core.store.objects import ObjectStore

PAGE = 2000  # ledger entries a round trip
BEGINNING = "0-0"  # before every stream id

OpenStore = Callable[[str], "ObjectStore"]
"""bucket -> its store; asked only when a part of the history is archived"""


def no_store(bucket: str) -> ObjectStore:
    """For readers that look at the present alone."""
    raise BadInput(
        "the older part of this run's history is archived", given=f"bucket {bucket}", expected="a reader with a store"
    )


class LedgerReader:
    """One run, seen from outside. Methods raise RedisUnavailable when Redis stays away."""

    def __init__(
        self, client: redis.Redis, run: str, deadline_s: float = 10.0, open_store: OpenStore = no_store
    ) -> None:
        self._client = LedgerClient(client, run, deadline_s)
        self._redis: Any = client
        self._open_store = open_store
        self.keys = RunKeys(run)

    def run_state(self) -> dict[str, str]:
        """Hash `run`: state, lineage, version, version_sha, round, trainer_epoch, ...; empty for an unknown run."""
        return self._hash(self.keys.run)

    def current_round(self) -> int | None:
        """The newest round that was opened."""
        number = self.run_state().get("round")
        return None if number is None else int(number)

    def archived_round(self) -> int:
        """The newest round that is wholly archived, so that its keys may be gone; -1: none."""
        return int(self.run_state().get("archived_round", -1))

    def round_state(self, round: int) -> dict[str, str]:
        """Hash `round:<r>`: state, generation, counters `n_<group state>`, times `<state>_ms`, what opened it."""
        return self._hash(self.keys.round(round))

    def group(self, group: str) -> dict[str, str]:
        """Hash `group:<id>`, with the id under `id`; empty when there is none."""
        fields = self._hash(self.keys.group(group))
        return {"id": group, **fields} if fields else {}

    def groups(self, round: int) -> list[dict[str, str]]:
        """The round's groups in submission order."""
        count = int(self.round_state(round).get("groups", 0))
        ids = [group_id(round, index) for index in range(count)]
        rows = self._pipelined([("hgetall", self.keys.group(group)) for group in ids])
        return [{"id": group, **row} for group, row in zip(ids, rows, strict=True) if row]

    def group_states(self, groups: Sequence[str]) -> list[str]:
        """The groups' states, '' for one that does not exist."""
        return [
            state or "" for state in self._pipelined([("hget", self.keys.group(group), "state") for group in groups])
        ]

    def sizes(self, rounds: Sequence[int]) -> list[int]:
        """How many groups each round has; 0 where its keys are gone."""
        return [int(row.get("groups", 0)) for row in self._pipelined([("hgetall", self.keys.round(n)) for n in rounds])]

    def open_groups(self, round: int) -> list[str]:
        """Groups not yet serving-complete, in submission order; the first F_w are the frontier."""
        return list(self._read("zrange", self.keys.open(round), 0, -1))

    def events(self, after: str = BEGINNING, rounds: Collection[int] | None = None) -> Iterator[Event]:
        """The history behind `after` (a stream id), oldest first, page by page; with `rounds`, of these alone.

        Raises what the object store raises, and Damaged when the archive lacks its end.
        """
        state = self.run_state() if rounds else {}
        if rounds and min(rounds) > int(state.get("archived_round", -1)):
            # The archive ends where a round was published, before any event of a later one.
            after = max(after, state.get("archived_to", BEGINNING), self._before(min(rounds)), key=place)
        wanted = None if rounds is None else {str(round) for round in rounds}
        for id, fields in self._history(after, rounds):
            if wanted is None or fields.get("round") in wanted:
                yield parse_event(id, fields)

    def _before(self, round: int) -> str:
        """A place in the stream that no event of the round precedes."""
        opened_ms = self._read("hget", self.keys.round(round), "open_ms")
        return BEGINNING if opened_ms is None else f"{int(opened_ms) - 1}-0"

    def events_kept(self) -> int:
        """How many entries the ledger's stream still holds."""
        return int(self._read("xlen", self.keys.ledger))

    def stream(self, after: str = BEGINNING) -> Iterator[Entry]:
        """The entries behind `after` that the ledger's stream still holds, oldest first, page by page."""
        while page := self._page(after)[2]:
            yield from page
            after = page[-1][0]

    def _history(self, position: str, rounds: Collection[int] | None) -> Iterator[Entry]:
        while True:
            archived_to, bucket, page = self._page(position)
            if place(archived_to) > place(position):
                # Also when it was trimmed while we read: the page then begins behind a gap.
                position = yield from self._archived(bucket, position, archived_to, rounds)
            elif page:
                yield from page
                position = page[-1][0]
            else:
                return

    def _archived(
        self, bucket: str, position: str, archived_to: str, rounds: Collection[int] | None
    ) -> Generator[Entry, None, str]:
        """What the archive holds behind `position`; returns where it ends."""
        from rolloutpipe_core.ledger.archive import Archive  # here, because pyarrow takes its time to load

        archive = Archive(self._open_store(bucket), self.keys.name)
        parts = [part for part in archive.parts() if place(part.last) > place(position)]
        end = max((part.last for part in parts), key=place, default=BEGINNING)
        if place(end) < place(archived_to):
            raise Damaged(
                f"the ledger's archive of run {self.keys.name} lacks its end",
                given=f"its last event is {end}",
                expected=f"{archived_to}, up to which the stream was trimmed",
            )
        for entry in archive.entries(parts, rounds):
            if place(entry[0]) > place(position):
                yield entry
        return end

    def _page(self, after: str) -> tuple[str, str, list[Entry]]:
        """(id up to which all is archived, in which bucket, a page of the stream behind `after`), of one instant."""

        def read() -> tuple[str, str, list[Entry]]:
            pipe = self._redis.pipeline(transaction=True)
            pipe.hmget(self.keys.run, "archived_to", "archive_bucket")
            pipe.xrange(self.keys.ledger, f"({after}", "+", PAGE)
            (archived_to, bucket), page = pipe.execute()
            return archived_to or BEGINNING, bucket or "", page

        return self._client.patiently(read, "XRANGE of the ledger")

    def versions(self) -> list[tuple[WeightVersion, dict[str, str]]]:
        """The registry: published versions, oldest first, each with its entry (object, commit, commit_sha, at_ms)."""
        entries = self._read("xrange", self.keys.weights, "-", "+")
        return [(WeightVersion(int(fields["number"]), fields["sha"]), fields) for _, fields in entries]

    def latest_version(self) -> tuple[WeightVersion, str] | None:
        """The newest published version and its registry entry's stream id."""
        entries = self._read("xrevrange", self.keys.weights, "+", "-", 1)
        return next(((WeightVersion(int(f["number"]), f["sha"]), id) for id, f in entries), None)

    def wait_for_version(self, after: str, timeout_ms: int) -> None:
        """Return when the registry has an entry behind the stream id `after`, or after the time-out."""
        self._client.patiently(
            lambda: self._redis.xread({self.keys.weights: after}, count=1, block=timeout_ms), "XREAD of the weights"
        )

    def services(self) -> list[dict[str, str]]:
        """What each live service says of itself; one that stopped saying so is gone after its hash expired."""
        return [row for row in self._pipelined([("hgetall", name) for name in self.service_keys()]) if row]

    def service_keys(self) -> list[str]:
        """Keys of the services, some of them gone."""
        return sorted(self._read("smembers", self.keys.services))

    def fifo_depth(self) -> int:
        """Entries announced and not yet acknowledged."""
        info = self._fifo_group()
        return int(info.get("pending") or 0) + int(info.get("lag") or 0)

    def pending(self, count: int = 1000) -> list[dict[str, Any]]:
        """FIFO entries read and not acknowledged: message_id, time_since_delivered (ms), times_delivered."""
        if not self._fifo_group():
            return []
        return list(self._read("xpending_range", self.keys.fifo, CONSUMER_GROUP, "-", "+", count))

    def server_time_ms(self) -> int:
        return self._client.server_time_ms()

    def _fifo_group(self) -> dict[str, Any]:
        if not self._read("exists", self.keys.fifo):
            return {}
        groups: Sequence[dict[str, Any]] = self._read("xinfo_groups", self.keys.fifo)
        return next((group for group in groups if group["name"] == CONSUMER_GROUP), {})

    def _hash(self, key: str) -> dict[str, str]:
        return dict(self._read("hgetall", key))

    def _read(self, command: str, *args: Any) -> Any:
        return self._client.patiently(lambda: getattr(self._redis, command)(*args), command.upper())

    def _pipelined(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        def run() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for command, *arguments in commands:
                getattr(pipe, command)(*arguments)
            return list(pipe.execute())

        return self._client.patiently(run, "pipeline") if commands else []
