"""The Redis clients against real servers: password and ACL, TLS, Sentinel, Cluster."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rolloutpipe_core.config.connections import Connections, RedisConnection, S3Connection
from rolloutpipe_core.errors import RedisUnavailable
from rolloutpipe_core.local.process import Program, ServerProcess, free_ports, start_server, until
from rolloutpipe_core.local.valkey import valkey_binary

DEBIAN = shutil.which("redis-server")
BINARIES = [valkey_binary(), *([Path(DEBIAN)] if DEBIAN else [])]
TLS_REQUIRED = os.environ.get("ROLLOUTPIPE_REQUIRE_REDIS_SERVER") == "1"
# Only Debian's server is built with TLS, and a certificate needs openssl.
TLS_SERVERS = [DEBIAN] if TLS_REQUIRED or (DEBIAN and shutil.which("openssl")) else []

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(binary, settings, *flags)`: a server with these settings; `{port}` in them is its own port."""
    running: list[ServerProcess] = []

    def answers(port: int) -> bool:
        try:
            # Any answer will do, also that a password or TLS is wanted.
            return bool(redis.Redis("127.0.0.1", port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)).ping())
        except (redis.AuthenticationError, redis.ResponseError):
            return True
        except redis.ConnectionError as error:
            return "Connection refused" not in str(error)

    def make(binary: Path, settings: str, *flags: str) -> ServerProcess:
        folder = tmp_path / f"server{len(running)}"
        folder.mkdir()
        program = Program(
            name=binary.name,
            failure=RedisUnavailable,
            log=folder / "log",
            cwd=folder,
            env=os.environ,
            die_with_parent=True,
        )

        def command(ports: tuple[int, ...]) -> tuple[list[str], str]:
            # Sentinels and cluster nodes rewrite their configuration, so it must be a file.
            path = folder / "server.conf"
            path.write_text(f'bind 127.0.0.1\ndir "{folder}"\n' + settings.replace("{port}", str(ports[0])))
            return [str(binary), str(path), *flags], ""

        server = start_server(program, command, answers, 1)
        running.append(server)
        return server

    yield make
    for server in running:
        server.kill()


def connected(connection: RedisConnection) -> redis.Redis:
    """A client made from the variables that a service would get."""
    variables = Connections(connection, S3Connection("http://store", "us-east-1")).environment()
    return Connections.read(variables).redis.client()


def works(client: redis.Redis) -> None:
    client.delete("rolloutpipe:{demo}:s")
    assert client.set("rolloutpipe:{demo}:a", "é") is True
    assert client.get("rolloutpipe:{demo}:a") == "é"
    double = client.register_script("return redis.call('GET', KEYS[1]) .. ARGV[1]")
    assert double(keys=["rolloutpipe:{demo}:a"], args=["!"]) == "é!"
    client.xadd("rolloutpipe:{demo}:s", {"field": "value"}, id="1-1")
    # A list of pairs: the shape of protocol 2.
    assert client.xread({"rolloutpipe:{demo}:s": "0"}) == [["rolloutpipe:{demo}:s", [("1-1", {"field": "value"})]]]


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.name)
def test_user_and_password(start: Start, binary: Path) -> None:
    server = start(binary, "port {port}\nuser default off\nuser ann on >p@ss/word ~* &* +@all\n")
    connection = RedisConnection((("127.0.0.1", server.port),), "ann", "p@ss/word", database=3)
    works(connected(connection))
    with pytest.raises(redis.AuthenticationError):
        connected(replace(connection, password="wrong")).ping()


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.name)
def test_a_master_behind_sentinels(start: Start, binary: Path) -> None:
    master = start(binary, "port {port}\nrequirepass secret\n")
    watch = f"port {{port}}\nsentinel monitor main 127.0.0.1 {master.port} 1\nsentinel auth-pass main secret\n"
    sentinels = [start(binary, watch, "--sentinel") for _ in range(2)]
    connection = RedisConnection(
        tuple(("127.0.0.1", sentinel.port) for sentinel in sentinels), password="secret", sentinel_master="main"
    )
    client = connected(connection)
    works(client)
    # With the first Sentinel gone, the second is asked.
    sentinels[0].kill()
    works(connected(connection))


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: binary.name)
def test_a_cluster(start: Start, binary: Path) -> None:
    (bus,) = free_ports(1)
    node = start(binary, f"port {{port}}\ncluster-enabled yes\ncluster-port {bus}\nrequirepass secret\n")
    single = RedisConnection((("127.0.0.1", node.port),), password="secret")
    admin = single.client()
    admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
    # A node waits two seconds before it calls its cluster whole.
    assert until(lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok", 30.0)
    works(connected(replace(single, cluster=True)))


@pytest.mark.parametrize("binary", TLS_SERVERS, ids=["tls"] * len(TLS_SERVERS))
def test_tls(start: Start, binary: str | None, tmp_path: Path) -> None:
    assert binary and shutil.which("openssl"), "ROLLOUTPIPE_REQUIRE_REDIS_SERVER=1 asks for redis-server and openssl"
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    settings = f"port 0\ntls-port {{port}}\ntls-cert-file {certificate}\ntls-key-file {key}\n"
    server = start(Path(binary), settings + f"tls-ca-cert-file {certificate}\ntls-auth-clients no\n")
    connection = RedisConnection((("127.0.0.1", server.port),), tls=True, ca_file=str(certificate))
    works(connected(connection))
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        connected(replace(connection, ca_file=None)).ping()
