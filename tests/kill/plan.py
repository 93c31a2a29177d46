"""The plan of a matrix: which runs, and what is done to each. Everything follows from the seed.

Each round of the plan takes all fault points in a new order, and gives each a kind of deed; points that only happen
under some configuration, or after something else has happened, bring that along (`RECIPES`). Between them are deeds at
random instants.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

from .deeds import Deed, Kind, Victim
from .points import points

LEASE_S = 1.0
POINTS_A_RUN = 4
LONGEST_INSTANT_S = 5.0

BASE: dict[str, Any] = {
    "bucket": "kill-test",
    "deterministic": True,
    "model": {"path": "builtin:pointer-walk"},
    "sampling": {"max_new_tokens": 24},
    "engine": {"slots": 16},
    "rollout_workers": 2,
    # Nothing that a restart mends may end a group or a service.
    "leases": {"lease_s": LEASE_S, "heartbeat_s": 0.2, "max_attempts": 1000},
    "deadlines": {"group_s": 90, "publish_s": 90, "partner_s": 90, "redis_s": 60, "store_s": 60, "engine_s": 60},
}
SIZES = {"rounds": 3, "groups_per_round": 4, "samples_per_group": 4}
KEEP = {"keep_rounds": 2, "keep_versions": 2, "orphan_age_s": 4, "grace_s": 0.5, "archive_events": 30}
DROP = {**SIZES, "kind": "cgp", "order": "submission", "samples_per_group": 2, "update_batch_size": 4} | {
    "zero_variance": "drop"
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration of the runs."""

    schedule: dict[str, Any]
    retention: dict[str, Any] = field(default_factory=dict)
    bit_equal: bool = True  # the final weights are those of the undisturbed run
    resume_options: tuple[str, ...] = ()  # the run stops itself, and goes on with these
    leases: dict[str, Any] = field(default_factory=dict)
    all_groups: bool = True  # whatever dies, every group is trained that the undisturbed run trains


VARIANTS = {
    "strict": Variant({**SIZES, "kind": "stream", "contract": "strict", "update_batch_size": 16}),
    "submission": Variant({**SIZES, "kind": "cgp+fgd", "order": "submission", "update_batch_size": 8}),
    "completion": Variant(
        {**SIZES, "kind": "cgp+fgd", "frontier_mode": "hard", "update_batch_size": 8}, bit_equal=False
    ),
    "drop": Variant({**DROP, "max_unusable_fraction": 1.0}),
    "refill": Variant({**DROP, "zero_variance": "refill", "max_unusable_fraction": 1.0}),
    "keeping": Variant(
        {
            **SIZES,
            "rounds": 12,
            "kind": "stream",
            "contract": "strict",
            "groups_per_round": 2,
            "samples_per_group": 2,
            "update_batch_size": 4,
        },
        retention=KEEP,
    ),
    "stopping": Variant(
        {**DROP, "max_unusable_fraction": 0.0}, resume_options=("--set", "schedule.max_unusable_fraction=1.0")
    ),
    "ending": Variant(
        {**SIZES, "kind": "cgp", "update_batch_size": 8, "max_unusable_fraction": 1.0},
        bit_equal=False,
        leases={"max_attempts": 1, "max_rejections": 0},
        all_groups=False,
    ),
}
TRAINING = ("strict", "submission", "completion")  # every round has all its groups, and new weights
KEEPING = ("keeping",)
DROPPING = ("drop", "stopping")
REFILLING = ("refill",)
ENDING = ("ending",)  # nothing is tried twice: what dies takes its groups with it
TRYING_AGAIN = tuple(name for name in VARIANTS if name not in ENDING)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a transition comes about."""

    most: int  # so often it surely happens in a run
    variants: tuple[str, ...] = TRYING_AGAIN
    needs: tuple[Deed, ...] = ()


LEASE_RUNS_OUT = (Deed("stop", "self", 2 * LEASE_S, "admit/after", 2),)
# Events are archived, and sets deleted, when they are five seconds old.
GROWS_OLD = (Deed("stop", "self", 6.0, "seal/before", 7),)
TRIM_CUT_OFF = (
    *GROWS_OLD,
    Deed("kill", "self", 0, "trim_ledger/before", 1),
)
DAMAGE_ANNOUNCED = (Deed("damage", "self", 0, "announce/before", 2),)
DAMAGE_ASSIGNED = (Deed("spoil", "self", 0, "assign/after", 1),)

RECIPES = {
    "admit": Recipe(10),
    "adopt_archive": Recipe(1, KEEPING, TRIM_CUT_OFF),
    "announce": Recipe(10, TRAINING),
    "archive-part": Recipe(1, KEEPING, GROWS_OLD),
    "assign": Recipe(10, TRAINING),
    "beat": Recipe(40),
    "checkpoint-file": Recipe(6, TRAINING),
    "checkpoint-manifest": Recipe(3, TRAINING),
    "commit": Recipe(3),
    "config": Recipe(3),
    "deletion": Recipe(1, KEEPING, GROWS_OLD),
    "failed": Recipe(1, ENDING, LEASE_RUNS_OUT),
    "filtered": Recipe(2, DROPPING),
    "forget": Recipe(1, KEEPING, GROWS_OLD),
    "genesis": Recipe(1),
    "group": Recipe(10, TRAINING),
    "housekept": Recipe(1),
    "materialized": Recipe(10),
    "open_round": Recipe(4),
    "prepare": Recipe(3),
    "publish": Recipe(3),
    "read_fifo": Recipe(12),
    "reject": Recipe(1, TRAINING, DAMAGE_ANNOUNCED),
    "rejected": Recipe(1, ENDING, DAMAGE_ANNOUNCED),
    "refilled": Recipe(2, REFILLING),
    "release": Recipe(1, needs=LEASE_RUNS_OUT),
    "renew": Recipe(1),
    "retire": Recipe(1),
    "seal": Recipe(3, TRAINING),
    "serving_complete": Recipe(10),
    "settle": Recipe(1, KEEPING, GROWS_OLD),
    "stepped": Recipe(3, TRAINING),
    "stop": Recipe(1, ("stopping",)),
    "take_role": Recipe(1),
    "tidy": Recipe(1),
    "trained": Recipe(3),
    "trim_ledger": Recipe(1, KEEPING, GROWS_OLD),
    "unassign": Recipe(1, TRAINING, DAMAGE_ASSIGNED),
    "weights-file": Recipe(12, TRAINING),
    "weights-manifest": Recipe(3, TRAINING),
}
"""Every transition that a service makes, by its name in `points.transitions()`."""
ELSEWHERE = {"pin", "noted"}
"""Transitions that no service of the matrix makes: `pin` is a person's command, and `noted` tells, for people alone, of
servers of the engine, which `torch` has none of (tests/contract/rollout/sglang kills those)."""
POINTS = [point for point in points() if point.split("/")[0] not in ELSEWHERE]

AT_POINTS: tuple[tuple[Kind, Victim, int], ...] = (
    ("kill", "self", 9),
    ("stop", "self", 3),
    ("replace", "self", 2),
    ("kill", "valkey", 2),
    ("stop", "valkey", 1),
    ("kill", "s3", 2),
    ("stop", "s3", 1),
)
AT_INSTANTS: tuple[tuple[Kind, Victim, int], ...] = (
    ("kill", "rollout", 2),
    ("stop", "rollout", 1),
    ("kill", "trainer", 2),
    ("stop", "trainer", 1),
    ("replace", "trainer", 1),
    ("kill", "valkey", 1),
    ("kill", "s3", 1),
)
"""(kind, victim, how many in a deal of the cards)"""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run of the matrix."""

    number: int
    variant: str
    deeds: tuple[Deed, ...]

    @property
    def kills(self) -> int:
        return sum(deed.is_kill for deed in self.deeds)


def config_of(variant: str, run: str) -> dict[str, Any]:
    chosen = VARIANTS[variant]
    leases = {**BASE["leases"], **chosen.leases}
    return {**BASE, "run": run, "schedule": chosen.schedule, "retention": chosen.retention, "leases": leases}


def plan_runs(seed: int, kills: int) -> list[RunPlan]:
    """Runs with at least so many kills together."""
    plans: list[RunPlan] = []
    for number, (variant, deeds) in enumerate(_runs(random.Random(seed))):
        plans.append(RunPlan(number, variant, deeds))
        if sum(plan.kills for plan in plans) >= kills:
            break
    return plans


def plan_missed(number: int, missed: list[str]) -> RunPlan:
    """A run for some points that were not reached as planned: a plain kill at the first time of each."""
    name = missed[0].split("/")[0]
    variant = RECIPES[name].variants[0]
    fitting = [point for point in missed if variant in RECIPES[point.split("/")[0]].variants][:POINTS_A_RUN]
    needs = [need for point in fitting for need in RECIPES[point.split("/")[0]].needs]
    deeds = [*needs, *(Deed("kill", "self", 0, point) for point in fitting)]
    return RunPlan(number, variant, tuple(dict.fromkeys(deeds)))


def _runs(dice: random.Random) -> Iterator[tuple[str, tuple[Deed, ...]]]:
    """Endless runs: points are dealt to the variants, and a variant with enough of them makes a run."""
    at_points, at_instants = _deal(dice, AT_POINTS), _deal(dice, AT_INSTANTS)
    hands: dict[str, list[Deed]] = {variant: [] for variant in VARIANTS}
    while True:
        for point in dice.sample(POINTS, len(POINTS)):
            recipe = RECIPES[point.split("/")[0]]
            variant = dice.choice(recipe.variants)
            deed = replace(next(at_points), point=point, nth=dice.randint(1, recipe.most))
            wanted = [*recipe.needs, deed]
            taken = {(other.point, other.nth): other for other in hands[variant]}
            if any(taken.get((each.point, each.nth), each) != each for each in wanted):
                yield variant, _hand(dice, hands, variant, at_instants)
            hands[variant] += [each for each in wanted if each not in hands[variant]]
            if len(hands[variant]) >= POINTS_A_RUN:
                yield variant, _hand(dice, hands, variant, at_instants)


def _hand(
    dice: random.Random, hands: dict[str, list[Deed]], variant: str, at_instants: Iterator[Deed]
) -> tuple[Deed, ...]:
    deeds, hands[variant] = hands[variant], []
    instants = [
        replace(deed, at_s=dice.uniform(0.5, LONGEST_INSTANT_S), nth=dice.randint(0, 1))
        for deed in islice(at_instants, dice.randint(1, 2))
    ]
    return tuple(deeds + instants)


def _deal(dice: random.Random, cards: tuple[tuple[Kind, Victim, int], ...]) -> Iterator[Deed]:
    """The cards in endless shuffled deals, so that each kind comes up in its share."""
    deck = [(kind, victim) for kind, victim, count in cards for _ in range(count)]
    for _ in cycle([None]):
        for kind, victim in dice.sample(deck, len(deck)):
            server = victim in ("valkey", "s3")
            lasts_s = dice.uniform(0.05, 0.6) if kind == "kill" and server else dice.uniform(1.3, 2.0) * LEASE_S
            yield Deed(kind, victim, lasts_s if server or kind != "kill" else 0)
