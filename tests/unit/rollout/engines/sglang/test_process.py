"""What a server is started with, and what is swept after it. No server starts here."""

from __future__ import annotations

import asyncio
import mmap
from pathlib import Path

import pytest
from rolloutpipe_components.rollout.engines.sglang import process
from rolloutpipe_components.rollout.engines.sglang.process import (
    LaunchedServer,
    LaunchPlan,
    server_arguments,
    server_environment,
    sweep_shared_memory,
)
from rolloutpipe_components.rollout.engines.sglang.weights import Weights

from rolloutpipe_core.config.models import EngineConfig, LaunchConfig, ModelConfig
from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import BadInput, EngineFailure

WEIGHTS = Weights(WeightVersion(2, "e" * 64), Path("/weights/ee"))


def plan(tmp_path: Path, device: str = "cuda", **engine: object) -> LaunchPlan:
    config = EngineConfig.model_validate({"kind": "sglang", "launch": {"replicas": 3}, "slots": 64, **engine})
    return LaunchPlan.of(config, ModelConfig(path="m", dtype="bfloat16", device=device), tmp_path)


def test_slots_are_shared_by_the_servers(tmp_path: Path) -> None:
    assert plan(tmp_path).arguments == ("--device", "cuda", "--dtype", "bfloat16", "--max-running-requests", "22")


def test_a_cpu_needs_backends_of_its_own(tmp_path: Path) -> None:
    arguments = plan(tmp_path, device="cpu").arguments
    assert arguments[:2] == ("--device", "cpu")
    assert arguments[arguments.index("--attention-backend") + 1] == "torch_native"
    assert "--sleep-on-idle" in arguments
    assert "--sleep-on-idle" not in plan(tmp_path).arguments


def test_priorities_are_the_servers_own_only_on_demand(tmp_path: Path) -> None:
    assert "--enable-priority-scheduling" not in plan(tmp_path).arguments
    assert {
        "--enable-priority-scheduling",
        "--schedule-low-priority-values-first",
        "--disable-priority-preemption",
    } <= set(plan(tmp_path, frontier_by="priority").arguments)


def test_the_users_arguments_come_behind_ours_and_the_weights_last() -> None:
    command = server_arguments(("--dtype", "float32"), ("--dtype", "float16"), WEIGHTS, 31000)
    assert command.index("float32") < command.index("float16")
    assert command[command.index("--model-path") + 1] == "/weights/ee"
    assert command[command.index("--weight-version") + 1] == "v2@" + "e" * 64
    assert command[-2:] == ["--port", "31000"]


def test_no_credentials_go_to_a_server() -> None:
    worker = {
        "PATH": "/bin",
        "ROLLOUTPIPE_REDIS_URL": "redis://:secret@host",
        "ROLLOUTPIPE_S3_ENDPOINT": "http://host",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
    }
    assert server_environment(worker, {"OMP_NUM_THREADS": "1"}) == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    launch = LaunchConfig(python=str(tmp_path / "no-python"))
    server = LaunchedServer(LaunchPlan(launch, (), tmp_path), "sglang-0")
    with pytest.raises(BadInput, match="infra/sglang-cpu/install"):
        asyncio.run(server.start(WEIGHTS))
    assert not server.running


def test_a_process_that_the_kernel_does_not_end_is_told_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a device takes no signal: here it is none that is sent."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho it waits >&2\nexec sleep 300\n")
    python.chmod(0o755)
    server = LaunchedServer(LaunchPlan(LaunchConfig(python=str(python)), (), tmp_path), "sglang-0")

    async def scenario() -> None:
        await server.start(WEIGHTS)
        pid = server.pid
        with monkeypatch.context() as patched:
            patched.setattr(process, "KILL_S", 0.3)
            patched.setattr(process.os, "killpg", lambda _group, _number: None)
            patched.setattr(process.subprocess.Popen, "terminate", lambda _process: None)
            await server.stop(0)
            with pytest.raises(EngineFailure, match=f"sglang-0 cannot be ended; given: process {pid}; "):
                await server.start(WEIGHTS)
        assert server.running
        assert server.state.startswith("it runs; ")
        await server.stop(0)
        assert server.state.startswith("it was ended by SIG")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_only_what_nobody_uses_is_swept(tmp_path: Path) -> None:
    used, left, other = tmp_path / "sglang_loads_a.shm", tmp_path / "sglang_loads_b.shm", tmp_path / "psm_c"
    for path in (used, left, other):
        path.write_bytes(b"\0" * 4096)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        sweep_shared_memory(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([used, other])
    sweep_shared_memory(tmp_path)
    assert sorted(tmp_path.iterdir()) == [other]
