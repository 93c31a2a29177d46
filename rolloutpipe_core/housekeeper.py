"""The housekeeper: what a long run needs now and then, in a thread of its own, so that training never waits for it.

    publish ──nudge──> archive the ledger's closed ranges, retire and delete objects        (skipped while one is busy)
    run's end ──finish──> one last pass, within a deadline

A failure of its work ends nothing: it is logged, told, and tried again at the next nudge.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rolloutpipe_core.errors import Fenced, RolloutPipeError

log = logging.getLogger("rolloutpipe.housekeeper")

Work = Callable[[], object]


class Housekeeper:
    """Runs its works one after another at each nudge. A context manager: leaving it waits for a pass only briefly."""

    def __init__(self, works: Sequence[Work], tell: Callable[[str], None]) -> None:
        """`tell` is given the pass's errors, one line, or an empty text; it may raise as the works do."""
        self._works = works
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._fenced = False

    def __enter__(self) -> Housekeeper:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join(timeout=5)

    def nudge(self) -> None:
        """Begin a pass, unless one is under way or another trainer has taken over. Returns at once."""
        if self._fenced or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=self._pass, name="housekeeper", daemon=True)
        self._thread.start()

    def finish(self, deadline_s: float) -> bool:
        """A whole pass from now on; False when it was not through by the deadline, and is left alone."""
        end = time.monotonic() + deadline_s
        if self._thread is not None:
            self._thread.join(deadline_s)
        self.nudge()
        if self._thread is not None:
            self._thread.join(max(end - time.monotonic(), 0.0))
            if self._thread.is_alive():
                log.warning("the last housekeeping took longer than %g s: the next start goes on with it", deadline_s)
                return False
        return True

    def _pass(self) -> None:
        errors = []
        try:
            for work in self._works:
                try:
                    work()
                except Fenced:
                    raise
                except Exception as error:  # whatever it is, training goes on
                    log.warning("housekeeping failed: %s", error, exc_info=not isinstance(error, RolloutPipeError))
                    errors.append(" ".join(str(error).split()) or type(error).__name__)
            with suppress(RolloutPipeError):  # Redis is away: the log has it
                self._tell("; ".join(errors))
        except Fenced:
            self._fenced = True
            log.info("housekeeping ends: another trainer has the role")
