"""The store goes away under a call: it waits, says so, and gives up at its deadline."""

import os
import signal
import threading

import pytest

from rolloutpipe_core.errors import StoreUnavailable
from rolloutpipe_core.local.seaweed import start_seaweedfs
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.store.objects import ObjectStore


class Outage:
    """Ends the outage once the store's caller has said that it waits."""

    def __init__(self, end) -> None:
        self.said: list[str] = []
        self._waits = threading.Event()
        self._ender = threading.Thread(target=self._run, args=(end,))
        self._ender.start()

    def heard(self, reason: str) -> None:
        self.said.append(reason)
        self._waits.set()

    def join(self) -> None:
        self._ender.join()

    def _run(self, end) -> None:
        assert self._waits.wait(60)
        end()


def store_of(servers: LocalServers, deadline_s: float, **more) -> ObjectStore:
    return ObjectStore(servers.connections.s3.client(read_timeout_s=1.0), "outages", deadline_s, **more)


def test_a_frozen_store_is_waited_for(own_servers):
    before = store_of(own_servers, 30.0)
    before.ensure_bucket()
    before.put("a", b"one")
    os.kill(own_servers.s3.record.pid, signal.SIGSTOP)
    outage = Outage(lambda: os.kill(own_servers.s3.record.pid, signal.SIGCONT))
    assert store_of(own_servers, 30.0, on_wait=outage.heard).get("a") == b"one"
    outage.join()
    assert outage.said[0].startswith("object store (get a): ") and outage.said[-1] == ""


def test_a_killed_store_that_comes_back_is_waited_for(own_servers, tmp_path):
    before = store_of(own_servers, 30.0)
    before.ensure_bucket()
    before.put("a", b"one")
    own_servers.s3.kill()
    folder, s3 = tmp_path / ".rolloutpipe" / "seaweedfs", own_servers.connections.s3

    def restart() -> None:
        # Not on a leash, which only the main thread may hold; the test ends it.
        started.append(
            start_seaweedfs(
                folder,
                tmp_path / "log",
                s3.access_key,
                s3.secret_key,
                die_with_parent=False,
                ports=own_servers.s3.record.ports,
            )
        )

    started: list = []
    outage = Outage(restart)
    store = store_of(own_servers, 60.0, on_wait=outage.heard)
    try:
        assert store.put_if_absent("b", b"two").ours
        assert store.get("a") == b"one"
    finally:
        outage.join()
        for server in started:
            server.kill()


def test_past_the_deadline_the_call_says_what_it_tried(own_servers):
    store_of(own_servers, 30.0).ensure_bucket()
    own_servers.s3.kill()
    store = store_of(own_servers, 0.5)
    for call, what in (
        (lambda: store.get("a"), "get a"),
        (lambda: store.put("a", b""), "put a"),
        (lambda: store.put_if_absent("a", b""), "put if absent a"),
        (lambda: list(store.list("")), "list "),
    ):
        with pytest.raises(StoreUnavailable, match="Could not connect") as caught:
            call()
        assert caught.value.what == f"the object store stayed away: {what}"
        assert caught.value.expected == "an answer within 0.5 s"
        assert caught.value.exit_code == 6
