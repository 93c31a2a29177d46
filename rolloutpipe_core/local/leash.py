"""Runs a program that the kernel kills when its parent dies: `python leash.py PARENT_PID PROGRAM ARG...`.

Run by path and with nothing but the standard library, since it starts before every embedded server. The
kernel's signal follows the parent's *thread* that started us, so that one must live as long as the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    # SIGKILL: a server that takes its time over a polite signal would outlive its parent. exec keeps the setting.
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that died before the call sends no signal any more.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
