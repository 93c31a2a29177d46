"""The pointer walk: a task that a 0.6M-parameter model learns on one CPU core in a minute.

    prompt     "dBaDbB?a="    shuffled pairs (a points to D, d to B, b to itself), then the start
    answer     "B"            the root reached from the start
    responses  "#B"           a direct guess
               "aDdBbB#B"     a walk: look up a -> D, go on from d, until a node points to itself

The number of hops is 1 + an exponential of mean 5, at most 20, so that walks have a long tail of lengths, as
real rollouts do. Decoy trees around the path make a direct guess right about one time in five.
"""

from __future__ import annotations

import hashlib
import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from rolloutpipe_core.data.prompts import PromptSet, fingerprint
from rolloutpipe_core.domain import Prompt

SYMBOLS = "?=#" + string.ascii_lowercase + string.ascii_uppercase

DEFAULT_ROWS = 100_000
MEAN_HOPS, MAX_HOPS = 5.0, 20
MIN_DECOYS, MAX_DECOYS = 4, 8
DECOY_ROOT_SHARE = 0.4
FINGERPRINT_ROWS = 256


@dataclass(frozen=True, slots=True)
class Walk:
    """One row. `path` are the nodes (0 = a) from the start to the root, hops + 1 of them."""

    question: str
    path: tuple[int, ...]

    @property
    def answer(self) -> str:
        return string.ascii_uppercase[self.path[-1]]


def generate_walk(seed: int, index: int) -> Walk:
    """Row `index` of the task with this seed; it depends on nothing else."""
    draw = _Draws(f"rolloutpipe/pointer-walk/{seed}/{index}")
    hops = min(1 + int(-math.log(1.0 - draw.uniform()) * MEAN_HOPS), MAX_HOPS)
    nodes = draw.shuffled(range(26))[: hops + 1 + MIN_DECOYS + draw.below(MAX_DECOYS - MIN_DECOYS + 1)]
    path, decoys = nodes[: hops + 1], nodes[hops + 1 :]
    # Only later decoys point at earlier ones and none at the path: every walk ends, and the path's root has one branch.
    target = dict(zip(path, [*path[1:], path[-1]], strict=True))
    for place, node in enumerate(decoys):
        is_root = place == 0 or draw.uniform() < DECOY_ROOT_SHARE
        target[node] = node if is_root else decoys[draw.below(place)]
    pairs = "".join(pair(node, target[node]) for node in draw.shuffled(list(target)))
    return Walk(question=f"{pairs}?{string.ascii_lowercase[path[0]]}=", path=tuple(path))


def pair(node: int, target: int) -> str:
    """`pair(0, 3) == "aD"`: node a points to D."""
    return string.ascii_lowercase[node] + string.ascii_uppercase[target]


def pointer_walk_prompts(seed: int, rows: int = DEFAULT_ROWS) -> PromptSet:
    """Lazy rows. The fingerprint covers seed, count and the first rows' content: rows follow from the first two."""
    walks = _WalkRows(seed, rows)
    return PromptSet(walks, fingerprint(walks[:FINGERPRINT_ROWS], preamble=f"pointer-walk/{seed}/{rows}\n"))


class _WalkRows(Sequence[Prompt]):
    def __init__(self, seed: int, rows: int) -> None:
        self._seed, self._indices = seed, range(rows)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self._row(row) for row in self._indices[index]]
        return self._row(self._indices[index])

    def _row(self, index: int) -> Prompt:
        walk = generate_walk(self._seed, index)
        return Prompt(
            id=f"pointer-walk-{self._seed}-{index:06d}",
            answer=walk.answer,
            text=walk.question,
            metadata={"hops": str(len(walk.path) - 1)},
        )


class _Draws:
    """Draws built on `random.Random.random()` alone: the one method whose sequence Python promises to keep."""

    def __init__(self, key: str) -> None:
        self.uniform = random.Random(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest())).random

    def below(self, bound: int) -> int:
        return int(self.uniform() * bound)

    def shuffled(self, items: Sequence[int]) -> list[int]:
        """Fisher-Yates on a copy."""
        result = list(items)
        for place in range(len(result) - 1, 0, -1):
            other = self.below(place + 1)
            result[place], result[other] = result[other], result[place]
        return result
