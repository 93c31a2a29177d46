"""A program of several processes ends with the process that wanted it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rolloutpipe_core.local import warden
from rolloutpipe_core.local.process import start_time

PROGRAM = """
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), sys.executable, "-c", sys.argv[2]]
print(subprocess.Popen(command, process_group=0).pid, flush=True)
time.sleep(600)
"""


def test_all_processes_die_with_a_parent_that_is_killed() -> None:
    """The program's child asks for no signal of its own."""
    command = [sys.executable, "-c", PARENT, warden.__file__, PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()), *map(int, parent.stdout.readline().split())]
        assert len(pids) == 3
        parent.kill()
    end = time.monotonic() + 20
    while any(start_time(pid) is not None for pid in pids):
        assert time.monotonic() < end, pids
        time.sleep(0.02)


def start(program: str, group: int | None = 0, parent: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", warden.__file__, str(parent or os.getpid()), sys.executable, "-c", program]
    return subprocess.Popen(command, process_group=group, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_request_to_end_is_passed_on() -> None:
    handler = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    )
    with start(handler) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(20) == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_it_ends_by_the_signal_that_ended_the_program(number: signal.Signals) -> None:
    with start(f"import os; os.kill(os.getpid(), {int(number)})") as process:
        assert process.wait(20) == -number


def test_without_a_group_of_its_own_or_its_parent_it_starts_nothing() -> None:
    with start("print('started')", group=None) as process:
        out, error = process.communicate(timeout=20)
        assert (process.returncode, out) == (1, "")
        assert "has to lead a process group" in error
    with start("print('started')", parent=1) as process:
        out, _ = process.communicate(timeout=20)
        assert (process.returncode, out) == (1, "")
