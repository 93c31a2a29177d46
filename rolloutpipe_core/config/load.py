"""From a YAML file and `--set` options to a checked RunConfig, or to one line a problem."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rolloutpipe_core.config.checks import check
from rolloutpipe_core.config.keys import keys
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.errors import BadInput

NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: a date that is none


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's configuration; `overrides` are `a.b=value`, the value in YAML.

    Raises BadInput with one line for every problem: where, what was given, what is expected, what to do.
    """
    path = Path(path)
    values = _read(path)
    changed = {key: _set(values, key, text) for key, text in map(_split, overrides)}
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        lines = [_explain(details, str(path), changed) for details in error.errors(include_url=False)]
        raise BadInput("\n".join(lines)) from None
    if errors := [problem for problem in check(config) if problem.severity == "error"]:
        raise BadInput("\n".join(f"{path}: {problem}" for problem in errors))
    return config


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key given twice is an error; plain safe_load lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
            if name.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name.value!r} is given twice", problem_mark=name.start_mark
                )
            seen.add(name.value)
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # a SafeLoader
    except FileNotFoundError:
        raise BadInput("no such config", given=str(path), expected="a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("cannot read the config", given=str(path), expected=f"a readable UTF-8 file ({error})") from None
    except NOT_YAML as error:
        raise BadInput(_yaml_problem(str(path), error)) from None
    if not isinstance(values, dict):
        raise BadInput(f"{path}: not a configuration", given=type(values).__name__, expected="a mapping of keys")
    return values


def _yaml_problem(where: str, error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        where = f"{where}:{error.problem_mark.line + 1}"
        return f"{where}: not valid YAML: {error.problem}"
    if isinstance(error, RecursionError):
        return f"{where}: nested too deeply"
    return f"{where}: not valid YAML: {' '.join(str(error).split())}"


def _split(override: str) -> tuple[str, str]:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise BadInput("not a setting", given=f"--set {override}", expected="--set section.key=value")
    return key, text


def _set(values: dict[str, Any], key: str, text: str) -> str:
    """Put one override into `values`; return it as the user wrote it."""
    option = f"--set {key}={text}"
    *sections, name = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{option}: {section} is not a section", given=repr(inner), expected="a mapping of keys")
        values = inner
    try:
        values[name] = yaml.load(text, _UniqueKeys)
    except NOT_YAML as error:
        raise BadInput(_yaml_problem(option, error)) from None
    return option


def _explain(details: ErrorDetails, file: str, changed: dict[str, str]) -> str:
    path = ".".join(str(part) for part in details["loc"])
    where = f"{changed.get(path, file)}: {path}"
    if details["type"] == "extra_forbidden":
        return str(BadInput(f"{where}: unknown key", remedy=_suggest(path)))
    if details["type"] == "missing":
        return str(BadInput(f"{where}: missing", expected=_meaning(path)))
    if details["type"] == "string_pattern_mismatch":  # the meaning says it in words
        return str(BadInput(where, given=repr(details["input"]), expected=_meaning(path)))
    expected = details["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return str(BadInput(where, given=repr(details["input"]), expected=f"{expected} ({_meaning(path)})"))


def _meaning(path: str) -> str:
    """A key's documentation; for an element of a list, that of the list."""
    meanings = {key.path: key.meaning for key in keys()}
    return meanings.get(path) or meanings.get(path.rpartition(".")[0], "")


def _suggest(path: str) -> str:
    """The nearest known key: the same name elsewhere, a sibling that looks alike, else all that the section has."""
    section, _, name = path.rpartition(".")
    known = [key.path for key in keys()]
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    elsewhere = [key for key in known if key.rpartition(".")[2] == name]
    near = [siblings[match] for match in difflib.get_close_matches(name, siblings, n=1)]
    if nearest := [*elsewhere, *near]:
        return f"did you mean {nearest[0]}?"
    return f"take one of: {', '.join(siblings.values())}"
