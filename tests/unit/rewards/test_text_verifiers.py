import pytest

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards import exact, pointer_walk

PROMPT = Prompt(id="w-0", answer="B", text="dBaDbB?a=")


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("#B", 1.0),
        ("aDdBbB#B", 1.0),
        ("#D#B", 1.0),
        ("#B#", 1.0),
        ("#B<eos>", 1.0),
        ("#B#D", 0.0),
        ("#b", 0.0),
        ("# B", 0.0),
        ("B", 0.0),
        ("", 0.0),
        ("####", 0.0),
        ("\x00\ud800#B", 1.0),
    ],
)
def test_pointer_walk_takes_the_last_answer(response, value):
    score = pointer_walk.verify(PROMPT, response)
    assert score.value == value
    assert (score.reason is None) == (value == 1.0)


def test_pointer_walk_says_why():
    assert pointer_walk.verify(PROMPT, "#D").reason == "answered D, not B"
    assert pointer_walk.verify(PROMPT, "D").reason == "no answer (#X) in the response"


@pytest.mark.parametrize(
    ("response", "value"), [("B", 1.0), (" B\n", 1.0), ("b", 0.0), ("B.", 0.0), ("", 0.0), ("B B", 0.0)]
)
def test_exact_leaves_blanks_aside(response, value):
    assert exact.verify(PROMPT, response).value == value
