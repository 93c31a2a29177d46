"""How a follower reaches rank 0: one TCP connection, on which it proves that it knows the token.

    rank 0                                        follower
      |  {nonce} ------------------------------->   |
      |   <------- {rank, config, proof: HMAC-SHA256(token, nonce + rank + config)}
      |  {welcome: true} ------------------------>  |   or the end of the connection

The token itself is never sent. `config` is a hash of the configuration: ranks with different ones would diverge.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolloutpipe_core.channel import Channel
from rolloutpipe_core.errors import BadInput, RankLost

log = logging.getLogger("rolloutpipe.trainer")

GREETING_S = 5.0
"""Longest wait for one message of the greeting."""
POLL_S = 0.2
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A machine that is gone without a word is noticed after 40 s."""


@dataclass(frozen=True, slots=True)
class Line:
    """An open connection between rank 0 and a follower."""

    connection: socket.socket
    channel: Channel

    @classmethod
    def over(cls, connection: socket.socket) -> Line:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return cls(connection, Channel(connection.fileno(), connection.fileno()))

    def hang_up(self) -> None:
        """End it for both sides, and for a thread that waits on it; the descriptor stays its own until then."""
        with suppress(OSError):  # the other side was faster
            self.connection.shutdown(socket.SHUT_RDWR)


def listen(address: str, port: int) -> socket.socket:
    """Rank 0's door; port 0 takes any that is free. Raises BadInput."""
    try:
        return socket.create_server((address, port))
    except OSError as error:
        raise BadInput(
            "cannot take the ranks' control connections",
            given=f"port {port}: {error}",
            remedy="set ROLLOUTPIPE_RANK_PORT to a free port of rank 0's machine, on every rank",
        ) from error


def admit(
    door: socket.socket, ranks: int, token: str, config: str, check: Callable[[set[int]], None]
) -> dict[int, Line]:
    """Wait for every follower; `check(missing ranks)` is called between, and raises what ends the wait.

    Raises BadInput for a follower with another configuration.
    """
    door.settimeout(POLL_S)
    lines: dict[int, Line] = {}
    while missing := set(range(1, ranks)) - lines.keys():
        check(missing)
        try:
            connection, (host, *_) = door.accept()
        except TimeoutError:
            continue
        line = Line.over(connection)
        rank = _greet(line, token, config, missing)
        if rank is None:
            log.warning("a connection from %s is none of the trainer's ranks", host)
            connection.close()
        else:
            lines[rank] = line
    return lines


def join(address: str, port: int, rank: int, token: str, config: str, deadline_s: float) -> Line:
    """Reach rank 0, which may not be there yet. Raises RankLost."""
    line = Line.over(_connect(address, port, deadline_s))
    try:
        nonce = line.channel.receive(GREETING_S)["nonce"]
        line.channel.send({"rank": rank, "config": config, "proof": _proof(token, nonce, rank, config)}, GREETING_S)
        line.channel.receive(deadline_s)
    except (EOFError, OSError) as error:
        raise RankLost(
            f"rank 0 does not take rank {rank}",
            given=f"{address}:{port}, {type(error).__name__}",
            remedy="ROLLOUTPIPE_RANK_TOKEN must be the same on every rank, and each rank must be there once",
        ) from error
    return line


def config_hash(config: dict[str, Any]) -> str:
    """Of the whole configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _greet(line: Line, token: str, config: str, missing: set[int]) -> int | None:
    """The rank at the other end; None when it is none of those that are missing."""
    nonce = secrets.token_hex(16)
    try:
        line.channel.send({"nonce": nonce}, GREETING_S)
        answer = line.channel.receive(GREETING_S)
        rank, theirs, proof = int(answer["rank"]), str(answer["config"]), str(answer["proof"])
    except (EOFError, OSError, ValueError, KeyError, TypeError):
        return None
    if rank not in missing or not hmac.compare_digest(proof, _proof(token, nonce, rank, theirs)):
        return None
    if theirs != config:
        line.hang_up()
        raise BadInput(
            f"rank {rank} has another configuration than rank 0",
            expected="the same file and the same --set on every rank",
        )
    line.channel.send({"welcome": True}, GREETING_S)
    return rank


def _proof(token: str, nonce: str, rank: int, config: str) -> str:
    return hmac.new(token.encode(), f"{nonce} {rank} {config}".encode(), "sha256").hexdigest()


def _connect(address: str, port: int, deadline_s: float) -> socket.socket:
    end = time.monotonic() + deadline_s
    while True:
        try:
            return socket.create_connection((address, port), timeout=GREETING_S)
        except OSError as error:
            if time.monotonic() > end:
                raise RankLost(
                    "rank 0 cannot be reached",
                    given=f"{address}:{port}: {error}",
                    expected=f"within {deadline_s:g} s",
                    remedy="look at rank 0's log; MASTER_ADDR and ROLLOUTPIPE_RANK_PORT must be those of its machine",
                ) from error
            time.sleep(POLL_S)
