"""A part of the kill matrix, always the same; `make kill-test` plays the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .matrix import main, run_matrix, table

KILLS = 40
SEED = 7


def test_whatever_dies_every_group_is_trained_exactly_once(tmp_path: Path) -> None:
    result = run_matrix(SEED, KILLS, lanes=2, failures=tmp_path)
    assert not result["violations"], table(result)
    assert result["kills"] >= KILLS, table(result)
    assert result["weights_compared"] == result["weights_bit_equal"] > 0, table(result)


@pytest.mark.parametrize("arguments", ["--kills 0", "--kills x", "--seed x", "--lanes 0", "--kills 6 --only 9"])
def test_what_is_no_matrix_is_refused(
    arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kill-test", *arguments.split()])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "kill-test: error: argument " in capsys.readouterr().err
