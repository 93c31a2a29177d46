"""Retiring and deleting objects as the ledger sees it, and the pins that keep a version's weights."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import BadInput, LedgerRefused
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.trainer import Epoch

LONGEST_REASON = 200
SHA_DIGITS = 16
"""Of a manifest's hash in the name of its objects."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A version whose weights stay until `until_ms`, for a reason."""

    version: int
    sha: str  # the first 16 digits of the manifest's hash
    reason: str
    until_ms: int  # server time

    @property
    def set(self) -> str:
        """Name of the weights' objects (see retention/decide.py)."""
        return f"weights/{self.sha}"


class Pins:
    """The pins of one run. Methods raise RedisUnavailable when Redis stays away."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._redis: Any = client.redis

    def pin(self, version: WeightVersion, reason: str, for_s: float) -> Pin:
        """Keep the version's weights for so long from now; the same version and reason again moves the end.

        Raises BadInput when its weights are retired already.
        """
        if not reason.isprintable() or not 0 < len(reason) <= LONGEST_REASON:
            raise BadInput("not a reason", given=repr(reason), expected=f"1 to {LONGEST_REASON} printable characters")
        keys, sha = self._client.keys, version.sha[:SHA_DIGITS]
        try:
            args = [version.number, sha, round(for_s * 1000), reason]
            ends = self._client.call("pin", [keys.run, keys.ledger, keys.pins, keys.retired], args)[0]
        except LedgerRefused as error:
            raise BadInput(
                f"version {version.number} can't be pinned",
                given=error.given,
                remedy="pin a newer version; `rolloutpipe pins` and retention.keep_versions say what stays",
            ) from None
        return Pin(version.number, sha, reason, int(ends))

    def unpin(self, version: int, reason: str | None = None) -> list[Pin]:
        """End the version's pins, all of them or that of one reason; returns those that were."""
        chosen = [pin for pin in self.pins() if pin.version == version and reason in (None, pin.reason)]
        members = [f"{pin.version} {pin.sha} {pin.reason}" for pin in chosen]
        if members:
            self._client.patiently(lambda: self._redis.zrem(self._client.keys.pins, *members), "ZREM of pins")
        return chosen

    def pins(self) -> list[Pin]:
        """Pins that have not ended, the first to end first."""
        now, key = self._client.server_time_ms(), self._client.keys.pins
        rows = self._client.patiently(
            lambda: self._redis.zrangebyscore(key, f"({now}", "+inf", withscores=True), "the pins"
        )
        return [_pin(member, int(score)) for member, score in rows]


class RetentionLedger:
    """One trainer incarnation's deletions: each call raises Fenced once another took the role."""

    def __init__(self, client: LedgerClient, epoch: Epoch) -> None:
        self._client = client
        self._epoch = epoch

    def retire(self, sets: Sequence[str], grace_s: float, ripe_s: float) -> list[str]:
        """Retire these sets unless a pin holds them; returns those retired at least `ripe_s` ago.

        Until `grace_s` after Redis may have lost pins, weights are left out.
        """
        keys, redis_id = self._client.keys, self._client.server()[0]
        args = [*self._epoch.token, redis_id, round(grace_s * 1000), round(ripe_s * 1000), *sets]
        return list(self._client.call("retire", [keys.run, keys.ledger, keys.pins, keys.retired], args)[0])

    def retired(self) -> list[str]:
        """Sets that are retired and not known to be deleted."""
        redis: Any = self._client.redis
        return list(self._client.patiently(lambda: redis.hkeys(self._client.keys.retired), "the retired sets"))

    def deleted(self, sets: Iterable[str], objects: int, bytes: int) -> None:
        """The second phase was carried out."""
        self._settle("deleted", sets, objects, bytes)

    def kept(self, sets: Iterable[str]) -> None:
        """Something refers to these retired sets after all: they may be pinned again."""
        self._settle("kept", sets, 0, 0)

    def swept(self, sets: Iterable[str], objects: int, bytes: int) -> None:
        """Objects in these sets that were nobody's are deleted."""
        self._settle("swept", sets, objects, bytes)

    def housekept(self, keep_rounds: int | None, error: str = "") -> None:
        """A pass of the housekeeper ended, which keeps so many rounds (None: all)."""
        keys, (epoch, nonce, _) = self._client.keys, self._epoch.token
        self._client.call("housekept", [keys.run, keys.ledger], [epoch, nonce, error, keep_rounds or ""])

    def _settle(self, phase: str, sets: Iterable[str], objects: int, bytes: int) -> None:
        keys = self._client.keys
        args = [*self._epoch.token, secrets.token_hex(8), phase, objects, bytes, *sets]
        self._client.call("settle", [keys.run, keys.ledger, keys.retired], args)


def _pin(member: str, until_ms: int) -> Pin:
    version, sha, reason = member.split(" ", 2)
    return Pin(int(version), sha, reason, until_ms)
