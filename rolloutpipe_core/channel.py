"""JSON messages over two pipes or a socket, each behind its length (4 bytes, big-endian).

So talk the pool of verifiers and its workers, and the ranks of a trainer.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

LENGTH = struct.Struct(">I")


class Channel:
    """Reads one descriptor and writes another. Waits have a limit in seconds; None waits for ever."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._received = bytearray()

    def send(self, message: dict[str, Any], limit_s: float | None = None) -> None:
        """Raises TimeoutError, or BrokenPipeError when the other side is gone."""
        content = json.dumps(message).encode()
        rest = memoryview(LENGTH.pack(len(content)) + content)
        end = _end(limit_s)
        while rest:
            _wait(self._write_fd, select.POLLOUT, end)
            # A pipe that polls as writable takes this much without blocking; a socket must not block by itself.
            rest = rest[os.write(self._write_fd, rest[: select.PIPE_BUF]) :]

    def receive(self, limit_s: float | None = None) -> dict[str, Any]:
        """Raises TimeoutError, or EOFError when the other side is gone."""
        end = _end(limit_s)
        while (message := self._take()) is None:
            # Polled at least once: what has come by now counts, however late this process looks.
            _wait(self._read_fd, select.POLLIN, end)
            chunk = os.read(self._read_fd, 65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        return message

    def _take(self) -> dict[str, Any] | None:
        if len(self._received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._received)
        end = LENGTH.size + length
        if len(self._received) < end:
            return None
        message: dict[str, Any] = json.loads(self._received[LENGTH.size : end])
        del self._received[:end]
        return message


def _end(limit_s: float | None) -> float | None:
    return None if limit_s is None else time.monotonic() + limit_s


def _wait(fd: int, event: int, end: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(None if end is None else max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError
