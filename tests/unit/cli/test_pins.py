from __future__ import annotations

import pytest

from rolloutpipe_core.cli.pins import duration_s
from rolloutpipe_core.errors import BadInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("1h30m", 5400), ("90m", 5400), ("1d12h", 129600), ("45s", 45), ("1m5s", 65), ("3650d", 315360000)],
)
def test_a_time_in_words(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "2", "0h", "-1h", "1.5h", "30m1h", "2 h", "3651d", "3650d1s", "9" * 400 + "d"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadInput, match="not a time"):
        duration_s(text)
