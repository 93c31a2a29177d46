"""The command line as its users run it, with what it took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rolloutpipe_core.cli.processes import service_environment
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.errors import DeadlineExceeded, RolloutPipeError

PROGRAM = (sys.executable, "-c", "from rolloutpipe_core.cli.main import main; main()")
DEADLINE_S = 900
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float  # from start to exit, Python's own start included
    peak_mib: float  # largest resident set, as the kernel last told


def rolloutpipe(connections: Connections, folder: Path, *arguments: str) -> Cost:
    """Run `rolloutpipe ARGUMENTS` in a folder, its output beside it. Raises RolloutPipeError when it fails."""
    environment = {**service_environment(os.environ), **connections.environment()}
    path = folder / f"{'-'.join(arguments[:2]).replace('/', '-')}.log"
    started = time.monotonic()
    peak_kib = 0
    with path.open("w") as log:
        process = subprocess.Popen([*PROGRAM, *arguments], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                peak_kib = max(peak_kib, _peak_kib(process.pid))
                if time.monotonic() - started > DEADLINE_S:
                    raise DeadlineExceeded(f"rolloutpipe {' '.join(arguments)} runs longer than {DEADLINE_S} s")
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
    seconds = time.monotonic() - started
    if process.returncode != 0:
        raise RolloutPipeError(
            f"rolloutpipe {' '.join(arguments)} failed", given=path.read_text()[-2000:], expected="exit code 0"
        )
    return Cost(seconds, peak_kib / 1024)


def _peak_kib(pid: int) -> int:
    """The largest resident set so far; 0 when the process is gone. (What `wait4` tells includes its parent's.)"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
