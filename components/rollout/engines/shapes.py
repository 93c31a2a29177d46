"""The shapes of deterministic mode's forwards: few, and none that changes a sample's bits.

A matrix product of few rows takes another kernel on a CPU, with other rounding (below 4 rows in float32; in
bfloat16 it depends on the product's size). From some number of rows up, each row's result is the same in all
of them. `determinism.py` finds that number on the machine at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

PROMPT_QUANTUM = 16
# Prompts of one padded length may share a forward of so many positions: short ones alone would cost more
# in calls than in products.
PREFILL_POSITIONS = 256
PREFILL_PROMPTS = 4


def round_up(value: int, quantum: int) -> int:
    return -(-value // quantum) * quantum


@dataclass(frozen=True, slots=True)
class DeterministicShapes:
    least_rows: int  # of any matrix product
    window_quantum: int  # positions; how far attention looks is a multiple of it

    def rows(self, live: int) -> int:
        """Rows of a decode forward for so many live ones: from `least_rows` in steps of an eighth to a quarter.

        Few shapes, so that all can be checked at the start, and little waste.
        """
        step = max(4, 1 << max(0, (live - 1).bit_length() - 3))
        return max(self.least_rows, round_up(live, step))

    def row_counts(self, slots: int) -> list[int]:
        """All values of `rows` for up to so many live slots, ascending."""
        return sorted({self.rows(live) for live in range(1, slots + 1)})

    def prompt_length(self, tokens: int) -> int:
        """Length to which a prompt is padded: it depends on nothing but the prompt's own."""
        return round_up(tokens, max(PROMPT_QUANTUM, self.least_rows))

    def prefill_prompts(self, length: int) -> int:
        """Most prompts of this padded length in one forward."""
        return min(PREFILL_PROMPTS, max(1, PREFILL_POSITIONS // length))
