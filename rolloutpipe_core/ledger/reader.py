"""Reading a run's ledger: present state and history, for status, timeline, report and audit. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from rolloutpipe_core.domain import WeightVersion, group_id
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import Event, parse_event
from rolloutpipe_core.ledger.keys import CONSUMER_GROUP, RunKeys

PAGE = 2000  # ledger entries a round trip


class LedgerReader:
    """One run, seen from outside. Methods raise RedisUnavailable when Redis stays away."""

    def __init__(self, client: redis.Redis, run: str, deadline_s: float = 10.0) -> None:
        self._client = LedgerClient(client, run, deadline_s)
        self._redis: Any = client
        self.keys = RunKeys(run)

    def run_state(self) -> dict[str, str]:
        """Hash `run`: state, lineage, version, version_sha, round, trainer_epoch, ...; empty for an unknown run."""
        return self._hash(self.keys.run)

    def current_round(self) -> int | None:
        """The newest round that was opened."""
        number = self.run_state().get("round")
        return None if number is None else int(number)

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

    def open_groups(self, round: int) -> list[str]:
        """Groups not yet serving-complete, in submission order; the first F_w are the frontier."""
        return list(self._read("zrange", self.keys.open(round), 0, -1))

    def events(self, after: str = "-") -> Iterator[Event]:
        """The ledger's events behind `after` (a stream id; '-' = from the start), oldest first, page by page."""
        start = after if after == "-" else f"({after}"
        while True:
            page = self._read("xrange", self.keys.ledger, start, "+", PAGE)
            for id, fields in page:
                yield parse_event(id, fields)
            if len(page) < PAGE:
                return
            start = f"({page[-1][0]}"

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
        names = sorted(self._read("smembers", self.keys.services))
        return [row for row in self._pipelined([("hgetall", name) for name in names]) if row]

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

    def _pipelined(self, commands: Sequence[tuple[str, str]]) -> list[Any]:
        def run() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for command, key in commands:
                getattr(pipe, command)(key)
            return list(pipe.execute())

        return self._client.patiently(run, "pipeline") if commands else []
