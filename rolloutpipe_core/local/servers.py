"""The embedded servers of one folder: a Valkey and a SeaweedFS, with their data under `.rolloutpipe/`.

    start ──> servers of this folder live already ──> use them
          └─> none, or what a killed start left   ──> clean up, start both on the data that is there

`rolloutpipe up` lets them outlive it until `down`; those of a quickstart or a test die with their parent.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from types import TracebackType

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.errors import BadInput, DeadlineExceeded
from rolloutpipe_core.local import seaweed, valkey
from rolloutpipe_core.local.process import POLL_S, START_DEADLINE_S, ServerProcess, processes_in
from rolloutpipe_core.local.state import (
    STATE_FOLDER,
    CredentialsFile,
    ServersFile,
    credentials_path,
    read_servers,
    servers_path,
    write_private,
)


@dataclass(frozen=True, slots=True)
class LocalServers:
    """Running embedded servers. As a context manager it stops at its end what it started itself."""

    directory: Path
    redis: ServerProcess
    s3: ServerProcess
    connections: Connections
    started_here: bool

    @classmethod
    def start(cls, directory: Path, *, die_with_parent: bool) -> LocalServers:
        """Find this folder's live servers, or start them. With `die_with_parent`, only from the main thread.

        Raises BadInput when they belong to another live process that will take them along, and RedisUnavailable,
        StoreUnavailable or DeadlineExceeded when one does not start.
        """
        state = directory / STATE_FOLDER
        state.mkdir(parents=True, exist_ok=True)
        with _locked(state / "lock"):
            found = cls.find(directory)
            if found is not None:
                return found
            _clean_up(directory)
            return _start(directory, die_with_parent)

    @classmethod
    def find(cls, directory: Path) -> LocalServers | None:
        """This folder's servers when both live, else None. Raises BadInput as `start` does."""
        recorded = read_servers(directory)
        if recorded is None:
            return None
        redis, s3 = ServerProcess(valkey.NAME, recorded.redis), ServerProcess(seaweed.NAME, recorded.s3)
        if not (redis.is_running() and s3.is_running()):
            return None
        if recorded.parent not in (None, os.getpid()):
            raise BadInput(
                "the embedded servers of this folder belong to another process and end with it",
                given=f"pid {recorded.parent}",
                remedy="wait for it, use another folder, or run `rolloutpipe down`",
            )
        return cls(directory, redis, s3, Connections.of_embedded(directory), started_here=False)

    def stop(self) -> None:
        """Stop both and forget them; their data stays."""
        stop_servers(self.directory)

    def __enter__(self) -> LocalServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.started_here:
            self.stop()


def stop_servers(directory: Path) -> bool:
    """Stop the recorded servers of a folder, whoever started them; False when none was running."""
    state = directory / STATE_FOLDER
    if not state.is_dir():
        return False
    with _locked(state / "lock"):
        return _clean_up(directory)


def _clean_up(directory: Path) -> bool:
    """End what still works on this folder's data, and remove the records; whether anything lived."""
    state = directory / STATE_FOLDER
    processes = [
        *processes_in(state / "valkey", valkey.NAME),
        *processes_in(state / "seaweedfs", seaweed.NAME),
    ]
    for process in processes:
        process.send(signal.SIGTERM)
    for process in processes:
        process.stop()
    seaweed.remove_stale_sockets()
    servers_path(directory).unlink(missing_ok=True)
    credentials_path(directory).unlink(missing_ok=True)
    return bool(processes)


def _start(directory: Path, die_with_parent: bool) -> LocalServers:
    state = directory / STATE_FOLDER
    credentials = CredentialsFile(
        redis_password=secrets.token_hex(24),
        s3_access_key=seaweed.ACCESS_KEY,
        s3_secret_key=secrets.token_hex(24),
    )
    redis = valkey.start_valkey(
        state / "valkey",
        state / "logs" / "valkey.log",
        credentials.redis_password,
        die_with_parent=die_with_parent,
    )
    try:
        s3 = seaweed.start_seaweedfs(
            state / "seaweedfs",
            state / "logs" / "seaweedfs.log",
            credentials.s3_access_key,
            credentials.s3_secret_key,
            die_with_parent=die_with_parent,
        )
    except BaseException:
        redis.stop()
        raise
    parent = os.getpid() if die_with_parent else None
    write_private(credentials_path(directory), credentials)
    write_private(servers_path(directory), ServersFile(redis=redis.record, s3=s3.record, parent=parent))
    return LocalServers(directory, redis, s3, Connections.of_embedded(directory), started_here=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One start or stop at a time in a folder."""
    end = time.monotonic() + 2 * START_DEADLINE_S
    with path.open("w") as file:
        while True:
            try:
                flock(file, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise DeadlineExceeded(
                        "another start or stop of the embedded servers takes too long",
                        given=str(path),
                        expected=f"within {2 * START_DEADLINE_S:g} s",
                    ) from None
                time.sleep(POLL_S)
        yield
