"""Mathematical equality of the final answer, by math-verify (`pip install 'rolloutpipe[math]'`).

Where the final answer stands, first that applies: behind the last `####` (GSM8K's form), in the last `\\boxed{}`,
where math-verify finds one ("the answer is ...", else the last expression), or the last number.
"""

from __future__ import annotations

import logging
import re

from math_verify import parse
from math_verify import verify as equal

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.rewards.score import Score

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

# It warns that its own time limits are off; the pool's deadline takes their place.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def verify(prompt: Prompt, response: str) -> Score:
    """1 when the response's final answer equals the reference answer."""
    answer = final_answer(response)
    found = _parse(answer) or _parse(_last_number(answer))
    if not found:
        return Score(0.0, "no final answer in the response")
    if not equal(_parse(prompt.answer), found, timeout_seconds=None, raise_on_error=True):
        return Score(0.0, f"answered {str(found[-1])[:60]}, not {prompt.answer}")
    return Score(1.0)


def final_answer(response: str) -> str:
    """The part of the response that holds the final answer; the whole when nothing marks it."""
    _, mark, marked = response.rpartition("####")
    if mark and marked.strip():
        return marked.strip().splitlines()[0]
    return _last_boxed(response) or response


def _last_boxed(text: str) -> str:
    """`\\boxed{...}` with its braces balanced, or nothing."""
    start = text.rfind("\\boxed{")
    depth = 0
    for end in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start : end + 1]
    return ""


def _last_number(text: str) -> str:
    numbers: list[str] = NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else ""


def _parse(text: str) -> list[object]:
    """What math-verify reads: an expression and its text, or nothing."""
    found: list[object] = parse(text, parsing_timeout=None)
    return found
