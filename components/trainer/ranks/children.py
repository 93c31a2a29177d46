"""Ranks on this machine that rank 0 starts itself: the same command again, with a place in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from rolloutpipe_core.errors import RankLost
from rolloutpipe_core.local import leash

from .place import Place

END_S = 10.0
"""What followers get to end by themselves."""


class Children:
    """Followers as child processes, which the kernel kills when this process's main thread ends.

    A context manager, to be entered in the main thread (see leash.py): the processes are gone when it is left. They
    share this process's log and its process group.
    """

    def __init__(self, place: Place, environ: Mapping[str, str]) -> None:
        """`place`: rank 0's."""
        self._place = place
        self._environ = environ
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), sys.executable]
        for rank in range(1, self._place.ranks):
            place = replace(self._place, rank=rank, local_rank=rank)
            self._processes[rank] = subprocess.Popen(
                [*leashed, *sys.orig_argv[1:]],
                stdin=subprocess.DEVNULL,
                env={**self._environ, **place.environment()},
            )
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        for process in self._processes.values():
            if failure is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
            process.kill()
            process.wait()

    def check(self, ranks: set[int]) -> None:
        """Raise RankLost when one of these has ended."""
        for rank in sorted(ranks & self._processes.keys()):
            if self._processes[rank].poll() is not None:
                raise RankLost(f"rank {rank} ended at its start", given=self.how_ended(rank), remedy="see the log")

    def how_ended(self, rank: int) -> str:
        """How a rank did that is known to be gone, by its process if it is one of ours."""
        process = self._processes.get(rank)
        if process is None:
            return "its connection ended"
        try:
            status = process.wait(2.0)
        except subprocess.TimeoutExpired:
            return "its connection ended, and its process did not"
        return f"its process was ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
