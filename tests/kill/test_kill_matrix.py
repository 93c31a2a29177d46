"""A part of the kill matrix, always the same; `make kill-test` plays the rest."""

from __future__ import annotations

from pathlib import Path

from .matrix import run_matrix, table

KILLS = 40
SEED = 7


def test_whatever_dies_every_group_is_trained_exactly_once(tmp_path: Path) -> None:
    result = run_matrix(SEED, KILLS, lanes=2, failures=tmp_path)
    assert not result["violations"], table(result)
    assert result["kills"] >= KILLS, table(result)
    assert result["weights_compared"] == result["weights_bit_equal"] > 0, table(result)
