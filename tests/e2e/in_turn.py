"""One service process for run after run: imports, the most of a short run's time, are paid once.

    test ──"/path/run.yaml"──> this process ──> the service's own `main`, to the run's end
         <──"0"───────────────                  its exit code

Started as `python in_turn.py ROLE NAME`. Each run is one `run_service`, as `python -m` makes it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from rolloutpipe_core.service import run_service


def main(role: str, name: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a run prints is no answer
    service = import_module(f"rolloutpipe_components.{role}.__main__")
    for line in sys.stdin:
        answers.write(f"{run_service(role, service.main, [line.strip(), '--name', name])}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
