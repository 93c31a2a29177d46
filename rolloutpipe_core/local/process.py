"""Processes of embedded servers: started, awaited, recognised by pid and start time, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rolloutpipe_core.errors import DeadlineExceeded, RolloutPipeError
from rolloutpipe_core.local import leash
from rolloutpipe_core.local.state import ServerRecord

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 15.0
POLL_S = 0.02
PORT_TRIES = 5
LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Program:
    """How to start a server, all but its ports."""

    name: str  # for people, and part of its command line
    failure: type[RolloutPipeError]  # raised when it ends instead of starting
    log: Path
    cwd: Path
    env: Mapping[str, str]
    die_with_parent: bool


@dataclass(slots=True)
class ServerProcess:
    """A running server: one that we started, or one that a state file recorded."""

    name: str
    record: ServerRecord
    child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        return self.record.ports[0]

    def is_running(self) -> bool:
        """Whether the recorded process lives and really is this server: pids are used again."""
        if self.child is not None and self.child.poll() is not None:
            return False
        return start_time(self.record.pid) == self.record.started and self.name in _command_line(self.record.pid)

    def send(self, number: signal.Signals) -> None:
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.record.pid, number)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Ask it to end, and end it when it doesn't in time. Returns when it is gone."""
        self.send(signal.SIGTERM)
        if not until(lambda: not self.is_running(), deadline_s):
            self.kill()

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        self.send(signal.SIGKILL)
        if not until(lambda: not self.is_running(), STOP_DEADLINE_S):
            raise DeadlineExceeded(
                f"{self.name} does not end", given=f"pid {self.record.pid}", expected=f"within {STOP_DEADLINE_S:g} s"
            )


def start_server(
    program: Program,
    command: Callable[[tuple[int, ...]], tuple[Sequence[str], str]],
    ready: Callable[[int], bool],
    ports: int | tuple[int, ...],
) -> ServerProcess:
    """Start a server and wait until it answers.

    `command(ports)` gives the argument vector and the text for its standard input; `ready(port)` asks its first
    port. `ports` is how many to choose, again when one was taken meanwhile, or the very ports. Raises the
    program's failure, or DeadlineExceeded; both hold the end of the log.
    """
    if program.die_with_parent and threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a leash follows the starting thread: start the servers from the main thread")
    tries = PORT_TRIES if isinstance(ports, int) else 1
    while True:
        chosen = free_ports(ports) if isinstance(ports, int) else ports
        arguments, stdin = command(chosen)
        child = _launch(program, arguments, stdin)
        try:
            if _await(program, child, partial(ready, chosen[0])):
                started = start_time(child.pid)
                if started is not None:
                    return ServerProcess(
                        program.name, ServerRecord(pid=child.pid, started=started, ports=chosen), child
                    )
        except BaseException:
            child.kill()
            child.wait()
            raise
        tries -= 1
        tail = _tail(program.log)
        if tries == 0 or not _port_was_taken(tail):
            raise program.failure(
                f"the embedded {program.name} ended at its start",
                given=f"exit status {child.returncode}; its log ends: {tail}",
                remedy=f"see {program.log}",
            )


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback that are free now; another process may take one before we do."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


def start_time(pid: int) -> int | None:
    """Start of a live process in clock ticks since boot; None when there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces; behind it come the fields from the third on.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def processes_in(folder: Path, name: str) -> list[ServerProcess]:
    """Live servers of this name that work in a folder, recorded or not (a killed start leaves no record)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid, started = int(entry.name), start_time(int(entry.name))
        if started is not None and name in _command_line(pid) and _working_folder(pid) == folder.resolve():
            found.append(ServerProcess(name, ServerRecord(pid=pid, started=started, ports=())))
    return found


def _working_folder(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        # Gone, or another user's.
        return None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _launch(program: Program, arguments: Sequence[str], stdin: str) -> subprocess.Popen[bytes]:
    leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid())] if program.die_with_parent else []
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("wb") as log:
        child = subprocess.Popen(
            [*leashed, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=program.cwd,
            env=dict(program.env),
            # A Ctrl-C in the terminal is for us: the services finish before their servers do.
            start_new_session=True,
        )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(stdin.encode())
    return child


def _await(program: Program, child: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    """True when it answers, False when it ended."""
    if not until(lambda: child.poll() is not None or ready(), START_DEADLINE_S):
        raise DeadlineExceeded(
            f"the embedded {program.name} does not answer",
            given=f"its log ends: {_tail(program.log)}",
            expected=f"an answer within {START_DEADLINE_S:g} s",
            remedy=f"see {program.log}",
        )
    return child.poll() is None


def until(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Wait for a condition; False when it did not come in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def _tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _port_was_taken(log: str) -> bool:
    return "in use" in log or "not available" in log
