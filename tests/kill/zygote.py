"""A process that has imported torch once and forks every service from there: a start costs milliseconds, not seconds.

    conductor ──{"role": "trainer", "name": ..., "folder": ..., "log": ...}──> zygote ──fork──> the service's own `main`
              <──{"pid": 1234}────────────────────────────────────────────────
              <──{"pid": 1234, "status": -9}────────────────────────────────── when it has ended

A service has its own process group, log, working folder and environment; it dies with the zygote, and that with the
conductor. The one part of a service's start that is left out is the store's probe: SeaweedFS takes a second for its
races, and the conductor proves its store once, before the runs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import selectors
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from rolloutpipe_core import service

from . import faults

PR_SET_PDEATHSIG = 1

IMPORTED_LATE = (
    "rolloutpipe_components.rollout.engines.torch",
    "rolloutpipe_components.rollout.service",
    "rolloutpipe_components.trainer.backends.torch",
    "rolloutpipe_components.trainer.service",
    "rolloutpipe_core.data.load",
    "rolloutpipe_core.preparation",
)
"""What the services' `main` imports."""

Mains = dict[str, Callable[..., None]]


def main() -> None:
    """Fork what standard input asks for, until it ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed is no answer
    mains = import_once()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    order = serve(answers)
    if order is not None:
        status = be_service(order, mains)
        threading._shutdown()  # as at any end: threads that are no daemons are waited for
        sys.stderr.flush()
        os._exit(status)  # taking all modules apart would take seconds, for every service


def import_once() -> Mains:
    """All that the services import, also within their functions and on first use; torch keeps to one thread."""
    import torch

    torch.set_num_threads(1)
    import pyarrow
    import transformers
    from rolloutpipe_components.rollout.__main__ import main as rollout
    from rolloutpipe_components.trainer.__main__ import main as trainer

    from rolloutpipe_core.data.models import resolve_model

    for name in IMPORTED_LATE:
        import_module(name)
    transformers.utils.logging.disable_progress_bar()  # it starts a thread, and a fork would copy that one's locks
    model = resolve_model("builtin:pointer-walk")
    transformers.AutoModelForCausalLM.from_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(model)
    pyarrow.array([1])  # imports pandas, where there is one
    return {"rollout": rollout, "trainer": trainer}


def serve(answers: int) -> dict[str, Any] | None:
    """Fork a child for each order. Returns None at the end of the orders, and in a child its order."""
    ended, ended_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_in, warn_on_full_buffer=False)
    waiting, buffer = selectors.DefaultSelector(), b""
    waiting.register(0, selectors.EVENT_READ)
    waiting.register(ended, selectors.EVENT_READ)

    def tell(**answer: int) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    while True:
        ready = {key.fd for key, _ in waiting.select()}
        if ended in ready:
            os.read(ended, 4096)
            for pid, status in _reaped():
                tell(pid=pid, status=status)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return None
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    waiting.close()
                    for fd in (answers, ended, ended_in):
                        os.close(fd)
                    order: dict[str, Any] = json.loads(line)
                    return order
                tell(pid=pid)


def _reaped() -> list[tuple[int, int]]:
    """(pid, exit status, or minus the signal) of every child that has ended."""
    found = []
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


def be_service(order: dict[str, Any], mains: Mains) -> int:
    """Run the service of this order in this process, which was just forked; returns its exit status."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["parent"]:
        return 1
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log, nothing = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, target)
    os.closerange(3, 64)
    os.chdir(order["folder"])
    os.environ.update(order["environment"])
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # tells where it stands when the conductor gives up
    faults.install(order["name"], order["address"], order["watched"])
    service.probe_store = lambda store: None  # type: ignore[assignment,return-value]
    arguments = ["run.yaml", *order["options"], "--name", order["name"]]
    return service.run_service(order["role"], mains[order["role"]], arguments)


if __name__ == "__main__":
    main()
