"""A trainer rank other than 0: it does what rank 0 says, and knows neither Redis nor the schedule.

                          beating thread: {alive}, whatever the others do ──────────────────────────────> rank 0
    rank 0 ──> listening thread ──┬── read ──> reading threads: fetch, hash, decode, gate ──> verdict ──┐
                                  ├── forget: a group that rank 0 let go of                             ├──> rank 0
                                  └── all else ──> main thread: the backend, in collectives ──> answer ─┘

It waits for rank 0 alone. When the connection ends, whatever it is doing, this process does too.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rolloutpipe_core.domain import Group
from rolloutpipe_core.errors import RankLost, RolloutPipeError

from ..rank import Files, Rank, Start
from ..trainer import Backend
from .collective import timed_out
from .meeting import Line
from .messages import expectation_from, ref_from, start_from, to_message

log = logging.getLogger("rolloutpipe.trainer")

READERS = 2
BEAT_S = 0.5
"""How often it tells rank 0 that it runs."""
END_S = 3.0
"""What the main thread gets to end by itself once rank 0 is gone."""
NEWS_S = 0.5
"""When a collective breaks: how long to look whether rank 0 is gone, which breaks it, too."""
NOWHERE = Path(os.devnull)
"""Exports and checkpoints are rank 0's to write."""

Order = dict[str, Any]


class Follower:
    """One follower's work, order after order. A context manager: while it is entered, it notices rank 0's end."""

    def __init__(self, number: int, line: Line, rank: Rank) -> None:
        """`number`: which rank it is."""
        self._number, self._line, self._rank = number, line, rank
        self._groups: dict[int, Group] = {}  # by the number of the order to read them
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._gone = threading.Event()  # rank 0 is
        self._readers = ThreadPoolExecutor(READERS, "read")
        self._files = ExitStack()  # holds what was fetched until it is loaded
        self._fetched: Files | None = None
        self._backend: Backend | None = None

    def __enter__(self) -> Follower:
        for work, name in ((self._listen, "rank-0"), (self._beat, "beat")):
            threading.Thread(target=work, name=name, daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Tell rank 0 what went wrong here, if anything did."""
        self._ended.set()
        if error is not None:
            said = str(error) if isinstance(error, RolloutPipeError) else f"{type(error).__name__}: {error}"
            with suppress(OSError):
                self._tell({"failed": said, "late": timed_out(error)})
        self._files.close()
        self._readers.shutdown(wait=False, cancel_futures=True)

    def run(self) -> None:
        """Do what rank 0 says, until it says that it is over. Raises RankLost when it is gone."""
        while (order := self._orders.get())["do"] != "end":
            try:
                self._answer(order, self._obey(order))
            except RolloutPipeError:
                raise
            except Exception as error:
                if self._gone.wait(NEWS_S):
                    raise RankLost("rank 0 of the trainer is gone", given=str(error)) from error
                raise

    def _obey(self, order: Order) -> dict[str, Any]:
        """Do what the order says; what comes back goes into the answer."""
        match order["do"]:
            case "fetch":
                return self._fetch(start_from(order["start"]))
            case "load":
                assert self._fetched is not None, "fetch comes first"
                self._backend = None  # when the trainer starts over: two would need twice the memory
                self._backend, _ = self._rank.load(self._fetched)
                self._files.close()
            case "begin_round":
                self._at_work.begin_round()
            case "begin_update":
                self._at_work.begin_update(order["update"])
            case "accumulate":
                self._at_work.accumulate([self._groups[number] for number in order["groups"]])
            case "step":
                return {"result": asdict(self._at_work.step())}
            case "export":
                self._at_work.export_weights(NOWHERE)
            case "save":
                self._at_work.save(NOWHERE)
            case unknown:
                raise RankLost("an order that is not known here", given=str(unknown), remedy="one version on all ranks")
        return {}

    @property
    def _at_work(self) -> Backend:
        assert self._backend is not None, "load comes first"
        return self._backend

    def _fetch(self, start: Start) -> dict[str, Any]:
        self._files.close()
        try:
            self._fetched = self._files.enter_context(self._rank.files(start))
        except RolloutPipeError as error:
            return {"error": to_message(error)}
        return {}

    def _read(self, order: Order) -> None:
        """In a reading thread."""
        try:
            ref, expected = ref_from(order["ref"]), expectation_from(order["expected"])
            self._groups[order["number"]] = self._rank.read(ref, expected)
            answer: dict[str, Any] = {}
        except RolloutPipeError as error:
            answer = {"error": to_message(error)}
        except Exception as error:  # a defect: rank 0 ends with it
            answer = {"failed": f"{type(error).__name__}: {error}"}
            log.exception("rank %d cannot read", self._number)
        with suppress(OSError):  # the listening thread knows
            self._answer(order, answer)

    def _listen(self) -> None:
        """The listening thread."""
        try:
            with suppress(EOFError, OSError):
                self._take_orders()
        finally:
            self._gone.set()
            if not self._ended.wait(END_S):
                log.warning("rank %d ends, as rank 0 did", self._number)
                os._exit(RankLost.exit_code)

    def _beat(self) -> None:
        """The beating thread."""
        with suppress(OSError):  # the listening thread knows
            while not self._ended.wait(BEAT_S):
                self._tell({"alive": True})

    def _take_orders(self) -> None:
        while True:
            order = self._line.channel.receive()
            for number in order["forget"]:
                self._groups.pop(number, None)
            if order["do"] == "read":
                self._readers.submit(self._read, order)
            else:
                self._orders.put(order)
            if order["do"] == "end":
                return

    def _answer(self, order: Order, answer: dict[str, Any]) -> None:
        self._tell({"number": order["number"], **answer})

    def _tell(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._line.channel.send(message)
