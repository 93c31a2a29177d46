"""What all runs of a lane share: servers that may be killed and come back, and the zygote that forks the services."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rolloutpipe_core.config.connections import LOCAL_REGION, Connections, RedisConnection, S3Connection
from rolloutpipe_core.errors import RolloutPipeError
from rolloutpipe_core.local import leash
from rolloutpipe_core.local.process import ServerProcess
from rolloutpipe_core.local.seaweed import remove_stale_sockets, start_seaweedfs
from rolloutpipe_core.local.valkey import start_valkey
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.probe import probe_store

ROOT = Path(__file__).parents[2]
BUCKET = "kill-test"
RESTART_S = 15.0


@dataclass
class Server:
    """A server that comes back on its ports and data. `start` only from the main thread: its leash follows that."""

    name: str
    launch: Callable[[tuple[int, ...] | None], ServerProcess]
    process: ServerProcess = field(init=False)
    deed: threading.Lock = field(default_factory=threading.Lock)  # one deed on it at a time

    def __post_init__(self) -> None:
        self.process = self.launch(None)

    def restart(self) -> None:
        """Start it again after `process.kill()`. Meanwhile some program's connection may have got one of its ports."""
        end = time.monotonic() + RESTART_S
        while True:
            try:
                self.process = self.launch(self.process.record.ports)
                return
            except RolloutPipeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)


class Stage:
    """Use as a context manager, from the main thread."""

    def __init__(self, folder: Path) -> None:
        password, access, secret = secrets.token_hex(8), secrets.token_hex(8), secrets.token_hex(16)

        def valkey(ports: tuple[int, ...] | None) -> ServerProcess:
            port = ports[0] if ports else None
            log = folder / "valkey.log"
            process = start_valkey(folder / "valkey", log, password, die_with_parent=True, port=port)
            # By `everysec` a server whose disk is busy answers before it has written: then kill -9 loses something.
            # What becomes of that is for scenarios/test_lost_second.py; here all that is answered is kept.
            with RedisConnection((("127.0.0.1", process.port),), password=password).client() as client:
                client.config_set("appendfsync", "always")
            return process

        def seaweedfs(ports: tuple[int, ...] | None) -> ServerProcess:
            log = folder / "seaweedfs.log"
            return start_seaweedfs(folder / "s3", log, access, secret, die_with_parent=True, ports=ports)

        self.folder = folder
        self.servers = {"valkey": Server("valkey", valkey), "s3": Server("s3", seaweedfs)}
        redis_port, s3_port = (self.servers[name].process.port for name in ("valkey", "s3"))
        s3 = S3Connection(f"http://127.0.0.1:{s3_port}", LOCAL_REGION, access, secret)
        self.connections = Connections(RedisConnection((("127.0.0.1", redis_port),), password=password), s3)
        self.redis: Any = self.connections.redis.client()
        self.s3 = s3.client()
        probe_store(ObjectStore(self.s3, BUCKET))
        self.zygote = Zygote(folder / "zygote.log")

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.zygote.close()
        self.redis.close()
        for server in self.servers.values():
            server.process.kill()
        remove_stale_sockets()


class Zygote:
    """The zygote's process, as the conductor sees it. `on_end` is told (pid, status) of each service that has ended."""

    def __init__(self, log: Path) -> None:
        command = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-m", f"{__package__}.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                start_new_session=True,
            )
        self.on_end: Callable[[int, int], None] = lambda pid, status: None
        self._born: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def fork(self, order: dict[str, Any]) -> int:
        """Fork a service; returns its pid. From one thread only."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "parent": self._process.pid}).encode() + b"\n")
        self._process.stdin.flush()
        return self._born.get(timeout=60)

    def close(self) -> None:
        """End it, and with it all that it forked."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "status" in answer:
                self.on_end(answer["pid"], answer["status"])
            else:
                self._born.put(answer["pid"])
