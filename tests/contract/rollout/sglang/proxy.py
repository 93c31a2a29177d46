"""An HTTP proxy in front of a real server that loses or rewrites what passes, as networks and machines do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

Rewrite = Callable[[str, dict[str, Any]], dict[str, Any] | None]
"""(path, JSON object of a request or of its answer) -> what goes on instead; None: the connection is closed."""


def unchanged(_path: str, message: dict[str, Any]) -> dict[str, Any]:
    return message


class Proxy:
    """Passes JSON over HTTP/1.1 on; what is no JSON object goes through as it is."""

    def __init__(self, url: str, request: Rewrite = unchanged, answer: Rewrite = unchanged) -> None:
        self._target = urlsplit(url)
        self._request, self._answer = request, answer
        self._tasks: set[asyncio.Task[None] | None] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Nobody else holds the task once its client hangs up; the server's answer must still be seen.
        self._tasks.add(asyncio.current_task())
        up_reader, up_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        # A connection that either side closes ends both; so does the end of the test.
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head, body = await _message(reader)
                path = head.split()[1].decode()
                await _pass(up_writer, head, self._rewritten(self._request, path, body))
                head, body = await _message(up_reader)
                await _pass(writer, head, self._rewritten(self._answer, path, body))
        for each in (writer, up_writer):
            each.close()

    def _rewritten(self, rewrite: Rewrite, path: str, body: bytes) -> bytes:
        if not body.startswith(b"{"):
            return body
        message = rewrite(path, json.loads(body))
        if message is None:
            raise ConnectionError
        return json.dumps(message).encode()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A request or an answer: its head without the length, and its body."""
    lines = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
    lengths = [line for line in lines if line.lower().startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    return b"\r\n".join(line for line in lines if line not in lengths), await reader.readexactly(length)


async def _pass(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    writer.write(head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
