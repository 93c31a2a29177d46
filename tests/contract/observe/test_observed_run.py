"""A short run through the real ledger and the real store, looked at with everything that looks."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rolloutpipe_core.config.models import ModelConfig, RunConfig, ScheduleConfig
from rolloutpipe_core.domain import FinishReason, Group, Sample, VersionSpan, group_id
from rolloutpipe_core.ledger.beacon import Beacon
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, RolloutLedger
from rolloutpipe_core.ledger.trainer import TrainerLedger
from rolloutpipe_core.observe.audit import audit_run
from rolloutpipe_core.observe.live import watch
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.report import build_report, report_json
from rolloutpipe_core.observe.status import read_status
from rolloutpipe_core.observe.timeline import Timelines
from rolloutpipe_core.observe.why import group_history
from rolloutpipe_core.preparation import prepare_run, register_run
from rolloutpipe_core.store.commits import Commit, CommitChain, EndedGroup, TrainedGroup, TrainedUpdate, TrainerEpoch
from rolloutpipe_core.store.groups import encode_group, reference_of
from rolloutpipe_core.store.weights import publish_weights, weights_prefix

ROUNDS, GROUPS, SAMPLES = 2, 3, 2


class TinyRun:
    """Both services' calls, one after the other: groups 0 and 1 make one update, group 2 is filtered."""

    def __init__(self, name, redis_client, store, folder: Path) -> None:
        self.name, self.store, self.folder = name, store, folder
        sizes = {"groups_per_round": GROUPS, "samples_per_group": SAMPLES, "update_batch_size": 2 * SAMPLES}
        schedule = ScheduleConfig(kind="cgp", rounds=ROUNDS, **sizes)
        self.config = RunConfig(run=name, model=ModelConfig(path="builtin:pointer-walk"), schedule=schedule)
        self.client = LedgerClient(redis_client, name, 10)
        self.reader = LedgerReader(redis_client, name)
        self.rollout = RolloutLedger(self.client, "worker-a", 10, 4)
        self.head = prepare_run(self.config, self._weights(0), "d" * 64, store)
        register_run(self.client, self.head, "rollout")
        self.trainer = TrainerLedger.take_role(self.client, "box:7", 0)

    def round(self) -> None:
        round, version = self.head.next_round, self.head.commit.version
        ids = [group_id(round, index) for index in range(GROUPS)]
        cohort = Cohort(round, 1, version, tuple(ids), ("p0", "p1", "p2"), "c" * 64, "d" * 64, round * 3, round * 3 + 3)
        self.rollout.open_round(cohort, self.config.schedule)
        lost = self.rollout.admit(ids[0])
        self.rollout.give_up(lost, "the engine broke")
        refs = [self._serve(round, index) for index in range(2)]
        lease = self.rollout.admit(ids[2])
        self.rollout.serving_complete(lease)
        self.rollout.materialized(lease)
        self.rollout.filtered(lease, "zero variance", {"reward_mean": 1.0, "reward_std": 0, "response_tokens": 6})
        self.trainer.read("0-0")
        for place, ref in enumerate(refs):
            self.trainer.assign(ref, 0, place)
        now = self.client.server_time_ms()
        tokens = sum(ref.tokens for ref in refs)
        self.trainer.seal(round, 0, 2, 2 * SAMPLES, tokens)
        self.trainer.stepped(round, 0, False, False, [(now, now + 1)], 0, {"mismatch_kl": 1e-6})
        self.trainer.trained(round, 1)
        self._commit(round, refs, tokens)

    def _serve(self, round: int, index: int):
        lease = self.rollout.admit(group_id(round, index))
        self.rollout.serving_complete(lease)
        version = self.head.commit.version
        samples = tuple(
            Sample(
                index=i,
                prompt_ids=np.array([1, 2], np.int32),
                response_ids=np.array([3, 4, 5], np.int32),
                behavior_logprobs=np.full(3, -0.5, np.float32),
                loss_mask=np.ones(3, np.uint8),
                reward=float(i),
                advantage=0.0,
                finish_reason=FinishReason.STOP,
                spans=(VersionSpan(version, 0, 3),),
            )
            for i in range(SAMPLES)
        )
        group = Group(self.name, 1, round, index, lease.attempt, version, f"p{index}", samples)
        data = encode_group(group)
        ref = reference_of(group, data)
        self.rollout.materialized(lease)
        self.store.put(ref.object, data)
        self.rollout.announce(lease, ref, 6, 3)
        return ref

    def _commit(self, round: int, refs, tokens: int) -> None:
        weights = publish_weights(self.store, self.name, self._weights(round + 1))
        groups = tuple(
            TrainedGroup(
                group=r.group, attempt=r.attempt, object=r.object, sha256=r.sha256, samples=r.samples, tokens=r.tokens
            )
            for r in refs
        )
        commit = Commit(
            run=self.name,
            lineage=1,
            weights_sha=weights.manifest_sha,
            data_fingerprint="d" * 64,
            config_sha=self.head.commit.config_sha,
            previous=self.head.as_previous,
            trainer_epoch=TrainerEpoch(number=self.trainer.epoch.number, nonce=self.trainer.epoch.nonce),
            round=round,
            updates=(TrainedUpdate(index=0, samples=2 * SAMPLES, tokens=tokens, groups=groups),),
            ended=(EndedGroup(group=group_id(round, 2), state="filtered", reason="zero variance"),),
            cohort_sha="c" * 64,
            cursor=round * 3 + 3,
            checkpoint=None,
        )
        self.head = CommitChain(self.store, self.name).append(commit)
        self.trainer.publish(self.head, weights_prefix(self.name, weights.manifest_sha))

    def _weights(self, version: int) -> Path:
        folder = self.folder / f"v{version}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes([version]))
        return folder


@pytest.fixture
def tiny(run_name, redis_client, object_store, tmp_path) -> TinyRun:
    run = TinyRun(run_name, redis_client, object_store, tmp_path)
    for _ in range(ROUNDS):
        run.round()
    return run


def test_the_events_of_a_round_are_those_of_the_whole_history(tiny):
    whole = list(tiny.reader.events())
    for rounds in ({0}, {1}, {0, 1}):
        assert list(tiny.reader.events(rounds=rounds)) == [e for e in whole if getattr(e, "round", None) in rounds]


def test_a_round_whose_objects_are_all_gone_is_told_as_missing_each_by_each(tiny):
    lost = [group.object for group in tiny.head.commit.groups]
    for key in lost:
        tiny.store.delete(key)
    audit = audit_run(tiny.reader, tiny.store)
    assert [(finding.check, finding.where) for finding in audit.findings] == [("object-missing", key) for key in lost]
    assert audit.rounds_by_hash == [1]


def test_the_audit_passes(tiny):
    audit = audit_run(tiny.reader, tiny.store)
    assert [str(finding) for finding in audit.findings] == []
    assert (audit.commits, audit.groups_trained, audit.groups_ended) == (3, 4, 2)
    assert (audit.rounds_by_object, audit.rounds_in_ledger, audit.groups_mended) == ([0, 1], 2, 0)


def test_the_audit_finds_an_object_that_was_deleted_and_one_that_was_altered(tiny):
    keys = [group.object for group in tiny.head.commit.groups]
    tiny.store.delete(keys[0])
    tiny.store.put(keys[1], b"other")
    audit = audit_run(tiny.reader, tiny.store)
    assert sorted(finding.check for finding in audit.findings) == ["object-hash", "object-missing"]


def test_numbers_of_each_round(tiny):
    first, second = all_round_metrics(Timelines(tiny.reader.events()).rounds())
    for metrics in (first, second):
        assert metrics.state == "published"
        assert metrics.reward_mean == pytest.approx(2 / 3)  # 0.5, 0.5 and the filtered group's 1
        assert (metrics.groups, metrics.groups_trained, metrics.groups_ended, metrics.readmissions) == (3, 2, 1, 1)
        assert (metrics.response_length_mean, metrics.response_length_max) == (3, 3)
        assert metrics.mismatch_kl == 1e-6
        assert metrics.rollout_to_train_end_s is not None and metrics.first_dispatch_s is not None
        assert metrics.round_period_s is not None
    assert (first.weight_version, second.weight_version) == (0, 1)


def test_the_report_knows_every_version(tiny):
    report = report_json(build_report(tiny.config, Timelines(tiny.reader.events()), tiny.reader.server_time_ms()))
    assert [version["number"] for version in report["versions"]] == [0, 1, 2]
    assert len(report["rounds"]) == 2


def test_status_names_the_services_and_their_waits(tiny):
    with Beacon(tiny.client, "trainer", "trainer-x", 1.0) as beacon, beacon.waiting("a group", 300):
        beacon.carry(tiny.trainer.epoch.number, tiny.trainer.epoch.nonce)
        beacon.beat()
        status = read_status(tiny.reader)
    assert (status.state, status.version, status.round, status.round_state) == ("active", 2, 1, "published")
    assert (status.groups["trained"], status.groups["filtered"], status.fifo_depth) == (2, 1, 0)
    assert [(service.name, service.waiting_for, service.stale) for service in status.services] == [
        ("trainer-x", "a group", False)
    ]
    assert status.missing_roles == ("rollout",)


def test_why_tells_of_the_lost_attempt(tiny):
    history = group_history(tiny.reader.events(), group_id(0, 0))
    assert history.verdict == f"{group_id(0, 0)} was trained, after 2 attempts"
    words = [step.words for step in history.steps]
    assert words[0] == "created with prompt p0 when round 0 opened"
    assert "re-admitted: attempt 1 was lost while admitted: the engine broke" in words
    assert "assigned to update 0, place 0" in words


def test_the_live_display_on_a_terminal_ends_with_the_table(tiny):
    looks = iter([True, True, False])
    console = Console(file=StringIO(), width=150, force_terminal=True)
    timelines = watch(tiny.reader, console, lambda: next(looks), poll_s=0)
    assert len(timelines.rounds()) == 2
    text = console.file.getvalue()
    assert "not acknowledged" in text and "no live service" in text
    assert "dispatch" in text
