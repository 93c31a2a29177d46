"""Runs a program of several processes and ends all of them when our parent dies.

`python warden.py PARENT_PID PROGRAM ARG...`, as leader of a process group. A parent-death signal (leash.py) reaches the
program's first process alone. Those that it starts may ask for one of their own, but only after their imports: until
then nobody would end them. We stay beside them instead, pass a request to end on, and end as the program does.

Run by path and with nothing but the standard library. The kernel's signal follows the parent's *thread* that
started us.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PARENT_DIED = signal.SIGUSR1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if os.getpgrp() != os.getpid():
        sys.exit("warden.py has to lead a process group: it kills its own")
    server: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if server is None:
            sys.exit(128 + number)
        server.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(PARENT_DIED, _kill_group)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, PARENT_DIED, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before the call sends no signal any more.
    if os.getppid() != parent:
        sys.exit(1)
    leash = Path(__file__).with_name("leash.py")
    server = subprocess.Popen([sys.executable, "-I", "-S", str(leash), str(os.getpid()), *program])
    status = server.wait()
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _kill_group(_number: int, _frame: FrameType | None) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)  # us, too


if __name__ == "__main__":
    main()
