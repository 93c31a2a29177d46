"""Plays one run: starts its services, does the planned deeds, restarts what died, and waits for the end.

    services ──"I am at commit/after"──> a thread each ──> this deed's turn? do it ──> "go on" (or it is dead)
    zygote   ──"1234 ended, -9"────────> main thread: restart it, or note that it is done
    clock    ──random instants─────────> a thread each

Servers and services are started by the main thread alone: their leashes follow it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import yaml

from rolloutpipe_core.errors import Fenced, RunStopped

from .deeds import Deed
from .points import points
from .stage import BUCKET, Server, Stage

WORKERS = ("rollout-0", "rollout-1")
TRAINER = "trainer"
SERVICES = (TRAINER, *WORKERS)
DAMAGED = b"these bytes are not the group's"
TAIL_BYTES = 3000


class RunFailed(Exception):
    """The run did not end as it should. The text says what was done and what each service was at."""


@dataclass
class Process:
    """One incarnation of a service."""

    name: str
    pid: int
    status: int | None = None  # None while it lives
    killed: bool = False  # by us


@dataclass
class Played:
    """What happened in a run."""

    done: list[tuple[Deed, str]] = field(default_factory=list)  # with whom it met
    missed: list[Deed] = field(default_factory=list)
    story: list[str] = field(default_factory=list)  # one line a deed, start and end, with its instant
    reached: Counter[str] = field(default_factory=Counter)  # watched points
    seconds: float = 0.0


class Conductor:
    """Plays one run. Used once, from the main thread."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        config: dict[str, Any],
        deeds: Sequence[Deed],
        deadline_s: float,
        resume_options: Sequence[str] = (),
        watch_all: bool = False,
    ) -> None:
        """`resume_options`: command line of a service whose run stopped itself; without them a stop is a failure."""
        self._stage, self._folder, self._config = stage, folder, config
        self._deeds, self.deadline_s = list(deeds), deadline_s
        self._resume_options, self._options = list(resume_options), list[str]()
        self._watched = points() if watch_all else sorted({deed.point for deed in deeds if deed.point})
        self._address = str(folder / "conductor.sock")
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._processes: list[Process] = []
        self._done_services: set[str] = set()
        self._twice: set[str] = set()  # names under which two processes ran at once
        self._lock = threading.Lock()
        self._busy = 0  # deeds under way
        self._over = threading.Event()  # the main thread takes no more tasks
        self._failure: str | None = None
        self.played = Played()

    def play(self) -> Played:
        """Returns when all services have ended well. Raises RunFailed."""
        (self._folder / "run.yaml").write_text(yaml.safe_dump(self._config))
        self._started_s = time.monotonic()
        self._stage.zygote.on_end = lambda pid, status: self._tasks.put(lambda: self._ended(pid, status))
        listener = socket.socket(socket.AF_UNIX)
        # Relative: the path of a Unix socket may have no more than 107 bytes.
        listener.bind(os.path.relpath(self._address))
        listener.listen(64)
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()
        timers = [threading.Timer(deed.at_s, self._at_instant, (deed,)) for deed in self._deeds if not deed.point]
        try:
            for name in SERVICES:
                self._start(name)
            for timer in timers:
                timer.start()
            self._direct()
        finally:
            for timer in timers:
                timer.cancel()
            self._tell("the run's end")
            self._over.set()
            self._end_all()
            listener.close()
            self.played.seconds = time.monotonic() - self._started_s
            self.played.missed = [deed for deed in self._deeds if deed not in dict(self.played.done)]
        return self.played

    def _direct(self) -> None:
        while not self._is_over():
            if self._failure is not None:
                raise RunFailed(self._failure)
            if time.monotonic() - self._started_s > self.deadline_s:
                raise RunFailed(f"the run did not end within {self.deadline_s:g} s\n{self._what_each_waits_for()}")
            with suppress(Empty):
                self._tasks.get(timeout=0.2)()
        if self._failure is not None:
            raise RunFailed(self._failure)

    def _is_over(self) -> bool:
        at_rest = self._busy == 0 and self._tasks.empty()
        return at_rest and self._done_services == set(SERVICES) and not self._living(*SERVICES)

    # Services

    def _start(self, name: str) -> None:
        order = {
            "role": "trainer" if name == TRAINER else "rollout",
            "name": name,
            "folder": str(self._folder),
            "log": str(self._folder / f"{name}.log"),
            "environment": self._stage.connections.environment(),
            "address": os.path.relpath(self._address, self._folder),
            "watched": self._watched,
            "options": self._options,
        }
        pid = self._stage.zygote.fork(order)
        with self._lock:
            self._processes.append(Process(name, pid))
        self._tell(f"{name} starts as {pid}")

    def _ended(self, pid: int, status: int) -> None:
        found = next((process for process in self._processes if process.pid == pid and process.status is None), None)
        if found is None:
            return  # of an earlier run
        with self._lock:
            found.status = status
        self._tell(f"{found.name} ({pid}) ended with {status}")
        if status == 0:
            self._done_services.add(found.name)
        elif status == RunStopped.exit_code and self._resume_options:
            self._options = self._resume_options
            self._start(found.name)
        elif self._is_expected(found):
            if found.name not in self._done_services and not self._living(found.name):
                self._start(found.name)
        else:
            ended = f"{found.name} ({pid}) ended by itself with status {status}:\n{self._log_tail(found.name)}"
            self._failure = f"{ended}\n{self._what_each_waits_for()}"

    def _is_expected(self, ended: Process) -> bool:
        """Killed by us, or fenced off by the other one of the two that a `replace` made."""
        if ended.killed and ended.status == -signal.SIGKILL:
            return True
        return ended.status == Fenced.exit_code and ended.name in self._twice

    def _living(self, *names: str) -> list[Process]:
        with self._lock:
            return [process for process in self._processes if process.name in names and process.status is None]

    def _end_all(self) -> None:
        for process in self._living(*SERVICES):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for server in self._stage.servers.values():
            server.process.send(signal.SIGCONT)
            if not server.process.is_running():
                server.restart()

    # Points

    def _listen(self, listener: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                line, _ = listener.accept()
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        """A service is at a watched point: do what is planned there, then let it go on."""
        with line, suppress(OSError):
            question = json.loads(line.makefile().readline() or "{}")
            if not question:
                return  # killed while it asked
            with self._lock:
                self.played.reached[question["point"]] += 1
                count = self.played.reached[question["point"]]
                here = (question["point"], count)
                deed = next((deed for deed in self._deeds if (deed.point, deed.nth) == here), None)

            def go_on() -> None:
                with suppress(OSError):  # another deed has killed it
                    line.sendall(b".")

            if deed is not None:
                self._do(deed, self._process(question["pid"]), question["facts"], go_on)
            go_on()

    def _process(self, pid: int) -> Process:
        """A service may ask before we have written down that it was born."""
        while True:
            with self._lock:
                found = [process for process in self._processes if process.pid == pid]
            if found:
                return found[-1]
            time.sleep(0.01)

    def _at_instant(self, deed: Deed) -> None:
        role = [TRAINER] if deed.victim == "trainer" else list(WORKERS)
        if deed.victim not in self._stage.servers:
            living = self._living(*role)
            if not living:
                return  # all is over
            self._do(deed, living[deed.nth % len(living)], [], go_on=lambda: None)
        else:
            self._do(deed, None, [], go_on=lambda: None)

    # Deeds

    def _do(self, deed: Deed, process: Process | None, facts: list[str], go_on: Callable[[], None]) -> None:
        with self._lock:
            self._busy += 1
        at = f" ({process.name} {process.pid})" if process else ""
        who = process.name if process and deed.victim not in self._stage.servers else deed.victim
        self._tell(f"DEED {deed}{at}")
        try:
            if deed.kind in ("damage", "spoil"):
                self._damage(facts)
            if deed.kind == "damage":
                pass
            elif deed.victim in self._stage.servers:
                self._to_server(deed, self._stage.servers[deed.victim], go_on)
            else:
                assert process is not None
                self._to_service(deed, process)
            with self._lock:
                self.played.done.append((deed, who))
        except ProcessLookupError:
            pass  # another deed killed it first: this one is missed
        except Exception as error:
            self._failure = f"the deed failed: {deed}: {error!r}"
        finally:
            self._tell(f"done {deed}")
            with self._lock:
                self._busy -= 1

    def _to_service(self, deed: Deed, process: Process) -> None:
        if deed.kind in ("kill", "spoil"):
            process.killed = True
            os.kill(process.pid, signal.SIGKILL)
            return
        os.kill(process.pid, signal.SIGSTOP)
        if deed.kind == "replace":
            self._twice.add(process.name)
            self._in_main_thread(lambda: self._start(process.name))
        time.sleep(deed.lasts_s)
        with suppress(ProcessLookupError):  # another deed killed it meanwhile
            os.kill(process.pid, signal.SIGCONT)

    def _to_server(self, deed: Deed, server: Server, go_on: Callable[[], None]) -> None:
        """The service at the point goes on at once, into the outage."""
        with server.deed:
            if deed.kind == "kill":
                server.process.kill()
                go_on()
                time.sleep(deed.lasts_s)
                self._in_main_thread(server.restart)
            else:
                server.process.send(signal.SIGSTOP)
                go_on()
                time.sleep(deed.lasts_s)
                server.process.send(signal.SIGCONT)

    def _damage(self, facts: list[str]) -> None:
        """Overwrite the object of the group that the call at the point is about."""
        names = [fact for fact in facts if fact.endswith(".arrow")]
        if not names:  # assign: epoch, nonce, actor, group, attempt, sha256, ...
            round, index = facts[3].split("-")
            names = [f"runs/{self._config['run']}/groups/{round}/{index}-{facts[5][:16]}.arrow"]
        with self._stage.servers["s3"].deed:  # not while it is down
            self._stage.s3.head_object(Bucket=BUCKET, Key=names[0])
            self._stage.s3.put_object(Bucket=BUCKET, Key=names[0], Body=DAMAGED)

    def _in_main_thread(self, task: Callable[[], None]) -> None:
        """Have the main thread do it, and wait until it has."""
        done = threading.Event()

        def run() -> None:
            try:
                task()
            finally:
                done.set()

        self._tasks.put(run)
        while not done.wait(0.1):
            if self._over.is_set():
                raise RunFailed("the run ended before the main thread came to it")

    # Words

    def _tell(self, what: str) -> None:
        self.played.story.append(f"{time.monotonic() - self._started_s:7.3f}  {what}")

    def _log_tail(self, name: str) -> str:
        with suppress(FileNotFoundError):
            return (self._folder / f"{name}.log").read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        return "(no log)"

    def _what_each_waits_for(self) -> str:
        """From the services' own words in Redis and their logs, after they have written down where they stand."""
        for process in self._processes:
            if process.status is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1.0)
        told = []
        for name in SERVICES:
            with suppress(Exception):
                row = self._stage.redis.hgetall(f"rolloutpipe:{{{self._config['run']}}}:service:{name}")
                told.append(f"{name}: {row.get('doing')}, waits for {row.get('waiting_for') or 'nothing'}")
            told.append(self._log_tail(name))
        return "\n".join(told)
