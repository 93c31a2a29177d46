"""Hand-made histories. Times are seconds after T0, so that a test reads like the drawing of a round."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from rolloutpipe_core.domain import GroupState, RoundState, WeightVersion, parse_group_id
from rolloutpipe_core.ledger.events import (
    AnnouncementRefused,
    EngineNoted,
    Event,
    GroupMoved,
    RoleTaken,
    RoundMoved,
    RunMoved,
    UpdateSealed,
    UpdateStepped,
    VersionPublished,
)

T0 = 1_000_000


def weights_sha(version: int) -> str:
    return f"{version:064x}"


class History:
    """Writes events in the order of the calls."""

    T0 = T0

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._states: dict[str, GroupState] = {}

    def _stamp(self, at_s: float, actor: str) -> tuple[str, int, str]:
        at_ms = T0 + round(at_s * 1000)
        return f"{at_ms}-{len(self.events)}", at_ms, actor

    def open(self, at_s: float, round: int, *, samples: int = 2, per_update: int = 2, **details: str) -> None:
        known = {
            "samples_per_group": str(samples),
            "groups_per_update": str(per_update),
            "version": str(round),
            "version_sha": weights_sha(round),
            "schedule": "cgp+fgd",
            "cohort_sha": "c" * 64,
            "data_fingerprint": "d" * 64,
        }
        self.round(at_s, round, RoundState.OPEN, **{**known, **details})

    def round(self, at_s: float, round: int, after: RoundState, generation: int = 1, **details: str) -> None:
        stamp = self._stamp(at_s, "worker-a" if after in (RoundState.OPEN, RoundState.GENERATING) else "trainer-1")
        self.events.append(RoundMoved(*stamp, round, after, generation, details))

    def group(
        self, at_s: float, group: str, after: GroupState, attempt: int = 1, reason: str = "", **details: str
    ) -> None:
        before = self._states.get(group)
        self._states[group] = after
        actor = "trainer-1" if after in (GroupState.CLAIMED, GroupState.TRAINED) else "worker-a"
        stamp = self._stamp(at_s, actor)
        round = parse_group_id(group)[0]
        self.events.append(GroupMoved(*stamp, group, round, before, after, attempt, reason, details))

    def queued(
        self,
        at_s: float,
        group: str,
        attempt: int = 1,
        *,
        reward: float = 0.5,
        samples: int = 2,
        tokens: int = 40,
        response: int = 20,
        longest: int = 12,
        **details: str,
    ) -> None:
        known = {
            "object": f"runs/walk/groups/{group}-{attempt}.arrow",
            "sha256": "a" * 64,
            "weight_version": str(parse_group_id(group)[0]),
            "weights_sha": weights_sha(parse_group_id(group)[0]),
            "samples": str(samples),
            "tokens": str(tokens),
            "response_tokens": str(response),
            "longest_response": str(longest),
            "reward_mean": str(reward),
            "reward_std": "0.5",
        }
        self.group(at_s, group, GroupState.QUEUED, attempt, **{**known, **details})

    def serve(
        self, group: str, admitted: float, served: float, queued: float, attempt: int = 1, **details: object
    ) -> None:
        """One undisturbed attempt, up to the FIFO."""
        self.group(admitted, group, GroupState.ADMITTED, attempt)
        self.group(served, group, GroupState.SERVING_COMPLETE, attempt)
        self.group(queued, group, GroupState.MATERIALIZED, attempt)
        self.queued(queued, group, attempt, **details)  # type: ignore[arg-type]

    def claim(self, at_s: float, group: str, update: int, index: int, attempt: int = 1) -> None:
        self.group(at_s, group, GroupState.CLAIMED, attempt, update=str(update), update_index=str(index))

    def seal(self, at_s: float, round: int, update: int, groups: int = 2, samples: int = 4, tokens: int = 80) -> None:
        self.events.append(UpdateSealed(*self._stamp(at_s, "trainer-1"), round, update, groups, samples, tokens))

    def step(
        self,
        at_s: float,
        round: int,
        update: int,
        busy: Sequence[tuple[float, float]],
        *,
        skipped: bool = False,
        replay: bool = False,
        blocked_s: float = 0.0,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        intervals = tuple((T0 + int(start * 1000), T0 + int(end * 1000)) for start, end in busy)
        stamp = self._stamp(at_s, "trainer-1")
        blocked_ms = int(blocked_s * 1000)
        self.events.append(
            UpdateStepped(*stamp, round, update, skipped, replay, intervals, blocked_ms, dict(metrics or {}))
        )

    def version(self, at_s: float, number: int, commit_sha: str = "") -> None:
        stamp = self._stamp(at_s, "trainer-1")
        object = f"runs/walk/weights/{weights_sha(number)[:16]}/"
        commit = f"runs/walk/commits/c{number:06d}.json"
        version = WeightVersion(number, weights_sha(number))
        self.events.append(VersionPublished(*stamp, version, object, commit, commit_sha))

    def role(self, at_s: float, epoch: int) -> None:
        self.events.append(RoleTaken(*self._stamp(at_s, f"trainer-{epoch}"), "trainer", epoch))

    def run(self, at_s: float, after: str, reason: str = "") -> None:
        self.events.append(RunMoved(*self._stamp(at_s, "cli"), after, reason))

    def noted(self, at_s: float, actor: str, server: str, what: str) -> None:
        self.events.append(EngineNoted(*self._stamp(at_s, actor), server, what))

    def refused(self, at_s: float, group: str, attempt: int, reason: str) -> None:
        stamp = self._stamp(at_s, "trainer-1")
        self.events.append(AnnouncementRefused(*stamp, group, parse_group_id(group)[0], attempt, reason))


@pytest.fixture
def history() -> History:
    return History()


def one_round(history: History, start: float = 0.0, round: int = 0) -> History:
    """Four groups of two samples, U = 2, drawn as (seconds after `start`):

        g0  1####4:5      6TTTT9
        g1  1########7:8        ....10TTTTTT14
        g2  4##5:6        6TTTT9
        g3  5##########9:10         10TTTTTT14

    `#` decoding, `:` serving-complete, then scored and queued; trainer busy [6, 9] and [10, 14].
    """
    ids = [f"r{round:06d}-g{index:04d}" for index in range(4)]
    history.open(start, round)
    for id in ids:
        history.group(start, id, GroupState.DEFERRED, 0)
    history.round(start + 1, round, RoundState.GENERATING)
    history.serve(ids[0], start + 1, start + 4, start + 5, reward=1.0, response=20, longest=12)
    history.serve(ids[1], start + 1, start + 7, start + 8, reward=0.5, response=60, longest=40)
    history.serve(ids[2], start + 4, start + 5, start + 6, reward=0.0, response=10, longest=6)
    history.claim(start + 6, ids[0], 0, 0)
    history.claim(start + 6, ids[2], 0, 1)
    history.serve(ids[3], start + 5, start + 9, start + 10, reward=0.5, response=70, longest=50)
    history.round(start + 10, round, RoundState.DRAINED)
    history.seal(start + 9, round, 0, tokens=100)
    history.step(
        start + 9, round, 0, [(start + 6, start + 9)], metrics={"mismatch_kl": 0.001, "mismatch_max": 0.2, "loss": 1.0}
    )
    history.claim(start + 10, ids[1], 1, 0)
    history.claim(start + 10, ids[3], 1, 1)
    history.seal(start + 14, round, 1, tokens=300)
    history.step(
        start + 14,
        round,
        1,
        [(start + 10, start + 14)],
        blocked_s=0.25,
        metrics={"mismatch_kl": 0.003, "mismatch_max": 0.1, "loss": 2.0},
    )
    history.round(start + 14, round, RoundState.TRAINED)
    history.round(start + 15, round, RoundState.COMMITTED)
    for id in ids:
        history.group(start + 15, id, GroupState.TRAINED)
    history.version(start + 15, round + 1)
    history.round(start + 15.5, round, RoundState.PUBLISHED, version=str(round + 1))
    return history


@pytest.fixture
def undisturbed(history: History) -> History:
    """Round 0 as in `one_round`, then the same again as round 1, opened when round 0 was published."""
    one_round(history)
    return one_round(history, start=15.5, round=1)


def busy_run(history: History, rounds: int = 40, groups: int = 16, slots: int = 5, seed: int = 7) -> History:
    """A run with long-tailed groups, `slots` groups in service at once and U = 2, as a small simulation."""
    draw = random.Random(seed)
    now = 0.0
    for round in range(rounds):
        history.open(now, round, samples=8)
        ids = [f"r{round:06d}-g{index:04d}" for index in range(groups)]
        for id in ids:
            history.group(now, id, GroupState.DEFERRED, 0)
        start = now + 0.05
        history.round(start, round, RoundState.GENERATING)
        free = [start] * slots
        ready = []
        for id in ids:
            admitted = min(free)
            served = admitted + 0.15 + draw.expovariate(2.5)
            free[free.index(admitted)] = served
            queued = served + draw.uniform(0.02, 0.08)
            reward = min(1.0, max(0.0, draw.gauss(0.4 + 0.5 * (1 - 0.93**round), 0.2)))
            longest = int(200 * (served - admitted))
            history.serve(
                id,
                admitted,
                served,
                queued,
                samples=8,
                reward=reward,
                response=longest * 4,
                longest=longest,
                tokens=999,
            )
            ready.append((queued, id))
        ready.sort()
        trainer = 0.0
        for update in range(groups // 2):
            pair = ready[2 * update : 2 * update + 2]
            begin = max(trainer, pair[-1][0])
            trainer = begin + draw.uniform(0.12, 0.2)
            for index, (_, id) in enumerate(pair):
                history.claim(begin, id, update, index)
            history.seal(trainer, round, update, samples=16, tokens=900)
            mismatch = draw.lognormvariate(-13, 0.4)
            metrics = {"mismatch_kl": mismatch, "mismatch_mean": 6 * mismatch, "mismatch_max": 300 * mismatch}
            metrics |= {"grad_norm": draw.uniform(0.4, 0.6), "entropy": 0.9 - 0.01 * round, "clip_fraction": 0.01}
            history.step(trainer, round, update, [(begin, trainer)], metrics=metrics)
        history.round(ready[-1][0], round, RoundState.DRAINED)
        history.round(trainer, round, RoundState.TRAINED)
        now = trainer + draw.uniform(0.1, 0.2)
        history.round(now, round, RoundState.COMMITTED)
        for id in ids:
            history.group(now, id, GroupState.TRAINED)
        history.version(now, round + 1)
        history.round(now, round, RoundState.PUBLISHED)
    return history


@pytest.fixture
def forty_rounds(history: History) -> History:
    return busy_run(history)
