"""The rollout service: samples each round's groups with that round's weights, and announces them one by one.

    registry ──version r──> load ──> open round r ──┐
                                                    v
    ledger: deferred ──admit (FGD)──> engine ──K responses──> serving-complete (the slot frees here)
                                                    │ verifier, advantages
                                                    v
                             materialized ──Arrow──> S3 ──then──> FIFO: queued (CGP)

It waits for: the next version (deadline publish_s), an engine answer (engine_s), Redis and the store (their deadlines).
Within a round it never waits for the trainer. Several workers may serve one run: leases divide the groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.data.prompts import PromptSet, cohort, cohort_sha, order
from rolloutpipe_core.domain import Prompt, RoundState, WeightVersion, group_id
from rolloutpipe_core.errors import (
    EngineFailure,
    Fenced,
    LedgerRefused,
    ObjectMissing,
    RedisUnavailable,
    RolloutPipeError,
    RunStopped,
    VerifierFailure,
)
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, Lease, RolloutLedger, RoundView
from rolloutpipe_core.schedule import AdmissionPolicy, admissible
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import fetch_weights

from .engine import Engine
from .group import GroupServer, RoundWork, within
from .leases import LeaseKeeper

log = logging.getLogger("rolloutpipe.rollout")

POLL_S = 0.05
"""How often a worker looks for what others did: groups given back, rounds reopened."""
IN_THE_TRAINER = (RoundState.DRAINED, RoundState.TRAINED)


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """What the service is made of."""

    config: RunConfig
    ledger: RolloutLedger
    reader: LedgerReader
    store: ObjectStore
    engine: Engine
    groups: GroupServer
    prompts: PromptSet
    beacon: Beacon
    cache: DirectoryCache
    restore: Callable[[], None]  # puts the run into a Redis that has lost it


class RolloutService:
    """One rollout worker. Used once."""

    def __init__(self, parts: RolloutParts) -> None:
        self.parts = parts
        self.schedule = parts.config.schedule
        self.policy = AdmissionPolicy.of(parts.config.schedule, parts.config.rollout_workers)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._reaped_s = 0.0

    async def run(self) -> None:
        """Serve rounds until the run has all its versions. Raises what ended it otherwise."""
        loop = asyncio.get_running_loop()

        def lost(lease: Lease) -> None:
            loop.call_soon_threadsafe(self._cancel, lease)

        with LeaseKeeper(self.parts.ledger, self.parts.config.leases.lease_s, lost) as self._leases:
            reason = "the worker stopped"
            try:
                served = None
                while (version := await self._next_version(served)) is not None:
                    loaded = await self._load(version)
                    served = version if loaded and await self._serve_round(version) else None
            except RolloutPipeError as error:
                reason = f"the worker ended: {error}"
                raise
            finally:
                await self._leave(reason)

    async def _next_version(self, served: WeightVersion | None) -> WeightVersion | None:
        """The version to sample with next; None when the run is complete."""
        what = f"version {served.number + 1} in the registry" if served else "a version in the registry"
        with self.parts.beacon.waiting(what, self.parts.config.deadlines.publish_s) as wait:
            while True:
                self._check_active()
                found = self.parts.reader.latest_version()
                if found is None:
                    log.warning("Redis lost the run: restoring it")
                    self.parts.restore()
                elif found[0] != served:
                    return None if found[0].number >= self.schedule.rounds else found[0]
                wait.check(self._trainer_seen())
                entry = found[1] if found else "0-0"
                await asyncio.to_thread(self.parts.reader.wait_for_version, entry, 500)

    async def _load(self, version: WeightVersion) -> bool:
        """Load the version; False when the run has moved on and its weights are deleted already."""
        parts = self.parts
        parts.beacon.doing(f"loading {version}")
        with parts.beacon.waiting(f"weights {version}", parts.config.deadlines.engine_s):
            try:
                folder = await asyncio.to_thread(fetch_weights, parts.store, parts.config.run, version.sha, parts.cache)
            except ObjectMissing:
                latest = parts.reader.latest_version()
                if latest is None or latest[0] == version:
                    raise
                log.info("the weights of %s are deleted, the run is at %s", version, latest[0])
                return False
            load = parts.engine.load(version, folder)
            await within(parts.config.deadlines.engine_s, load, f"the engine to load {version}")
        return True

    def _opened(self, version: WeightVersion) -> RoundWork | None:
        """The version's round, opened by us or another; None when the run is at another version.

        Round r samples with version r; its prompts come from the seeded order, behind those of the rounds before.
        """
        run = self._run_at(version)
        if run is None:
            return None
        config, data, round = self.parts.config, self.parts.prompts, version.number
        size, cursor = self.schedule.groups_per_round, int(run["cursor"])
        ids = tuple(data[row].id for row in cohort(config.seed, len(data), cursor, size))
        opened = Cohort(
            round=round,
            lineage=int(run["lineage"]),
            version=version,
            groups=tuple(group_id(round, index) for index in range(size)),
            prompts=ids,
            cohort_sha=cohort_sha(ids),
            data_fingerprint=data.fingerprint,
            cursor=cursor,
            cursor_end=cursor + size,
        )
        try:
            self.parts.ledger.open_round(opened, self.schedule)
        except LedgerRefused:
            if self._run_at(version) is None:
                return None  # it went on since we looked
            raise

        def prompt(index: int) -> Prompt:
            return data[order(config.seed, len(data), cursor + index)]

        return RoundWork(opened, prompt)

    def _run_at(self, version: WeightVersion) -> dict[str, str] | None:
        """The run's hash while the run is at this version, else None. Raises RunStopped."""
        run = self._check_active()
        if (run.get("version"), run.get("version_sha")) == (str(version.number), version.sha):
            return run
        log.info("the run is at version %s, no longer at %s", run.get("version"), version)
        return None

    async def _serve_round(self, version: WeightVersion) -> bool:
        """Admit, serve and announce until the version has a successor; False when the run is at another already."""
        round, work = version.number, self._opened(version)
        self.parts.beacon.doing(f"generating round {round} with {version}")
        while work is not None and (view := self.parts.ledger.view(round)).state != RoundState.PUBLISHED:
            if view.state == "":
                log.warning("Redis lost round %d: opening it again", round)
                self.parts.restore()
                work = self._opened(version)
            elif view.state in IN_THE_TRAINER and not self._serving:
                await self._trained_or_reopened(round)
            else:
                self._reap(round)
                for group in self._admissible(view):
                    self._start(work, group)
                await self._progress()
        await self._abandon()  # attempts that lost their lease: nothing may be in flight when weights change
        return work is not None

    def _admissible(self, view: RoundView) -> list[str]:
        return admissible(
            view.open,
            view.deferred - self._serving.keys(),
            self.policy,
            held=len(self._serving.keys() & set(view.open)),
            spare_slots=self.parts.engine.spare_slots(),
            samples_per_group=self.schedule.samples_per_group,
        )

    def _start(self, work: RoundWork, group: str) -> None:
        try:
            lease = self.parts.ledger.admit(group, self.policy.hard_width)
        except LedgerRefused:
            return  # another worker was faster
        self._leases.hold(work.cohort.round, lease)
        self._serving[group] = asyncio.create_task(self._attempt(work, lease), name=group)

    async def _attempt(self, work: RoundWork, lease: Lease) -> None:
        """One attempt of one group. What it raises ends the worker, which then hands the group back."""
        try:
            await self._serve_or_give_up(work, lease)
        except (Fenced, LedgerRefused) as error:
            log.warning("%s: attempt %d lost its lease: %s", lease.group, lease.attempt, error)
        finally:
            self._wake.set()
        self._leases.drop(lease)

    async def _serve_or_give_up(self, work: RoundWork, lease: Lease) -> None:
        """What failed for the infrastructure's sake is tried again, or ends the group."""
        try:
            await self.parts.groups.serve(work, lease, self._wake.set)
        except (EngineFailure, VerifierFailure) as error:
            outcome = self.parts.ledger.give_up(lease, str(error))
            log.warning("%s: attempt %d failed, the group is %s: %s", lease.group, lease.attempt, outcome, error)

    async def _progress(self) -> None:
        """Wait until a group moved on or others may have done something; surface a group's fatal error."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):  # wait_for of Python 3.11 can swallow a cancellation
                await self._wake.wait()
        self._wake.clear()
        for group in [group for group, task in self._serving.items() if task.done()]:
            task = self._serving.pop(group)
            if not task.cancelled():
                task.result()

    async def _trained_or_reopened(self, round: int) -> None:
        """All is handed over: wait until the next version is out, or until a rejection reopens the round."""
        what = f"version {round + 1}: the trainer has all of round {round}"
        with self.parts.beacon.waiting(what, self.parts.config.deadlines.publish_s) as wait:
            while self.parts.ledger.view(round).state in IN_THE_TRAINER:
                self._check_active()
                wait.check(self._trainer_seen())
                found = self.parts.reader.latest_version()
                entry = found[1] if found else "0-0"
                await asyncio.to_thread(self.parts.reader.wait_for_version, entry, 200)

    def _reap(self, round: int) -> None:
        """Now and then, take back leases that ran out, of whichever worker."""
        if time.monotonic() - self._reaped_s > self.parts.config.leases.lease_s / 4:
            self._reaped_s = time.monotonic()
            for group, after in self.parts.ledger.reap(round, own=self._serving):
                log.warning("%s: a lease ran out, the group is %s", group, after)

    def _cancel(self, lease: Lease) -> None:
        """The lease is lost; a later attempt of its group, which we may have begun meanwhile, goes on."""
        task = self._serving.get(lease.group)
        if task and lease in self._leases.held:
            self._leases.drop(lease)
            task.cancel()

    def _check_active(self) -> dict[str, str]:
        """The run's hash. Raises RunStopped."""
        state = self.parts.reader.run_state()
        if state.get("state") == "stopped":
            raise RunStopped(f"run {self.parts.config.run} was stopped", given=state.get("stop_reason", ""))
        return state

    def _trainer_seen(self) -> str:
        rows = [row for row in self.parts.reader.services() if row.get("role") == "trainer"]
        told = [f"{row['name']} is {row['doing']}, waits for {row['waiting_for'] or 'nothing'}" for row in rows]
        return "; ".join(told) or "no trainer is alive"

    async def _abandon(self) -> None:
        for task in self._serving.values():
            task.cancel()
        await asyncio.gather(*self._serving.values(), return_exceptions=True)
        self._serving.clear()

    async def _leave(self, reason: str) -> None:
        """In good order: others may take our groups at once instead of after the lease."""
        held = self._leases.held
        await self._abandon()
        for lease in held:
            try:
                self.parts.ledger.hand_back(lease, reason)
            except RedisUnavailable as error:
                log.warning("groups are not handed back, their leases run out: %s", error)
                return  # one deadline is long enough
            except RolloutPipeError as error:
                log.warning("%s: not handed back: %s", lease.group, error)
