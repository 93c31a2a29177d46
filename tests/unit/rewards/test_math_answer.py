import pytest

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.math_answer import final_answer, verify


def score(answer: str, response: str):
    return verify(Prompt(id="g-0", answer=answer, text="q"), response)


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        ("72", "48/2 = 24, 48+24 = 72\n#### 72"),
        ("72", "#### 72 clips"),
        ("72", "####72.00"),
        ("72", "####\n72\nand 5 more"),
        ("1200", "#### $1,200"),
        ("-3", "#### -3"),
        ("5", "#### 4\nNo:\n#### 5"),
        ("72", "So it is 72. ####"),
        ("72", r"\boxed{72} is 3 more"),
        ("72", r"\boxed{71}, no, \boxed{72}"),
        ("0.5", r"so $\boxed{\frac{1}{2}}$"),
        (r"\frac{1}{2}", "#### 0.5"),
        ("12", "The answer is 12 apples, 3 of which are red."),
        ("42", "(42)"),
        ("1200", "in all:(1,200)"),
        ("7", "3+4"),
        ("0.5", "50%"),
    ],
)
def test_right(answer, response):
    assert score(answer, response).value == 1.0


@pytest.mark.parametrize(
    ("answer", "response", "reason"),
    [
        ("72", "#### 71", "answered 71, not 72"),
        ("72", "72 at first, #### 71", "answered 71, not 72"),
        ("72", r"72, so \boxed{71}", "answered 71, not 72"),
        ("72", "", "no final answer in the response"),
        ("72", "####", "no final answer in the response"),
        ("72", "seventy-two", "no final answer in the response"),
        ("72", r"\boxed{", "no final answer in the response"),
        ("72", "#### none\n72", "no final answer in the response"),
        ("72", "\x00\ud800", "no final answer in the response"),
    ],
)
def test_wrong(answer, response, reason):
    assert score(answer, response).value == 0.0
    assert score(answer, response).reason == reason


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("a #### b\nc", "b"),
        ("a #### b #### c", "c"),
        ("a ####", "a ####"),
        (r"a \boxed{\frac{1}{2}} b", r"\boxed{\frac{1}{2}}"),
        (r"a \boxed{1 b", r"a \boxed{1 b"),
        (r"\boxed{1} #### 2", "2"),
        ("", ""),
    ],
)
def test_final_answer(response, answer):
    assert final_answer(response) == answer
