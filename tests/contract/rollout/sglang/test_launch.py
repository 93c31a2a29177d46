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
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.ledger.reader import LedgerReader

from ..conftest import make_config
from .conftest import ARGUMENTS

PATIENCE_S = 300.0
"""Only a failing test reaches it."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.1)


def processes() -> dict[int, tuple[int, str]]:
    """Process id -> (parent's, command) of all that live."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if state != "Z":
            found[int(entry.name)] = (int(parent), command)
    return found


def family(root: int) -> dict[int, str]:
    """Process id -> command of all that descend from a process."""
    all, found, grown = processes(), {root}, True
    while grown:
        children = {pid for pid, (parent, _) in all.items() if parent in found} - found
        found, grown = found | children, bool(children)
    return {pid: all[pid][1] for pid in found - {root}}


def test_no_process_is_left_of_a_worker_that_was_killed(
    connections: Connections, run_name: str, sglang_python: Path, tmp_path: Path
) -> None:
    """kill -9 in the middle of a round: nobody is there to end the server."""
    launch = {"replicas": 1, "python": str(sglang_python), "arguments": list(ARGUMENTS)}
    config = make_config(
        run_name,
        engine={"kind": "sglang", "launch": launch},
        sampling={"max_new_tokens": 250, "temperature": 20.0},
        deadlines={"engine_s": 380, "publish_s": 380, "group_s": 380},
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    reader = LedgerReader(connections.redis.client(), run_name, 30)
    command = [sys.executable, "-m", "rolloutpipe_components.rollout", str(file), "--name", "worker-0"]
    environment = service_environment(os.environ) | connections.environment()
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_for(
            lambda: worker.poll() is not None or {row["state"] for row in reader.groups(0)} & {GroupState.ADMITTED},
            "a round under way",
        )
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        left = family(worker.pid)
        assert sum("sglang" in command for command in left.values()) >= 3, left
    finally:
        worker.kill()
        worker.wait()
    # By their commands, too: a number may be another's by now.
    wait_for(
        lambda: not left.items() & {(pid, command) for pid, (_, command) in processes().items()}, f"the end of {left}"
    )
