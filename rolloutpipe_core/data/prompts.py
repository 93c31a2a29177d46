"""The data set as rollout sees it: rows, their fingerprint, and the seeded order in which rounds take them.

The order is an infinite sequence over the data set, a fresh permutation each epoch. A round's cohort is a
slice of it, so it follows from (seed, rows, cursor) alone and every worker computes the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import overload

from rolloutpipe_core.domain import Prompt


class PromptSet(Sequence[Prompt]):
    """Rows of a data set with a fingerprint that two workers compare before they serve one run.

    `rows` may be lazy. `fingerprint` is 64 hex digits.
    """

    def __init__(self, rows: Sequence[Prompt], fingerprint: str) -> None:
        self._rows = rows
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        return self._rows[index]


def fingerprint(rows: Iterable[Prompt], preamble: str = "") -> str:
    """sha256 over `preamble` and the rows as canonical JSON lines (sorted keys, ASCII, no spaces)."""
    digest = hashlib.sha256(preamble.encode())
    for row in rows:
        content = {
            "id": row.id,
            "answer": row.answer,
            "text": row.text,
            "messages": None if row.messages is None else [dict(message) for message in row.messages],
            "metadata": dict(row.metadata),
        }
        digest.update(json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def order(seed: int, rows: int, cursor: int) -> int:
    """Row index at place `cursor >= 0` of the seeded order. Each run of `rows` places is one permutation."""
    epoch, place = divmod(cursor, rows)
    return _permutation(seed, epoch, rows)[place]


def cohort(seed: int, rows: int, cursor: int, count: int) -> list[int]:
    """Row indices of the `count` places from `cursor` on. A row can come twice only across an epoch's end."""
    return [order(seed, rows, place) for place in range(cursor, cursor + count)]


def cohort_sha(prompt_ids: Sequence[str]) -> str:
    """sha256 of the cohort's prompt ids, in order, as a JSON array (ASCII, no spaces)."""
    return hashlib.sha256(json.dumps(list(prompt_ids), separators=(",", ":")).encode()).hexdigest()


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, rows: int) -> tuple[int, ...]:
    """Rows sorted by a keyed hash: the same on every Python, numpy and machine, at 0.1 s for 100,000 rows."""

    def key(row: int) -> bytes:
        return hashlib.blake2b(f"rolloutpipe/order/{seed}/{epoch}/{row}".encode(), digest_size=16).digest()

    return tuple(sorted(range(rows), key=key))
