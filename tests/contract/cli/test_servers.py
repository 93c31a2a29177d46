"""`up`, `down`, `doctor` and `run` as processes, with their own embedded servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.local.state import read_servers

MAIN = (sys.executable, "-c", "from rolloutpipe_core.cli.main import main; main()")
CONFIG = """
run: walk
model: {path: "builtin:pointer-walk"}
rollout_module: no_such_rollout
trainer_module: no_such_trainer
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTPIPE", "AWS"))}


def rolloutpipe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAIN, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    rolloutpipe(tmp_path, "down")


def server_pids(folder: Path) -> list[int]:
    servers = read_servers(folder)
    assert servers is not None
    return [servers.redis.pid, servers.s3.pid]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_up_doctor_down(folder: Path) -> None:
    first = rolloutpipe(folder, "up")
    assert (first.returncode, first.stderr) == (0, "")
    pids = server_pids(folder)
    assert all(map(alive, pids))

    again = rolloutpipe(folder, "up")
    assert again.stdout.startswith("already running")
    assert server_pids(folder) == pids

    doctor = rolloutpipe(folder, "doctor", "--json")
    verdicts = {check["subject"]: check["verdict"] for check in json.loads(doctor.stdout)}
    assert set(verdicts.values()) == {"ok"}
    assert {"Redis", "Redis eviction", "Redis persistence", "S3 conditional writes", "S3 clock"} <= set(verdicts)
    assert doctor.returncode == 0

    nothing = rolloutpipe(folder, "status")
    assert nothing.returncode == 2
    assert "there is no run in this Redis yet" in nothing.stderr

    kept = json.loads((folder / ".rolloutpipe" / "credentials.json").read_text())
    shown = first.stdout + again.stdout + doctor.stdout
    assert kept["redis_password"] not in shown
    assert kept["s3_secret_key"] not in shown

    assert rolloutpipe(folder, "down").stdout == "stopped\n"
    assert not any(map(alive, pids))
    assert rolloutpipe(folder, "down").stdout == "no embedded server was running in this folder\n"


def test_doctor_fails_a_redis_that_may_forget(own_servers: LocalServers, tmp_path: Path) -> None:
    client: Any = own_servers.connections.redis.client()
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    doctor = rolloutpipe(tmp_path, "doctor", "--json")
    checks = {check["subject"]: check for check in json.loads(doctor.stdout)}
    assert doctor.returncode == 1
    assert (checks["Redis eviction"]["verdict"], checks["Redis persistence"]["verdict"]) == ("failed", "warning")
    assert "noeviction" in checks["Redis eviction"]["remedy"]


def test_a_service_that_fails_ends_the_run_with_its_words_and_code(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    result = rolloutpipe(tmp_path, "run", "run.yaml", "--local")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: trainer exited with 1; given: ")
    assert "No module named no_such_trainer; do: see .rolloutpipe/logs/walk/trainer.log" in line
    assert read_servers(tmp_path) is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_stops_its_servers_and_services(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "forever.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "run.yaml").write_text(
        CONFIG.replace("no_such_rollout", "forever").replace("no_such_trainer", "forever")
    )
    run = subprocess.Popen(
        [*MAIN, "run", "run.yaml", "--local"], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / ".rolloutpipe" / "logs" / "walk" / "rollout.log"
    end = time.monotonic() + 240
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.05)
    pids = server_pids(tmp_path)
    run.send_signal(number)
    _, errors = run.communicate(timeout=240)
    assert (run.returncode, errors) == (code, "")
    assert not any(map(alive, pids))
    assert read_servers(tmp_path) is None


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "forever.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    (tmp_path / "run.yaml").write_text(
        CONFIG.replace("no_such_rollout", "forever").replace("no_such_trainer", "forever")
    )
    run = subprocess.Popen([*MAIN, "run", "run.yaml", "--local"], cwd=tmp_path, env=environment())
    logs = [tmp_path / ".rolloutpipe" / "logs" / "walk" / f"{name}.log" for name in ("rollout", "trainer")]
    end = time.monotonic() + 240
    while not all(log.exists() and log.read_text().endswith("\n") for log in logs):
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.05)
    pids = [*server_pids(tmp_path), *(int(log.read_text()) for log in logs)]
    run.kill()
    run.wait()
    while any(map(alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.05)
