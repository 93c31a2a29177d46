"""A round's end, in the order that a crash at any point leaves mendable:

last step ──> weights, checkpoint ──> commit (create-if-absent) ──> registry, groups trained, entries acknowledged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import ENDED_STATES, GroupRef, group_id
from rolloutpipe_core.errors import LedgerRefused, RunStopped
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.scratch import scratch_folder
from rolloutpipe_core.store import commits
from rolloutpipe_core.store.checkpoints import upload_checkpoint
from rolloutpipe_core.store.commits import Checkpoint, Commit, CommitChain, EndedGroup, Link
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import publish_weights, weights_prefix

from .round import TrainedUpdate
from .trainer import Trainer


@dataclass(frozen=True, slots=True)
class RoundCommitter:
    """Commits and publishes rounds for one trainer incarnation."""

    run: str
    schedule: ScheduleConfig
    store: ObjectStore
    chain: CommitChain
    reader: LedgerReader
    ledger: TrainerLedger

    def commit(self, head: Link, trainer: Trainer, updates: Sequence[TrainedUpdate]) -> Link:
        """Make round `head.next_round` part of the chain, and publish its version.

        Raises CommitLost when another trainer's commit won, RunStopped when too many groups ended unused, LedgerRefused
        when Redis no longer tells of just the groups that were trained and ended.
        """
        round = head.next_round
        opened = self.reader.round_state(round)
        ended = [row for row in self.reader.groups(round) if row["state"] in ENDED_STATES]
        groups = int(opened.get("groups", 0))
        _check_whole(round, groups, updates, ended)
        self._check_usable(round, groups, ended)
        weights_sha, checkpoint = self._upload(head, trainer) if updates else _unchanged(head)
        epoch = self.ledger.epoch
        commit = Commit(
            run=self.run,
            lineage=head.commit.lineage,
            weights_sha=weights_sha,
            data_fingerprint=head.commit.data_fingerprint,
            config_sha=head.commit.config_sha,
            previous=head.as_previous,
            trainer_epoch=commits.TrainerEpoch(number=epoch.number, nonce=epoch.nonce),
            round=round,
            updates=tuple(_update_record(update) for update in updates),
            ended=tuple(_ended_record(row) for row in ended),
            cohort_sha=opened["cohort_sha"],
            cursor=int(opened["cursor_end"]),
            checkpoint=checkpoint,
        )
        link = self.chain.append(commit)
        self.publish(link)
        return link

    def publish(self, link: Link) -> None:
        """Tell Redis of a commit that stands in the chain."""
        self.ledger.publish(link, weights_prefix(self.run, link.commit.weights_sha))

    def _upload(self, head: Link, trainer: Trainer) -> tuple[str, Checkpoint]:
        attempt = f"r{head.next_round:06d}-e{self.ledger.epoch.number}-{self.ledger.epoch.nonce}"
        with scratch_folder() as folder:
            weights, state = folder / "weights", folder / "state"
            weights.mkdir()
            state.mkdir()
            trainer.export_weights(weights)
            trainer.save(state)
            weights_sha = publish_weights(self.store, self.run, weights).manifest_sha
            return weights_sha, upload_checkpoint(self.store, self.run, attempt, state)

    def _check_usable(self, round: int, groups: int, ended: Sequence[dict[str, str]]) -> None:
        """Too many groups ended unused: stop the run with its reasons instead of publishing.

        Each of the `groups` beyond the first R has replaced one of them.
        """
        schedule = self.schedule
        unusable = len(ended) - (groups - schedule.groups_per_round)
        if unusable <= schedule.max_unusable_fraction * schedule.groups_per_round:
            return
        reasons = "; ".join(sorted({f"{row['state']}: {row['reason']}" for row in ended}))
        what = f"round {round}: {unusable} of {schedule.groups_per_round} groups ended unused"
        self.ledger.stop(f"{what} ({reasons})")
        raise RunStopped(
            what,
            given=reasons,
            expected=f"at most the share schedule.max_unusable_fraction = {schedule.max_unusable_fraction:g}",
            remedy="mend the causes, or raise the share",
        )


def _check_whole(round: int, groups: int, updates: Sequence[TrainedUpdate], ended: Sequence[dict[str, str]]) -> None:
    """A Redis that went back in time since the last step may tell of fewer groups, or of other ends."""
    found = [ref.group for update in updates for ref in update.members] + [row["id"] for row in ended]
    if sorted(found) != sorted(group_id(round, index) for index in range(groups)):
        raise LedgerRefused(
            f"Redis went back in time before round {round} was committed",
            given=f"trained or ended are {', '.join(sorted(found)) or 'none'}",
            expected=f"all {groups} groups that it tells of, once each",
        )


def _unchanged(head: Link) -> tuple[str, Checkpoint | None]:
    """A round without updates publishes the same weights under the next number."""
    before = head.commit
    return before.weights_sha, before.checkpoint if isinstance(before, Commit) else None


def _update_record(update: TrainedUpdate) -> commits.TrainedUpdate:
    return commits.TrainedUpdate(
        index=update.index,
        samples=sum(ref.samples for ref in update.members),
        tokens=sum(ref.tokens for ref in update.members),
        groups=tuple(_group_record(ref) for ref in update.members),
    )


def _ended_record(row: dict[str, str]) -> EndedGroup:
    return EndedGroup.model_validate({"group": row["id"], "state": row["state"], "reason": row["reason"]})


def _group_record(ref: GroupRef) -> commits.TrainedGroup:
    return commits.TrainedGroup(
        group=ref.group,
        attempt=ref.attempt,
        object=ref.object,
        sha256=ref.sha256,
        samples=ref.samples,
        tokens=ref.tokens,
    )
