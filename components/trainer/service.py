"""The trainer service: consumes each round's groups, steps, and publishes the next version by a commit.

    take the role (fences predecessors) ──> reconcile Redis from the commit chain ──> load weights and optimizer
        └──> per round: RoundTraining (updates as groups arrive) ──> RoundCommitter (weights, commit, publish)
                                                                         └──> Housekeeper (in a thread of its own)

It waits for: the run's genesis (partner_s), groups (group_s), Redis and the store (their deadlines). A commit that
another trainer won, or a Redis that went back in time, makes it start over from the chain's head.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass

from rolloutpipe_core.clock import ServerClock
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import CommitLost, Damaged, Fenced, LedgerRefused, ObjectMissing, RolloutPipeError
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.trainer import Epoch, TrainerLedger
from rolloutpipe_core.preparation import check_belongs, check_not_ahead, missing_commits, register_run, store_config
from rolloutpipe_core.store.cache import FILL_DEADLINE_S
from rolloutpipe_core.store.commits import Commit, CommitChain, Link
from rolloutpipe_core.store.objects import ObjectStore

from .commit import RoundCommitter
from .intake import Intake, RoundFacts
from .rank import Ranks, Start
from .round import RoundTraining
from .stopwatch import Stopwatch
from .trainer import Trainer
from .upkeep import make_housekeeper

log = logging.getLogger("rolloutpipe.trainer")

MOST_RECOVERIES = 5
"""Starts over without a commit in between, after which the cause is reported instead."""

READ_AHEAD = 32
"""Groups held in memory ahead of training, unless two updates are more: 32 of 16 x 32k tokens are 200 MB."""

LAST_HOUSEKEEPING_S = 30.0
"""Given to the housekeeper at the run's end; the next start goes on with what is left."""


@dataclass(frozen=True, slots=True)
class TrainerParts:
    """What the service is made of."""

    config: RunConfig
    client: LedgerClient
    reader: LedgerReader
    store: ObjectStore
    chain: CommitChain
    ranks: Ranks
    beacon: Beacon


class TrainerService:
    """The one trainer of a run; a later incarnation fences this one off."""

    def __init__(self, parts: TrainerParts) -> None:
        self.parts = parts
        self._epoch: Epoch | None = None
        self._recoveries = 0

    def run(self) -> None:
        """Train until the run has all its versions. Raises what ended it otherwise."""
        while True:
            try:
                self._incarnation()
                return
            except (CommitLost, Damaged, Fenced, LedgerRefused, ObjectMissing) as error:  # missing: the head moved on
                self._check_not_replaced(error)
                self._start_over(error)

    def _incarnation(self) -> None:
        """Take over at the chain's head, and train from there to the end."""
        parts, config = self.parts, self.parts.config
        head = self._head()
        store_config(config, parts.store)  # names the keys when it is another run's
        check_belongs(config, head)
        register_run(parts.client, head, "trainer")
        check_not_ahead(parts.reader, parts.chain)
        ledger = self._take_role(head)
        committer = RoundCommitter(config.run, config.schedule, parts.store, parts.chain, parts.reader, ledger)
        for link in missing_commits(parts.chain, parts.reader, head):
            committer.publish(link)
        trainer, vocabulary = self._load(head)
        stopwatch = Stopwatch(ServerClock(parts.client.server_time_ms))
        keeper = make_housekeeper(config, ledger, parts.reader, parts.store, parts.chain)
        with self._intake(ledger) as intake, keeper:
            keeper.nudge()  # a predecessor may have died over it, and a Redis that lost its state lacks the history
            while head.next_round < config.schedule.rounds:
                facts = self._facts(head, vocabulary)
                training = RoundTraining(
                    config, facts, trainer, ledger, parts.reader, parts.ranks.read, intake, parts.beacon, stopwatch
                )
                updates = training.run()
                ledger.trained(facts.round, len(updates))
                parts.beacon.doing(f"publishing version {facts.round + 1}")
                head = committer.commit(head, trainer, updates)
                keeper.nudge()
                self._recoveries = 0
                log.info("version %d is out after %d updates", head.commit.version.number, len(updates))
            parts.beacon.doing("the last housekeeping")
            keeper.finish(LAST_HOUSEKEEPING_S)

    def _head(self) -> Link:
        """The chain's head; waits for the rollout side to prepare a new run."""
        with self.parts.beacon.waiting("the run's genesis commit", self.parts.config.deadlines.partner_s) as wait:
            while (head := self.parts.chain.head()) is None:
                wait.check("rollout has not prepared the run")
                time.sleep(0.2)
        return head

    def _take_role(self, head: Link) -> TrainerLedger:
        """Fence off every predecessor; numbers start above both Redis's and the chain's."""
        floor = head.commit.trainer_epoch.number if isinstance(head.commit, Commit) else 0
        owner = f"{socket.gethostname()}:{os.getpid()}"
        ledger = TrainerLedger.take_role(self.parts.client, owner, floor)
        self._epoch = ledger.epoch
        self.parts.beacon.carry(ledger.epoch.number, ledger.epoch.nonce)
        return ledger

    def _intake(self, ledger: TrainerLedger) -> Intake:
        """It reads ahead far enough for the update in progress and the next one."""
        schedule = self.parts.config.schedule
        ahead = max(READ_AHEAD, 2 * schedule.groups_per_update)
        by_index = schedule.kind == "serial" or schedule.order == "submission"
        return Intake(ledger, self.parts.ranks.read, self.parts.config.leases.max_rejections, ahead, by_index)

    def _facts(self, head: Link, vocabulary: int) -> RoundFacts:
        return RoundFacts(
            run=self.parts.config.run,
            lineage=head.commit.lineage,
            round=head.next_round,
            version=head.commit.version,
            samples_per_group=self.parts.config.schedule.samples_per_group,
            vocabulary=vocabulary,
        )

    def _load(self, head: Link) -> tuple[Trainer, int]:
        """The trainer as it was at the head, and the size of its vocabulary."""
        parts, commit = self.parts, head.commit
        parts.beacon.doing(f"loading {commit.version}")
        with_reference = parts.config.loss.kl_coefficient > 0
        start = Start(
            weights=commit.weights_sha,
            reference=parts.chain.genesis().commit.weights_sha if with_reference else None,
            checkpoint=commit.checkpoint if isinstance(commit, Commit) else None,
        )
        with parts.beacon.waiting(f"weights {commit.version}", FILL_DEADLINE_S):
            return parts.ranks.start(start)

    def _check_not_replaced(self, error: RolloutPipeError) -> None:
        """Raise Fenced when another trainer has the role: who stood still meanwhile may not take it back.

        It is still ours, or ours again for the taking, when Redis lost our epoch: it then holds a smaller one.
        """
        if self._epoch is None:
            return
        state = self.parts.reader.run_state()
        held = Epoch(int(state.get("trainer_epoch", 0)), state.get("trainer_nonce", ""))
        if held != self._epoch and held.number >= self._epoch.number:
            raise Fenced(
                f"another trainer took over run {self.parts.config.run}",
                given=f"it runs as {state['trainer_owner']} (host:pid); ours was epoch {self._epoch.number}",
                remedy="leave the run to it, or stop it and start this one again",
            ) from error

    def _start_over(self, error: RolloutPipeError) -> None:
        self._recoveries += 1
        if self._recoveries > MOST_RECOVERIES:
            raise error
        log.warning("starting over from the last commit: %s", error)
