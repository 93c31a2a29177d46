"""A TCP proxy that breaks connections, and stores that wait less long than usual."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from rolloutpipe_core.config.connections import S3Connection
from rolloutpipe_core.store.objects import ObjectStore


class CuttingProxy:
    """Forwards TCP to a server; the first `cuts` connections break after `after` bytes of the answers.

    With `requests`, they break after that many bytes of the first request's body.
    """

    def __init__(self, target: tuple[str, int], cuts: int, after: int, requests: bool = False) -> None:
        self._target = target
        self._cuts = cuts
        self._after = after
        self._requests = requests
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self._target)
            cut = self.connections <= self._cuts
            for source, sink, limited in (
                (client, server, cut and self._requests),
                (server, client, cut and not self._requests),
            ):
                limit = self._after if limited else None
                threading.Thread(target=self._forward, args=(source, sink, limit), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            if limit is not None and self._requests:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += source.recv(65536)
                limit += head.index(b"\r\n\r\n") + 4
                sink.sendall(head[:limit])
                passed = min(len(head), limit)
            while limit is None or passed < limit:
                chunk = source.recv(65536)
                if not chunk:
                    break
                sink.sendall(chunk if limit is None else chunk[: limit - passed])
                passed += len(chunk)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutting(seaweedfs: S3Connection, object_store: ObjectStore) -> Iterator[Callable[..., tuple[Any, CuttingProxy]]]:
    """`cutting(cuts, after, requests=False)` -> (an S3 client through a proxy that cuts, the proxy)."""
    proxies = []

    def make(cuts: int, after: int, requests: bool = False) -> tuple[Any, CuttingProxy]:
        url = urlsplit(seaweedfs.endpoint)
        proxy = CuttingProxy((url.hostname, url.port), cuts, after, requests)
        proxies.append(proxy)
        return replace(seaweedfs, endpoint=f"http://127.0.0.1:{proxy.port}").client(), proxy

    yield make
    for proxy in proxies:
        proxy.close()
