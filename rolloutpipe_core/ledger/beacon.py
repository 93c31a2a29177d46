"""A service's heartbeat: that it lives, what it does, and what it waits for since when until when.

It beats from a thread of its own, so that neither a decode loop nor a backward pass can starve it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rolloutpipe_core.errors import DeadlineExceeded, Fenced, RolloutPipeError
from rolloutpipe_core.ledger.client import LedgerClient


class Waiting:
    """One wait in progress: what for, since when, until when. Its text may be refined while it lasts."""

    def __init__(self, what: str, deadline_s: float) -> None:
        self.what = what
        self._deadline_s = deadline_s
        self._since = time.monotonic()
        self._end = self._since + deadline_s

    def ages_ms(self) -> tuple[int, int]:
        """(ms since it began, ms until its deadline)"""
        now = time.monotonic()
        return round((now - self._since) * 1000), round((self._end - now) * 1000)

    def check(self, detail: str = "") -> None:
        """Raise DeadlineExceeded once the deadline has passed."""
        if time.monotonic() > self._end:
            raise DeadlineExceeded(
                f"waited {self._deadline_s:g} s for {self.what}",
                given=detail,
                remedy="see `rolloutpipe status` and the other service's log; start it again, or raise the deadline",
            )


class Beacon:
    """Tells `service:<name>` every `heartbeat_s`; the hash expires after ten missed beats."""

    def __init__(self, client: LedgerClient, role: str, name: str, heartbeat_s: float) -> None:
        self._client = client
        self._key = client.keys.service(name)
        self._identity = {"role": role, "name": name, "host": socket.gethostname(), "pid": os.getpid()}
        self._heartbeat_s = heartbeat_s
        self._token: tuple[int, str] | None = None
        self._doing = "starting"
        self._outage: Waiting | None = None
        self._waits: list[Waiting] = []
        self._beating = threading.Lock()  # one beat at a time: an older one may not come last
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beacon", daemon=True)
        self.fenced: Fenced | None = None

    def __enter__(self) -> Beacon:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)
        with suppress(Exception):  # leaving must not hide why we leave
            self._client.redis.delete(self._key)

    def carry(self, epoch: int, nonce: str) -> None:
        """From now on each beat carries the trainer's token, and `fenced` tells when it is no longer the holder's."""
        with self._beating:  # a beat under the token before may not report its end as this one's
            self._token = (epoch, nonce)
            self.fenced = None

    def doing(self, what: str) -> None:
        """Say what the service works on; shown until the next call."""
        self._doing = what

    def outage(self, reason: str, deadline_s: float) -> None:
        """Show that the object store is away, and why, until the call with an empty reason. From any thread."""
        shown = self._outage
        if not reason:
            self._outage = None
        elif shown is None:
            self._outage = Waiting(reason, deadline_s)
        else:
            shown.what = reason

    @contextmanager
    def waiting(self, what: str, deadline_s: float) -> Iterator[Waiting]:
        """Show a wait while the block runs."""
        wait = Waiting(what, deadline_s)
        self._waits.append(wait)
        try:
            yield wait
        finally:
            self._waits.remove(wait)

    def beat(self) -> None:
        """One heartbeat, now. `fenced` tells afterwards when its token is no longer the holder's."""
        with self._beating:
            wait = self._outage or next(iter(self._waits[-1:]), None)  # one look: waits end in other threads
            ages = wait.ages_ms() if wait else ("", "")
            fields = {**self._identity, "doing": self._doing, "waiting_for": wait.what if wait else ""}
            epoch, nonce = self._token or ("", "")
            flat = [part for pair in fields.items() for part in pair]
            keys = [self._client.keys.run, self._client.keys.ledger, self._key, self._client.keys.services]
            try:
                self._client.call("beat", keys, [epoch, nonce, round(self._heartbeat_s * 10_000), *ages, *flat])
            except Fenced as error:
                self.fenced = error

    def _run(self) -> None:
        while True:
            with suppress(RolloutPipeError):  # the service's own calls report an outage with their own deadline
                self.beat()
            if self._stopped.wait(self._heartbeat_s):
                return
