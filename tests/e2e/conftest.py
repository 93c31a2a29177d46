"""Whole runs with real processes on the session's servers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.observe.audit import Audit, audit_run
from rolloutpipe_core.store.objects import ObjectStore

# Where redis-cli must be there, its absence is a failure of that file.
REDIS_CLI_NEEDED = shutil.which("redis-cli") or os.environ.get("ROLLOUTPIPE_REQUIRE_REDIS_SERVER") == "1"
collect_ignore = [] if REDIS_CLI_NEEDED else ["test_redis_cli.py"]

SMALL = {
    "bucket": "rolloutpipe-tests",
    "model": {"path": "builtin:pointer-walk"},
    "schedule": {
        "rounds": 2,
        "groups_per_round": 6,
        "samples_per_group": 4,
        "update_batch_size": 8,
        "frontier_width": 2,
    },
    "sampling": {"max_new_tokens": 48},
    "engine": {"slots": 16},
    "deadlines": {"group_s": 60, "publish_s": 60, "partner_s": 60, "redis_s": 20, "store_s": 20},
    "leases": {"lease_s": 5},
}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, section by section."""
    both = dict(base)
    for key, value in changes.items():
        both[key] = merged(base.get(key, {}), value) if isinstance(value, dict) else value
    return both


@dataclass
class Process:
    """A service as a process of its own, with its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text()

    def finish(self, timeout_s: float = 300) -> int:
        return self.popen.wait(timeout_s)

    def succeed(self, timeout_s: float = 300) -> None:
        assert self.finish(timeout_s) == 0, self.text()

    def children(self) -> list[int]:
        """Ids of the processes it started, oldest first."""
        pid = self.popen.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.finish(30)


@dataclass
class Run:
    """One run: its config file, its services, and what can be read of it."""

    name: str
    folder: Path
    connections: Connections
    store: ObjectStore
    reader: LedgerReader
    processes: list[Process] = field(default_factory=list)

    def configure(self, **changes: Any) -> Run:
        config = merged({"run": self.name, **SMALL}, changes)
        (self.folder / "run.yaml").write_text(yaml.safe_dump(config))
        return self

    def start(self, role: str, *arguments: str, name: str | None = None, launcher: Sequence[str] = ("-m",)) -> Process:
        name = name or role
        log = self.folder / f"{name}-{len(self.processes)}.log"
        module = f"rolloutpipe_components.{role}"
        command = [sys.executable, *launcher, module, "run.yaml", *arguments, "--name", name]
        environment = {**os.environ, **self.connections.environment(), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            popen = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=file, stderr=file)
        self.processes.append(Process(popen, log))
        return self.processes[-1]

    def complete(self, *arguments: str) -> None:
        """Run both services to the end of the run."""
        for process in [self.start("trainer", *arguments), self.start("rollout", *arguments)]:
            process.succeed()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            dead = [process for process in self.processes if process.popen.poll() not in (None, 0)]
            assert not dead, dead[0].text()
            assert time.monotonic() < end, "the condition did not come true"
            time.sleep(0.02)

    def audit(self) -> Audit:
        return audit_run(self.reader, self.store)


@pytest.fixture
def run(tmp_path: Path, run_name: str, connections: Connections, object_store: ObjectStore) -> Iterator[Run]:
    client = connections.redis.client()
    run = Run(run_name, tmp_path, connections, object_store, LedgerReader(client, run_name))
    yield run.configure()
    for process in run.processes:
        process.popen.kill()
        process.popen.wait()
    client.close()
