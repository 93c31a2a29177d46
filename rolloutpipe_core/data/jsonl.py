"""Rows of a JSONL file, one JSON object a line, into prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rolloutpipe_core.config.models import DataConfig
from rolloutpipe_core.data.prompts import PromptSet, fingerprint
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput


def jsonl_prompts(config: DataConfig) -> PromptSet:
    """All rows of `config.path` (at most `config.rows`), held in memory.

    Ids are "<file stem>-<row, six digits from 0>". Raises BadInput for a file that is missing, empty or holds
    a line that is not such a row, with the line's number.
    """
    if config.path is None:
        raise BadInput("the data file is not given", expected="a JSONL file", remedy="set data.path")
    path = Path(config.path).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            prompts = list(islice(_prompts(path, lines, config), config.rows))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("cannot read the data file", given=f"{path}: {error}", remedy="set data.path") from error
    if not prompts:
        raise BadInput("the data file has no rows", given=str(path), expected="one JSON object a line")
    return PromptSet(prompts, fingerprint(prompts))


def _prompts(path: Path, lines: Iterator[tuple[int, str]], config: DataConfig) -> Iterator[Prompt]:
    for row, (number, line) in enumerate(lines):
        where = f"{path} line {number}"
        content = _parse(line, where)
        question = _field(content, config.prompt_field, "data.prompt_field", where)
        answer = _field(content, config.answer_field, "data.answer_field", where)
        if config.answer_format == "gsm8k":
            answer = _gsm8k_answer(answer, where)
        yield make_prompt(f"{path.stem}-{row:06d}", question, answer, config)


def make_prompt(id: str, question: str, answer: str, config: DataConfig) -> Prompt:
    """Plain text, or messages for the chat template when `chat` or a system prompt is set."""
    if not config.chat and config.system_prompt is None:
        return Prompt(id=id, answer=answer, text=question)
    system = () if config.system_prompt is None else ({"role": "system", "content": config.system_prompt},)
    return Prompt(id=id, answer=answer, messages=(*system, {"role": "user", "content": question}))


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadInput("not a JSON line", given=f"{where}: {error}", expected="one JSON object a line") from error
    if not isinstance(content, dict):
        raise BadInput("not a row", given=f"{where}: a JSON {type(content).__name__}", expected="a JSON object")
    return content


def _field(content: dict[str, Any], name: str, key: str, where: str) -> str:
    """The field as text: strings as they are, numbers as JSON writes them."""
    if name not in content:
        there = ", ".join(content) or "none"
        raise BadInput(f"a row lacks the field '{name}'", given=f"{where} with the fields {there}", remedy=f"set {key}")
    value = content[name]
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    raise BadInput(
        f"the field '{name}' holds no text", given=f"{where}: {json.dumps(value)[:60]}", expected="a text or a number"
    )


def _gsm8k_answer(text: str, where: str) -> str:
    """The final answer behind the last `####`, without thousands separators."""
    _, mark, answer = text.rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise BadInput(
            "an answer lacks its `####`", given=where, expected="GSM8K's form", remedy="set data.answer_format=plain"
        )
    return answer
