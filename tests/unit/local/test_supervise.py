"""With real, tiny processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutpipe_core.local.supervise import Child, ServiceFailed, Supervisor

ENVIRONMENT = dict(os.environ)
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
)
# A grandchild that ignores what its parent dies of.
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {FOREVER!r}], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def child(tmp_path: Path) -> Callable[[str, str], Child]:
    return lambda name, code: Child(name, (sys.executable, "-c", code), tmp_path / "logs" / f"{name}.log")


def eventually(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"still not: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def said_up(*children: Child) -> Callable[[], bool]:
    return lambda: all(child.log.exists() and child.log.read_text().strip() for child in children)


def test_all_exit_0(child) -> None:
    with Supervisor([child("a", "print(1)"), child("b", "print(2)")], ENVIRONMENT) as services:
        eventually(lambda: not services.running(), "both ended")
        services.raise_failure()


def test_a_failure_brings_its_last_words_its_code_and_its_log(child) -> None:
    bad, good = child("trainer", "import sys; print('error: no model\\n'); sys.exit(7)"), child("rollout", FOREVER)
    with pytest.raises(ServiceFailed) as caught, Supervisor([good, bad], ENVIRONMENT) as services:
        pid = services._processes["rollout"].pid
        eventually(lambda: services.running() == ["rollout"], "the trainer ended")
        services.raise_failure()
    assert caught.value.exit_code == 7
    assert str(caught.value) == f"trainer exited with 7; given: error: no model; do: see {bad.log}"
    assert not alive(pid)


def test_last_words_are_of_this_start(child) -> None:
    bad = child("trainer", "raise SystemExit(3)")
    bad.log.parent.mkdir()
    bad.log.write_text("of an earlier start\n")
    with pytest.raises(ServiceFailed, match="nothing in its log"), Supervisor([bad], ENVIRONMENT) as services:
        eventually(lambda: not services.running(), "it ended")
        services.raise_failure()


def test_the_reason_is_told_though_others_write_behind_it(child) -> None:
    code = """
print('2026-01-02 03:04:05,678 ERROR trainer trainer ends: no such device here; given: cuda')
print('  its second line\\nleaked semaphores of a worker')
raise SystemExit(2)
"""
    bad = child("trainer", code)
    bad.log.parent.mkdir()
    bad.log.write_text("2026-01-02 03:04:05,678 ERROR trainer trainer ends: of an earlier start\n")
    with pytest.raises(ServiceFailed) as caught, Supervisor([bad], ENVIRONMENT) as services:
        eventually(lambda: not services.running(), "it ended")
        services.raise_failure()
    reason = "trainer trainer ends: no such device here; given: cuda"
    assert str(caught.value) == f"trainer exited with 2; given: {reason}; do: see {bad.log}"


def test_a_signal_is_told_by_name(child) -> None:
    killed = child("trainer", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with (
        pytest.raises(ServiceFailed, match="ended by SIGKILL") as caught,
        Supervisor([killed], ENVIRONMENT) as services,
    ):
        eventually(lambda: not services.running(), "it ended")
        services.raise_failure()
    assert caught.value.exit_code == 137


def test_who_ignores_sigterm_is_killed(child) -> None:
    stubborn = child("a", STUBBORN)
    with Supervisor([stubborn], ENVIRONMENT, stop_s=0.2) as services:
        eventually(said_up(stubborn), "it is up")
        pid = services._processes["a"].pid
    assert not alive(pid)


def test_grandchildren_go_too(child) -> None:
    family = child("a", FAMILY)
    with Supervisor([family], ENVIRONMENT):
        eventually(said_up(family), "the grandchild is there")
        grandchild = int(family.log.read_text())
        assert alive(grandchild)
    eventually(lambda: not alive(grandchild), "the grandchild is gone")


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    absent = Child("trainer", ("/no/such/program",), tmp_path / "a.log")
    with pytest.raises(ServiceFailed, match="No such file"), Supervisor([absent], ENVIRONMENT) as services:
        eventually(lambda: not services.running(), "it ended")
        services.raise_failure()


def test_a_start_that_breaks_off_leaves_none_behind(child, tmp_path: Path) -> None:
    services = Supervisor([child("a", FOREVER), Child("b", (sys.executable,), tmp_path)], ENVIRONMENT)
    with pytest.raises(IsADirectoryError), services:
        pass
    assert services.running() == []


def test_stopping_twice_is_harmless(child) -> None:
    with Supervisor([child("a", FOREVER)], ENVIRONMENT) as services:
        services.stop()
        services.stop()


PARENT = """
import os, sys, time
from pathlib import Path
from rolloutpipe_core.local.supervise import Child, Supervisor
child = Child("a", (sys.executable, "-c", sys.argv[1]), Path(sys.argv[2]))
with Supervisor([child], dict(os.environ)) as services:
    print(services._processes["a"].pid, flush=True)
    time.sleep(600)
"""


def test_children_follow_a_killed_parent(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, FOREVER, str(log)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent:
        child = int(parent.stdout.readline())
        eventually(lambda: log.exists() and log.read_text(), "the child is up")
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(child), "the child is gone")
