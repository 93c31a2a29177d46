"""The real servers of the tests: one Valkey, one SeaweedFS and, where it is installed, one Debian redis-server.

They start when a test first asks for them and die with pytest. Tests share them: each works under a run name of
its own (`run_name`) and never flushes. A test that kills or freezes servers takes `own_servers`.
"""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import settings

from rolloutpipe_core.config.connections import LOCAL_REGION, Connections, RedisConnection, S3Connection
from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, WeightVersion
from rolloutpipe_core.local.seaweed import remove_stale_sockets, start_seaweedfs
from rolloutpipe_core.local.servers import LocalServers
from rolloutpipe_core.local.valkey import start_valkey
from rolloutpipe_core.store.objects import ObjectStore

# Started in the background, a session inherits an ignored Ctrl-C, and would hand that on to all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Wall-clock limits fail on busy machines.
settings.register_profile("rolloutpipe", deadline=None)
settings.load_profile("rolloutpipe")

REDIS_SERVER = shutil.which("redis-server")
REDIS_SERVER_REQUIRED = os.environ.get("ROLLOUTPIPE_REQUIRE_REDIS_SERVER") == "1"
REDIS_SERVERS = ("valkey", "redis7") if REDIS_SERVER or REDIS_SERVER_REQUIRED else ("valkey",)
BUCKET = "rolloutpipe-tests"
ROOT = Path(__file__).resolve().parents[1]
VERSION = WeightVersion(12, "ab" * 32)


def start_redis(folder: Path, binary: Path | None = None) -> Iterator[RedisConnection]:
    password = secrets.token_hex(8)
    server = start_valkey(folder / "data", folder / "log", password, die_with_parent=True, binary=binary)
    yield RedisConnection(nodes=(("127.0.0.1", server.port),), password=password)
    server.kill()


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisConnection]:
    yield from start_redis(tmp_path_factory.mktemp("valkey"))


@pytest.fixture(scope="session")
def redis7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisConnection]:
    assert REDIS_SERVER, "ROLLOUTPIPE_REQUIRE_REDIS_SERVER=1 asks for Debian's redis-server: install it"
    yield from start_redis(tmp_path_factory.mktemp("redis7"), Path(REDIS_SERVER))


@pytest.fixture(scope="session", params=REDIS_SERVERS)
def redis_server(request: pytest.FixtureRequest) -> RedisConnection:
    """Each kind of server in turn: what holds on one must hold on the others."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def redis_client(redis_server: RedisConnection) -> Iterator[redis.Redis]:
    client = redis_server.client()
    yield client
    client.close()


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The interpreter of an environment with SGLang; made when it is missing, which takes about a minute."""
    target = ROOT / ".venv-sglang"
    result = subprocess.run(
        [ROOT / "infra" / "sglang-cpu" / "install", target], capture_output=True, text=True, timeout=540
    )
    assert result.returncode == 0, f"infra/sglang-cpu/install {target} failed:\n{result.stderr}"
    return target / "bin" / "python"


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Connection]:
    folder = tmp_path_factory.mktemp("seaweedfs")
    access_key, secret_key = secrets.token_hex(8), secrets.token_hex(16)
    server = start_seaweedfs(folder / "data", folder / "log", access_key, secret_key, die_with_parent=True)
    yield S3Connection(f"http://127.0.0.1:{server.port}", LOCAL_REGION, access_key, secret_key)
    server.kill()
    remove_stale_sockets()


@pytest.fixture(scope="session")
def s3_client(seaweedfs: S3Connection) -> Any:
    return seaweedfs.client()


@pytest.fixture(scope="session")
def object_store(s3_client: Any) -> ObjectStore:
    """One bucket for all tests: SeaweedFS keeps several volumes for each."""
    store = ObjectStore(s3_client, BUCKET, deadline_s=20.0)
    store.ensure_bucket()
    return store


@pytest.fixture(scope="session")
def connections(valkey: RedisConnection, seaweedfs: S3Connection) -> Connections:
    """For services started as processes; see `Connections.environment`."""
    return Connections(valkey, seaweedfs)


@pytest.fixture
def run_name() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def own_servers(tmp_path: Path) -> Iterator[LocalServers]:
    """A Valkey and a SeaweedFS of this test alone."""
    with LocalServers.start(tmp_path, die_with_parent=True) as servers:
        yield servers
        # A polite end takes SeaweedFS a second.
        servers.s3.kill()


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """A valid sample of round 12; keywords replace its fields."""

    def make(index: int = 0, length: int = 3, version: WeightVersion = VERSION, **changes: Any) -> Sample:
        sample = Sample(
            index=index,
            prompt_ids=np.array([5, 6], dtype=np.int32),
            response_ids=np.arange(length, dtype=np.int32),
            behavior_logprobs=np.full(length, -0.5, dtype=np.float32),
            loss_mask=np.ones(length, dtype=np.uint8),
            reward=0.25 * index,
            advantage=0.5 * index,
            finish_reason=FinishReason.STOP,
            spans=(VersionSpan(version, 0, length),),
        )
        return replace(sample, **changes)

    return make


@pytest.fixture
def make_group(make_sample: Callable[..., Sample]) -> Callable[..., Group]:
    """A valid group `r000012-g0034` of two samples; keywords replace its fields."""

    def make(**changes: Any) -> Group:
        group = Group(
            run="demo",
            lineage=1,
            round=12,
            index=34,
            attempt=1,
            version=VERSION,
            prompt_id="walk-7",
            samples=(make_sample(0), make_sample(1, length=5)),
        )
        return replace(group, **changes)

    return make
