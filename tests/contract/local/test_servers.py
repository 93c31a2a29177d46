"""The embedded servers: private, found again, stopped, and gone with their parent."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rolloutpipe_core.config.connections import Connections, RedisConnection
from rolloutpipe_core.errors import BadInput, RedisUnavailable, StoreUnavailable
from rolloutpipe_core.local import process, seaweed
from rolloutpipe_core.local.process import ServerProcess, free_ports, start_time
from rolloutpipe_core.local.seaweed import PORT_FLAGS, start_seaweedfs
from rolloutpipe_core.local.servers import LocalServers, stop_servers
from rolloutpipe_core.local.state import ServerRecord, credentials_path, read_servers, servers_path
from rolloutpipe_core.local.valkey import start_valkey
from rolloutpipe_core.store.objects import ObjectStore

STARTER = """
import sys, time
from pathlib import Path
from rolloutpipe_core.local.servers import LocalServers
servers = LocalServers.start(Path(sys.argv[1]), die_with_parent=sys.argv[2] == "leash")
print("started", flush=True)
if sys.argv[2] == "leash":
    time.sleep(600)
"""


def listeners(pid: int) -> set[str]:
    """Local addresses on which a process listens for TCP, as hexadecimal in /proc."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink())
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def gone(pids: list[int], deadline_s: float = 20.0) -> bool:
    end = time.monotonic() + deadline_s
    while any(start_time(pid) is not None for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def pids_of(directory: Path) -> list[int]:
    recorded = read_servers(directory)
    assert recorded is not None
    return [recorded.redis.pid, recorded.s3.pid]


def works(connections: Connections) -> None:
    client = connections.redis.client()
    assert client.ping()
    assert client.config_get("appendonly", "maxmemory-policy", "appendfsync") == {
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "appendfsync": "everysec",
    }
    store = ObjectStore(connections.s3.client(), "works", deadline_s=20.0)
    store.ensure_bucket()
    store.put("a", b"one")
    assert store.get("a") == b"one"


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> LocalServers:
    """For tests that leave them as they are."""
    with LocalServers.start(tmp_path_factory.mktemp("shared"), die_with_parent=True) as servers:
        yield servers


def test_they_are_private_and_their_secrets_hidden(shared):
    works(shared.connections)
    works(Connections.read({}, shared.directory))
    path = credentials_path(shared.directory)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = json.loads(path.read_text())
    hidden = (kept["redis_password"], kept["s3_secret_key"])  # the access key is a name
    for server in (shared.redis, shared.s3):
        # 0100007F is 127.0.0.1.
        assert listeners(server.record.pid) == {"0100007F"}
        assert not any(secret in Path(f"/proc/{server.record.pid}/cmdline").read_text() for secret in hidden)
    for log in (shared.directory / ".rolloutpipe" / "logs").iterdir():
        assert not any(secret in log.read_text() for secret in hidden)
    assert not any(secret in repr(shared) for secret in hidden)


def test_a_second_start_finds_them(shared):
    with LocalServers.start(shared.directory, die_with_parent=True) as again:
        assert again.connections == shared.connections and not again.started_here
    # Leaving the second did not stop what the first started.
    assert shared.redis.is_running() and shared.s3.is_running()


def test_the_data_is_there_at_the_next_start(tmp_path):
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        first = servers.connections
        first.redis.client().set("key", "kept")
        store = ObjectStore(first.s3.client(), "bucket", deadline_s=20.0)
        store.ensure_bucket()
        store.put("key", b"kept")
        pids = pids_of(tmp_path)
    assert gone(pids)
    assert not servers_path(tmp_path).exists() and not credentials_path(tmp_path).exists()
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        second = servers.connections
        assert second.redis.password != first.redis.password and second.s3.secret_key != first.s3.secret_key
        assert second.redis.client().get("key") == "kept"
        assert ObjectStore(second.s3.client(), "bucket", deadline_s=20.0).get("key") == b"kept"


def test_those_of_up_outlive_it_until_down(tmp_path):
    subprocess.run([sys.executable, "-c", STARTER, str(tmp_path), "free"], check=True, stdout=subprocess.DEVNULL)
    try:
        found = LocalServers.find(tmp_path)
        assert found is not None
        works(found.connections)
        pids = pids_of(tmp_path)
    finally:
        assert stop_servers(tmp_path)
    assert gone(pids)
    assert not stop_servers(tmp_path)
    assert LocalServers.find(tmp_path) is None


def test_nothing_outlives_a_killed_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), "leash"], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None and parent.stdout.readline() == "started\n"
    pids = pids_of(tmp_path)
    # While it lives, its servers are its own.
    with pytest.raises(BadInput, match=f"belong to another process and end with it; given: pid {parent.pid}"):
        LocalServers.start(tmp_path, die_with_parent=True)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pids)
    # What it recorded is stale, and the next start says nothing of it.
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        assert servers.started_here
        works(servers.connections)


def test_a_start_killed_before_it_could_record_leaves_nothing_behind(tmp_path):
    """Its servers are found by the folder that they work in."""
    data = tmp_path / ".rolloutpipe" / "valkey"
    orphan = start_valkey(data, tmp_path / "log", secrets.token_hex(8), die_with_parent=False)
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        assert not orphan.is_running()
        works(servers.connections)


def test_a_server_that_died_is_started_again(own_servers, tmp_path):
    own_servers.redis.kill()
    assert LocalServers.find(tmp_path) is None
    with LocalServers.start(tmp_path, die_with_parent=True) as again:
        assert again.started_here and not own_servers.s3.is_running()
        works(again.connections)


def test_a_reused_pid_is_not_taken_for_a_server():
    """The record names a live process that is none of ours: it is neither used nor ended."""
    code = "print(flush=True); input()"
    bystander = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        bystander.stdout.readline()  # while it starts, /proc does not show its command line
        started = start_time(bystander.pid)
        for record in (
            ServerRecord(pid=bystander.pid, started=started - 1, ports=(1,)),
            ServerRecord(pid=bystander.pid, started=started, ports=(1,)),
        ):
            stranger = ServerProcess("valkey-server", record)
            assert not stranger.is_running()
            stranger.kill()
        assert bystander.poll() is None
        assert ServerProcess("python", record).is_running()
    finally:
        bystander.kill()
        bystander.communicate()


def test_two_starts_at_once_make_one_pair(tmp_path):
    def start(_: int) -> LocalServers:
        return LocalServers.start(tmp_path, die_with_parent=False)

    try:
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(start, range(2)))
        assert sorted(servers.started_here for servers in both) == [False, True]
        assert both[0].connections == both[1].connections
    finally:
        stop_servers(tmp_path)


def test_a_leash_needs_the_main_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="from the main thread"):
        pool.submit(LocalServers.start, tmp_path, die_with_parent=True).result()


def test_a_frozen_server_is_stopped_all_the_same(tmp_path):
    server = start_valkey(tmp_path / "data", tmp_path / "log", "password", die_with_parent=True)
    os.kill(server.record.pid, signal.SIGSTOP)
    server.stop(deadline_s=0.1)
    assert not server.is_running()


@pytest.fixture
def busy_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def test_a_port_taken_meanwhile_is_chosen_again(tmp_path, monkeypatch, busy_port):
    choices = iter([(busy_port,), free_ports(1)])
    monkeypatch.setattr(process, "free_ports", lambda count: next(choices))
    server = start_valkey(tmp_path / "data", tmp_path / "log", "password", die_with_parent=True)
    assert server.port != busy_port
    server.kill()


def test_each_port_of_seaweedfs_taken_meanwhile_is_chosen_again(tmp_path, monkeypatch, busy_port):
    free = free_ports(len(PORT_FLAGS))
    choices = iter([(busy_port, *free[1:]), (*free[:2], busy_port, *free[3:]), free])
    monkeypatch.setattr(process, "free_ports", lambda count: next(choices))
    server = start_seaweedfs(tmp_path / "data", tmp_path / "log", "key", "secret", die_with_parent=True)
    assert server.record.ports == free
    server.kill()


def test_seaweedfs_has_started_when_it_guards_keys_for_good(tmp_path):
    server = start_seaweedfs(tmp_path / "data", tmp_path / "log", "key", "secret", die_with_parent=True)
    assert seaweed.OWNERS_KNOWN.search((tmp_path / "log").read_bytes())
    server.kill()


def test_a_seaweedfs_of_other_words_starts_too(tmp_path, monkeypatch):
    monkeypatch.setattr(seaweed, "OWNERS_KNOWN", re.compile(rb"in other words"))
    monkeypatch.setattr(seaweed, "OWNERS_DEADLINE_S", 0.0)
    server = start_seaweedfs(tmp_path / "data", tmp_path / "log", "key", "secret", die_with_parent=True)
    assert server.is_running()
    server.kill()


def test_a_server_that_cannot_start_says_why(tmp_path, busy_port):
    with pytest.raises(
        RedisUnavailable, match=r"(?s)the embedded valkey-server ended at its start.*Address already in use"
    ):
        start_valkey(tmp_path / "data", tmp_path / "log", "password", die_with_parent=True, port=busy_port)
    ports = (busy_port, *free_ports(len(PORT_FLAGS) - 1))
    with pytest.raises(StoreUnavailable, match="the embedded weed ended at its start"):
        start_seaweedfs(tmp_path / "data", tmp_path / "log", "key", "secret", die_with_parent=True, ports=ports)


def test_a_killed_valkey_comes_back_with_its_data_at_its_port(tmp_path):
    data, log = tmp_path / "data", tmp_path / "log"
    server = start_valkey(data, log, "password", die_with_parent=True)
    client = client_of(server.port)
    client.set("key", "kept")
    server.kill()
    again = start_valkey(data, log, "password", die_with_parent=True, port=server.port)
    assert client_of(again.port).get("key") == "kept"
    again.kill()


def client_of(port: int):
    return RedisConnection((("127.0.0.1", port),), password="password").client()
