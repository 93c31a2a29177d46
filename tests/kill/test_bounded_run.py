"""A long run stays bounded: fifty small rounds, with kills of everything in between, counted twice at rest.

    20 rounds, kills ──> rest ──> count, audit, pin ──> 30 more, kills ──> rest ──> count, audit, unpin ──> rest

At rest means: started again with nothing left to train, so that the housekeeper alone has work.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.retention import Pins
from rolloutpipe_core.observe.audit import Audit, audit_run
from rolloutpipe_core.retention.pinning import pin_version
from rolloutpipe_core.retention.sweep import RIPE_S
from rolloutpipe_core.store.commits import Commit, CommitChain
from rolloutpipe_core.store.objects import ObjectStore

from .conductor import Conductor
from .deeds import Deed
from .evidence import read_evidence
from .history import check
from .plan import BASE
from .stage import BUCKET, Stage

RUN = "long"
HALF, WHOLE = 20, 50
R, K = 2, 2
KEEP_ROUNDS, KEEP_VERSIONS = 3, 2
PINNED = 19
KINDS = ("groups", "weights", "checkpoints")
# Redis keeps three more rounds than asked for, as a part of the archive has at least 40 events.
MOST_KEYS = 10 + (1 + R) * (KEEP_ROUNDS + 1 + 3)
MOST_EVENTS = 200
MOST_RESTS = 3
MOST_CACHED = 4  # two versions with their locks
CONFIG: dict[str, Any] = {
    **BASE,
    "run": RUN,
    "rollout_workers": 2,
    "schedule": {"kind": "stream", "contract": "strict", "groups_per_round": R, "samples_per_group": K}
    | {"update_batch_size": R * K},
    "sampling": {"max_new_tokens": 8},
    "retention": {
        "keep_rounds": KEEP_ROUNDS,
        "keep_versions": KEEP_VERSIONS,
        "orphan_age_s": 3,
        "grace_s": 1,
        "archive_events": 40,
    },
}
FIRST = (
    Deed("kill", "self", 0, "group/after", 9),  # an object that nobody announced
    Deed("kill", "self", 0, "weights-file/after", 12),
    Deed("kill", "self", 0, "retire/after", 4),
    Deed("kill", "self", 0, "deletion/before", 2),
    Deed("kill", "valkey", 0.2, "settle/before", 2),
    Deed("kill", "self", 0, "trim_ledger/before", 2),
    Deed("kill", "rollout", 0, at_s=2.0),
    Deed("kill", "s3", 0.2, at_s=4.0),
)
SECOND = (
    Deed("kill", "self", 0, "checkpoint-manifest/after", 5),
    Deed("kill", "self", 0, "commit/after", 8),
    Deed("kill", "self", 0, "settle/after", 2),
    Deed("kill", "self", 0, "deletion/after", 3),
    Deed("kill", "self", 0, "forget/after", 4),
    Deed("kill", "s3", 0.2, "retire/before", 6),
    Deed("replace", "trainer", 1.5, at_s=3.0),
    Deed("kill", "valkey", 0.2, at_s=5.0),
    Deed("kill", "rollout", 0, at_s=6.0),
)


@dataclass(frozen=True)
class Count:
    """What a run takes at rest."""

    objects: Counter[str]  # by folder
    bytes: int  # of groups, weights and checkpoints
    keys: int  # in Redis
    ledger: int  # events in Redis
    cached: int  # entries of the download cache, locks and leftovers included


@dataclass
class LongRun:
    stage: Stage
    folder: Path

    def __post_init__(self) -> None:
        self.store = ObjectStore(self.stage.s3, BUCKET)
        client = LedgerClient(self.stage.redis, RUN, 20)
        self.reader = LedgerReader(self.stage.redis, RUN, 20, lambda bucket: self.store)
        self.pins = Pins(client)
        self.chain = CommitChain(self.store, RUN)

    def play(self, rounds: int, deeds: Sequence[Deed] = ()) -> list[Deed]:
        """Run to so many rounds; returns the deeds that did not come about."""
        config = {**CONFIG, "schedule": {**CONFIG["schedule"], "rounds": rounds}}
        conductor = Conductor(self.stage, self.folder, config, deeds, deadline_s=400)
        (self.folder / "conductor.sock").unlink(missing_ok=True)
        return conductor.play().missed

    def play_to_rest(self, rounds: int, deeds: Sequence[Deed] = ()) -> list[Deed]:
        """As `play`, until only what must be there is left; returns the deeds that did not come about."""
        missed = self.play(rounds - 1, deeds)
        time.sleep(1.1)  # S3 tells whole seconds, and what is as young as the head's commit stays
        self.play(rounds)
        self.rest(rounds)
        return missed

    def rest(self, rounds: int) -> None:
        """Let the housekeeper finish: what is retired ripens, and the next start deletes it."""
        for _ in range(MOST_RESTS):
            time.sleep(RIPE_S)
            self.play(rounds)
            if not self.stage.redis.exists(f"rolloutpipe:{{{RUN}}}:retired"):
                return

    def count(self) -> Count:
        infos = list(self.store.list(f"runs/{RUN}/"))
        folders = [info.key.split("/")[2] for info in infos]
        keys = list(self.stage.redis.scan_iter(f"rolloutpipe:{{{RUN}}}:*"))
        cache = self.folder / ".rolloutpipe" / "cache"
        return Count(
            objects=Counter(folders),
            bytes=sum(info.bytes for info in infos if info.key.split("/")[2] in KINDS),
            keys=len(keys),
            ledger=self.stage.redis.xlen(f"rolloutpipe:{{{RUN}}}:ledger"),
            cached=len(list(cache.iterdir())),
        )

    def audit(self) -> Audit:
        """Audited, and checked by the checker that shares no code with the services."""
        assert check(read_evidence(self.stage.redis, self.stage.s3, BUCKET, RUN)) == []
        audit = audit_run(self.reader, self.store)
        assert audit.findings == []
        return audit

    def weights(self, version: int) -> str:
        link = self.chain.commit(version - 1)
        return f"runs/{RUN}/weights/{link.commit.weights_sha[:16]}/"

    def referenced(self) -> set[str]:
        """Folders of what must be there: groups of the rounds kept, weights and checkpoints of the versions kept."""
        commits = [link.commit for link in self.chain.read() if isinstance(link.commit, Commit)]
        newest = commits[-KEEP_VERSIONS:]
        groups = {f"runs/{RUN}/groups/r{commit.round:06d}/" for commit in commits[-KEEP_ROUNDS:]}
        weights = {self.weights(commit.version.number) for commit in newest}
        return groups | weights | {f"{commit.checkpoint.prefix}/" for commit in newest if commit.checkpoint}

    def folders(self) -> set[str]:
        keys = [info.key for kind in KINDS for info in self.store.list(f"runs/{RUN}/{kind}/")]
        return {key.rpartition("/")[0] + "/" for key in keys}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LongRun]:
    with Stage(tmp_path) as stage:
        folder = tmp_path / RUN
        folder.mkdir()
        yield LongRun(stage, folder)


def test_a_long_run_stays_bounded(run: LongRun) -> None:
    missed = run.play_to_rest(HALF, FIRST)
    at_half, audit = run.count(), run.audit()
    assert audit.commits == HALF + 1 and audit.rounds_by_object == [HALF - 3, HALF - 2, HALF - 1]
    assert run.folders() == run.referenced()

    pinned = run.weights(PINNED)
    pin_version(run.pins, run.store, RUN, PINNED, "evaluation", 3600)
    missed += run.play_to_rest(WHOLE, SECOND)
    at_end, audit = run.count(), run.audit()
    assert audit.commits == WHOLE + 1 and audit.rounds_by_object == [WHOLE - 3, WHOLE - 2, WHOLE - 1]
    assert run.folders() == run.referenced() | {pinned}
    assert len(missed) <= 4  # a fast machine is past some instants and passes

    assert at_end.objects.pop("commits") - at_half.objects.pop("commits") == WHOLE - HALF
    assert 0 < at_half.objects.pop("ledger") < at_end.objects.pop("ledger") < WHOLE
    pinned_files = len(list(run.store.list(pinned)))
    assert at_end.objects - at_half.objects == Counter(weights=pinned_files)
    assert at_end.bytes - at_half.bytes == pytest.approx(sum(info.bytes for info in run.store.list(pinned)), rel=0.05)
    for count in (at_half, at_end):  # without archive and retention the end would have 160 keys and 1500 events
        assert count.keys <= MOST_KEYS and count.ledger <= MOST_EVENTS and count.cached <= MOST_CACHED

    run.pins.pin(run.chain.commit(PINNED - 1).commit.version, "evaluation", 0.001)
    run.play(WHOLE)
    run.rest(WHOLE)
    assert run.folders() == run.referenced()
    run.audit()
