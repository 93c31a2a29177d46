"""Calls the ledger's Lua scripts: EVALSHA with a NOSCRIPT fallback, repeated over a Redis that is away for a while.

Every script is safe to repeat (it compares state and token first), so a call whose answer was lost is made again.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import redis
from redis import exceptions

from rolloutpipe_core.errors import BadInput, Fenced, LedgerRefused, RedisUnavailable
from rolloutpipe_core.ledger.keys import RunKeys

T = TypeVar("T")

AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.ClusterError,  # a failover is under way
    exceptions.SlotNotCoveredError,
)
WRONG = (exceptions.AuthenticationError, exceptions.NoPermissionError)


def _ignore(reason: str) -> None:
    """The default for `on_wait`."""


@cache
def script_text(name: str) -> str:
    """Source of a script: the shared prelude, then its own file."""
    folder = files("rolloutpipe_core.ledger") / "scripts"
    return (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()


@cache
def script_sha(name: str) -> str:
    """By which Redis knows a script: the SHA-1 of its source."""
    return hashlib.sha1(script_text(name).encode(), usedforsecurity=False).hexdigest()


class LedgerClient:
    """One run's ledger on one Redis client (`decode_responses=True`). Thread-safe, as redis-py's client is."""

    def __init__(
        self,
        client: redis.Redis,
        run: str,
        deadline_s: float,
        on_wait: Callable[[str], None] = _ignore,
    ) -> None:
        """`on_wait` is told why a call is waiting for Redis, and '' when it no longer does."""
        self.redis = client
        self.keys = RunKeys(run)
        self._deadline_s = deadline_s
        self._on_wait = on_wait

    def call(self, script: str, keys: Sequence[str], args: Sequence[object]) -> list[Any]:
        """Run a script and return what follows OK or REPEAT.

        Raises Fenced (the caller's token is not the holder's), LedgerRefused (the state forbids it) or
        RedisUnavailable (away past the deadline).
        """
        parts = (len(keys), *keys, *(str(arg) for arg in args))
        answer = self.patiently(lambda: self._evaluate(script, parts), f"script {script}")
        status, rest = answer[0], answer[1:]
        if status in ("OK", "REPEAT"):
            return list(rest)
        detail = " ".join(str(part) for part in rest)
        if status == "FENCED":
            raise Fenced(f"ledger: {script} refused an old token", given=f"held by {detail}", expected="our own token")
        raise LedgerRefused(f"ledger: {script} refused", given=detail)

    def _evaluate(self, script: str, parts: Sequence[object]) -> list[Any]:
        client: Any = self.redis  # its `evalsha` takes several times as long, over options that we don't use
        try:
            answer = client.execute_command("EVALSHA", script_sha(script), *parts)
        except exceptions.NoScriptError:  # a restart forgot it
            client.script_load(script_text(script))
            answer = client.execute_command("EVALSHA", script_sha(script), *parts)
        return list(answer)

    def patiently(self, operation: Callable[[], T], what: str) -> T:
        """Run one Redis operation, repeated with backoff while Redis is away."""
        end = time.monotonic() + self._deadline_s
        pause_s = 0.02
        waited = False
        while True:
            try:
                result = operation()
            except WRONG as error:
                raise BadInput(
                    "Redis refuses our credentials", given=str(error), remedy="check ROLLOUTPIPE_REDIS_URL and its ACL"
                ) from None
            except AWAY as error:
                if time.monotonic() + pause_s > end:
                    raise RedisUnavailable(
                        f"Redis stayed away for {self._deadline_s:g} s ({what})",
                        given=f"{type(error).__name__}: {error}",
                        expected="an answer within deadlines.redis_s",
                        remedy="start Redis again; the run goes on from where it is",
                    ) from error
                self._on_wait(f"Redis ({what}): {error}")
                waited = True
                time.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(pause_s * 2, 1.0)
            except exceptions.ResponseError as error:
                raise LedgerRefused(f"Redis refused {what}", given=str(error)) from error
            else:
                if waited:
                    self._on_wait("")
                return result

    def group_count(self, round: int) -> int:
        """How many groups the round has by now; 0 without the round."""
        groups: Any = self.patiently(
            lambda: self.redis.hget(self.keys.round(round), "groups"), f"HGET of round {round}"
        )
        return int(groups or 0)

    def server_time_ms(self) -> int:
        """The server's clock, in ms since 1970."""
        seconds, micros = self.patiently(self.redis.time, "TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def server(self) -> tuple[str, int]:
        """(run id, uptime in ms) of the Redis process: a changed run id means a restart or a failover."""
        info: Any = self.patiently(lambda: self.redis.info("server"), "INFO server")
        return str(info["run_id"]), int(info["uptime_in_seconds"]) * 1000
