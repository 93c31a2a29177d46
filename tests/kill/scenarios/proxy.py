"""An HTTP proxy in front of an S3 server that misbehaves as networks, load balancers and busy servers do.

One request a connection, forwarded byte for byte: the Host header, which SigV4 signs, is the client's.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum

HEAD_END = b"\r\n\r\n"
CONNECT_S = 5.0


class Fault(StrEnum):
    NONE = "none"
    ERROR_500 = "500"
    ERROR_503 = "503"
    SLOW = "slow"  # the answer comes late
    CUT_REQUEST = "cut request"  # the server gets half of the request's body
    CUT_ANSWER = "cut answer"  # the client gets half of the answer's body
    LOST_ANSWER = "lost answer"  # the server did it; the client gets nothing


REFUSALS = {
    Fault.ERROR_500: (b"500 Internal Server Error", b"InternalError"),
    Fault.ERROR_503: (b"503 Service Unavailable", b"SlowDown"),
}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str  # "/bucket/key?query"
    tries: int  # earlier requests with the same method and path

    def creates(self, part: str) -> bool:
        return self.method == "PUT" and part in self.path


class FaultyProxy:
    """Forwards to `target`; `fault(request)` decides what goes wrong. `happened` counts, `log` keeps all requests."""

    def __init__(self, target: tuple[str, int], fault: Callable[[Request], Fault], slow_s: float = 0.5) -> None:
        self.fault = fault
        self.happened: Counter[Fault] = Counter()
        self.log: list[tuple[Request, Fault]] = []
        self._target = target
        self._slow_s = slow_s
        self._tries: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.port = 0
        self.listen()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Accept connections, again at the same port after `refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Connections are refused until `listen`."""
        # close() alone does not wake the thread that accepts, which would keep the port.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with closing(client), suppress(OSError):
            head, body = _read_request(client)
            if not head:
                return
            request = self._seen(head)
            fault = self.fault(request)
            with self._lock:
                self.happened[fault] += 1
                self.log.append((request, fault))
            if fault in REFUSALS:
                client.sendall(_refusal(*REFUSALS[fault]))
                return
            answer = self._forward(head, body[: len(body) // 2] if fault is Fault.CUT_REQUEST else body)
            if fault is Fault.SLOW:
                time.sleep(self._slow_s)
            if fault is Fault.CUT_ANSWER:
                start = answer.index(HEAD_END) + len(HEAD_END)
                answer = answer[: start + (len(answer) - start) // 2]
            if fault not in (Fault.CUT_REQUEST, Fault.LOST_ANSWER):
                client.sendall(answer)

    def _seen(self, head: bytes) -> Request:
        method, path = head.split(b" ", 2)[:2]
        key = (method.decode(), path.decode())
        with self._lock:
            request = Request(*key, tries=self._tries[key])
            self._tries[key] += 1
        return request

    def _forward(self, head: bytes, body: bytes) -> bytes:
        """All bytes of the server's answer; after half a body it answers what it likes to."""
        one = head[: -len(HEAD_END)] + b"\r\nConnection: close" + HEAD_END
        answer = b""
        with closing(socket.create_connection(self._target, CONNECT_S)) as server:
            server.sendall(one + body)
            with suppress(OSError):
                if len(body) < _length(head):
                    server.shutdown(socket.SHUT_WR)
                while chunk := server.recv(65536):
                    answer += chunk
        return answer


def _read_request(client: socket.socket) -> tuple[bytes, bytes]:
    """(head with its blank line, body); empty when the client has gone."""
    data = b""
    while HEAD_END not in data:
        chunk = client.recv(65536)
        if not chunk:
            return b"", b""
        data += chunk
    head, body = data[: data.index(HEAD_END) + 4], data[data.index(HEAD_END) + 4 :]
    while len(body) < _length(head):
        chunk = client.recv(65536)
        if not chunk:
            return b"", b""
        body += chunk
    return head, body


def _length(head: bytes) -> int:
    found = re.search(rb"(?im)^content-length: *(\d+)\r$", head)
    return int(found[1]) if found else 0


def _refusal(status: bytes, code: bytes) -> bytes:
    body = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>try again</Message></Error>' % code
    head = b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close" % (
        status,
        len(body),
    )
    return head + HEAD_END + body
