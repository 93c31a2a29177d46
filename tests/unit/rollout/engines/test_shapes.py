import pytest
from rolloutpipe_components.rollout.engines.shapes import DeterministicShapes, round_up

SHAPES = DeterministicShapes(least_rows=4, window_quantum=16)
WIDER = DeterministicShapes(least_rows=32, window_quantum=16)


@pytest.mark.parametrize(
    ("live", "rows"),
    [(1, 4), (4, 4), (5, 8), (17, 20), (32, 32), (33, 40), (57, 64), (64, 64), (65, 80), (129, 160), (256, 256)],
)
def test_rows_of_a_decode_forward(live: int, rows: int) -> None:
    assert SHAPES.rows(live) == rows
    assert WIDER.rows(live) == max(32, rows)


def test_row_counts_are_all_that_can_occur() -> None:
    assert SHAPES.row_counts(64) == [4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert SHAPES.row_counts(2) == [4]
    assert WIDER.row_counts(40) == [32, 40]


def test_prompts_are_padded_by_their_own_length_alone() -> None:
    assert [SHAPES.prompt_length(tokens) for tokens in (1, 16, 17, 100)] == [16, 16, 32, 112]
    assert [WIDER.prompt_length(tokens) for tokens in (1, 33)] == [32, 64]


def test_prompts_share_a_forward_while_they_are_short() -> None:
    assert [SHAPES.prefill_prompts(length) for length in (16, 64, 80, 128, 144, 1024)] == [4, 4, 3, 2, 1, 1]


def test_round_up() -> None:
    assert [round_up(value, 16) for value in (1, 16, 17)] == [16, 16, 32]
