"""One server as the engine sees it: in service or out, with what it holds and what it has in flight."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

from rolloutpipe_core.errors import EngineFailure, RolloutPipeError

from .answers import Generated, ServerInfo
from .client import SglangClient
from .deadlines import Deadlines
from .failures import Broken, Ended, Lost, Refused, Unreachable, WrongVersion
from .process import LaunchedServer
from .weights import Weights

log = logging.getLogger("rolloutpipe.sglang")

READY_POLL_S = 0.25

Waiting = Callable[[str, float], AbstractContextManager[object]]
"""Shows a wait, with its deadline in seconds, while the block runs: `Beacon.waiting`."""
Note = Callable[[str, str], None]
"""Takes what a server did, by its name, for the history: `RolloutLedger.note`."""


class Replica:
    """State of one server. `serving` is what admission asks; everything that a server says arrives here."""

    def __init__(
        self,
        name: str,
        deadlines: Deadlines,
        waiting: Waiting,
        note: Note,
        url: str | None,
        server: LaunchedServer | None,
    ) -> None:
        """Either the URL of a server that runs, or one that we start."""
        self.name = name
        self.deadlines = deadlines
        self.server = server
        self.client = SglangClient(url) if url else None
        self.info = ServerInfo()
        self.held: Weights | None = None  # confirmed by the server, and changed by nobody since
        self.tried = False  # whether a hand-off was ever attempted
        self.serving = False
        self.reason = "it has no weights yet"
        self.in_flight = 0
        self.fence = 0  # how often its weights may have changed: the same before and after means the same weights
        self.changed = asyncio.Event()  # somebody should look at it now
        self.changing = asyncio.Lock()  # held while its weights change
        self.hung = False  # it may still work on samples that we gave up
        self._quiet_since_s = 0.0
        self._pulse: tuple[float, ...] = ()
        self._requests: set[asyncio.Task[Generated]] = set()
        self._waiting = waiting
        self._note = note
        self._noted_out = False
        self._shown = ExitStack()

    def __str__(self) -> str:
        state = "serving" if self.serving else f"out: {self.reason}"
        return f"{self.name} ({self.in_flight} in flight) {state}"

    @property
    def http(self) -> SglangClient:
        """The client. Raises Unreachable while there is no server to talk to."""
        if self.client is None:
            raise Unreachable(f"{self.name} does not run")
        return self.client

    def note(self, what: str) -> None:
        """Tell the history. The engine goes on without, too."""
        try:
            self._note(self.name, what)
        except RolloutPipeError as error:
            log.warning("not in the ledger: %s: %s: %s", self.name, what, error)

    def take_in(self) -> None:
        if self.in_flight == 0:
            self._quiet_since_s = time.monotonic()
        self.in_flight += 1

    def release(self) -> None:
        self.in_flight -= 1

    @property
    def stalled_s(self) -> float:
        """Seconds for which it has had samples in flight, answered none, and told no new load."""
        return time.monotonic() - self._quiet_since_s if self.in_flight else 0.0

    async def feel_pulse(self) -> None:
        """See whether its schedulers work. A server that does not tell is known by its answers alone."""
        try:
            pulse = await self.http.pulse(self.deadlines.silent_s)
        except Refused:
            return
        if pulse != self._pulse:
            self._pulse, self._quiet_since_s = pulse, time.monotonic()

    def out(self, reason: str) -> None:
        """Take it out of service; samples in flight go on, and end as they may."""
        self.changed.set()
        self.fence += 1
        if self.serving or reason != self.reason:
            log.warning("%s is out: %s", self.name, reason)
            self.note(f"out of service: {reason}")
            self._noted_out = True
            self._shown.close()
            self._shown.enter_context(self._waiting(f"{self.name} to serve again: {reason}", self.deadlines.answer_s))
        self.serving, self.reason = False, reason

    def give_up(self, reason: str) -> None:
        """Take it out of service, and its samples with it: they end as Lost."""
        self.hung = self.hung or bool(self._requests)
        self.out(reason)
        for request in self._requests:
            request.cancel()

    def back(self) -> None:
        """It serves `held`."""
        if not self.serving:
            log.info("%s serves %s", self.name, self.held and self.held.version)
        if self._noted_out:
            self.note(f"serves {self.held and self.held.version} again")
            self._noted_out = False
        self.serving, self.reason = True, ""
        self._shown.close()

    async def ask(self, body: Mapping[str, Any]) -> Generated:
        """One sample. Cancelling the call ends it at the server, too. Raises Lost, Unreachable, Refused or Unusable."""
        request = asyncio.ensure_future(self.http.generate(body))
        self._requests.add(request)
        try:
            answer = await request
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the caller wants no answer any more
                await self._abort(str(body["rid"]))
                raise
            raise Lost(f"{self.name} went out of service", given=self.reason) from None
        finally:
            self._requests.discard(request)
        self._quiet_since_s = time.monotonic()
        return answer

    async def _abort(self, rid: str) -> None:
        """Free what a request holds at the server, which would notice only after seconds that we hung up."""
        with suppress(EngineFailure):  # one that does not answer has a keeper to see to it
            await self.http.abort(rid, self.deadlines.abort_s)

    async def start(self, weights: Weights) -> None:
        """Start our server with these weights, and wait for its first answer.

        Raises Ended or Unreachable when none comes, BadInput when there is no such interpreter.
        """
        if self.server is None:
            raise Unreachable(f"{self.name} does not run")
        await self.close_client()
        self.held = None
        if self.server.pid is not None:
            log.warning("%s is started again: %s", self.name, self.server.state)
            self.note(f"is started again: {self.server.state}")
        client = SglangClient(await self.server.start(weights))
        self.reason = f"{weights.version} is being loaded: it starts; its log is {self.server.log}"
        log.info("%s starts at %s; its log is %s", self.name, client.url, self.server.log)
        try:
            async with asyncio.timeout(self.deadlines.start_s):
                while not await _answers(client):
                    if not self.server.running:
                        raise Ended(f"{self.name} ended at its start", given=self.server.state)
                    await asyncio.sleep(READY_POLL_S)
        except BaseException as error:
            await client.close()
            if isinstance(error, TimeoutError):
                expected = f"an answer within engine.launch.start_s = {self.deadlines.start_s:g} s"
                given = self.server.state
                await self.server.stop(0)
                raise Unreachable(f"{self.name} does not start", expected=expected, given=given) from None
            raise
        self.client, self.hung = client, False

    async def confirm(self, weights: Weights) -> None:
        """Raises WrongVersion unless the server says that it holds these weights."""
        told = (await self.http.model_info(self.deadlines.step_s)).weight_version
        if told != weights.tag:
            raise WrongVersion(f"{self.name} holds other weights", given=str(told), expected=weights.tag)

    async def checksums(self) -> tuple[str, ...] | None:
        """Of the weights in its memory, rank by rank; None where the server offers none. Raises EngineFailure."""
        try:
            return await self.http.checksums(self.deadlines.step_s)
        except Broken:
            raise
        except Refused as error:
            log.debug("%s offers no checksums of its weights: %s", self.name, error)
            return None

    async def close_client(self) -> None:
        if self.client is not None:
            await self.client.close()
        self.client = None

    async def close(self) -> None:
        """Drop what is in flight, and end the server if it is ours."""
        self._shown.close()
        self.serving, self.reason = False, "the engine is closed"
        for request in self._requests:
            request.cancel()
        if self.server is not None:
            await self.server.stop(self.deadlines.stop_s)
        await self.close_client()


async def _answers(client: SglangClient) -> bool:
    try:
        await client.model_info(READY_POLL_S * 20)
    except (Unreachable, Refused):
        return False
    return True
