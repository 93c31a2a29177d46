"""Servers that a rollout worker started end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from rolloutpipe_core.cli.processes import service_environment
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.local.process import start_time

from ..conftest import make_config
from .conftest import ARGUMENTS

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


def test_no_process_is_left_of_a_worker_that_was_killed(
    connections: Connections, run_name: str, sglang_python: Path, tmp_path: Path
) -> None:
    """kill -9 while its server starts, when the server's own processes do not see to that themselves yet."""
    launch = {"replicas": 1, "python": str(sglang_python), "arguments": list(ARGUMENTS)}
    config = make_config(run_name, engine={"kind": "sglang", "launch": launch}, deadlines={"engine_s": 380})
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    command = [sys.executable, "-m", "rolloutpipe_components.rollout", str(file), "--name", "worker-0"]
    environment = service_environment(os.environ) | connections.environment()
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    def forked() -> bool:
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        ours = [command for command in family(worker.pid).values() if str(sglang_python) in command]
        return sum("--multiprocessing-fork" in command for command in ours) >= 2

    try:
        wait_for(forked, "the server's scheduler and detokenizer")
        left = family(worker.pid)
        started = {pid: start_time(pid) for pid in left}
    finally:
        worker.kill()
        worker.wait()
    wait_for(lambda: all(start_time(pid) != started[pid] for pid in left), f"the end of {left}")
