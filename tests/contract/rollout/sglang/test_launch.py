"""Servers that a rollout worker started end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from rolloutpipe_components.rollout.engines.sglang.process import LOADS, SHARED_MEMORY

from rolloutpipe_core.cli.processes import service_environment
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.local.process import start_time
from rolloutpipe_core.service import TERMINATED

from ..conftest import make_config
from .conftest import ARGUMENTS

GROUPS = 64
"""Of a round that is long enough to be stopped in the middle."""
PATIENCE_S = 120.0
"""Only a failing test reaches it."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.1)


def family(root: int) -> dict[int, str]:
    """Process id -> command of all that descend from a process."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found, grown = {root}, True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | children, bool(children)
    return {pid: commands[pid] for pid in (found - {root}) & commands.keys()}


@contextmanager
def running_worker(
    config: RunConfig, connections: Connections, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A rollout worker's process, and what it has logged; it is killed when the block ends."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    command = [sys.executable, "-m", "rolloutpipe_components.rollout", str(file), "--name", "worker-0"]
    environment = service_environment(os.environ) | connections.environment()
    path = folder / "worker.log"
    with path.open("wb") as log:
        worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield worker, path.read_text
    finally:
        worker.kill()
        worker.wait()


def test_no_process_is_left_of_a_worker_that_was_killed(
    connections: Connections, run_name: str, sglang_python: Path, tmp_path: Path
) -> None:
    """kill -9 while its server starts, when the server's own processes do not see to that themselves yet."""
    launch = {"replicas": 1, "python": str(sglang_python), "arguments": list(ARGUMENTS)}
    config = make_config(run_name, engine={"kind": "sglang", "launch": launch}, deadlines={"engine_s": 380})
    with running_worker(config, connections, tmp_path) as (worker, log):

        def forked() -> bool:
            assert worker.poll() is None, log()
            ours = [command for command in family(worker.pid).values() if str(sglang_python) in command]
            return sum("--multiprocessing-fork" in command for command in ours) >= 2

        wait_for(forked, "the server's scheduler and detokenizer")
        left = family(worker.pid)
        started = {pid: start_time(pid) for pid in left}
    wait_for(lambda: all(start_time(pid) != started[pid] for pid in left), f"the end of {left}")


def test_a_worker_that_is_told_to_stop_hands_its_groups_back_and_ends_its_servers(
    connections: Connections, run_name: str, sglang_python: Path, tmp_path: Path
) -> None:
    """SIGTERM in the middle of a round. Nothing of its server is left: no process, no shared memory."""
    launch = {"replicas": 1, "python": str(sglang_python), "arguments": list(ARGUMENTS)}
    config = make_config(
        run_name,
        engine={"kind": "sglang", "launch": launch, "slots": 8},
        schedule={"kind": "cgp", "groups_per_round": GROUPS},
        sampling={"max_new_tokens": 250, "temperature": 20.0},
        deadlines={"engine_s": 380, "publish_s": 380, "group_s": 380},
        data={"max_prompt_tokens": 200},
    )
    reader = LedgerReader(connections.redis.client(), run_name, 30)
    before = set(SHARED_MEMORY.glob(LOADS))
    with running_worker(config, connections, tmp_path) as (worker, log):

        def halfway() -> bool:
            assert worker.poll() is None, log()
            return GroupState.QUEUED in [row["state"] for row in reader.groups(0)]

        wait_for(halfway, "a group that is done")
        left = family(worker.pid)
        started = {pid: start_time(pid) for pid in left}
        assert sum("sglang" in command for command in left.values()) >= 3, left
        assert set(SHARED_MEMORY.glob(LOADS)) - before
        worker.terminate()
        assert worker.wait(60) == TERMINATED, log()
        assert all(start_time(pid) != started[pid] for pid in left), left
    rows = reader.groups(0)
    assert {row["state"] for row in rows} == {GroupState.DEFERRED, GroupState.QUEUED}
    handed_back = [row for row in rows if row["state"] == GroupState.DEFERRED and row.get("reason")]
    assert handed_back
    assert {row["reason"] for row in handed_back} == {"the worker stopped"}
    assert set(SHARED_MEMORY.glob(LOADS)) <= before
