"""docs/configuration.md, generated from the models."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from rolloutpipe_core.config import connections
from rolloutpipe_core.config.identity import MAY_CHANGE
from rolloutpipe_core.config.keys import Key, section_of
from rolloutpipe_core.config.models import RunConfig

INTRODUCTION = """\
# Configuration

A run is one YAML file. Below are all of its keys, made by `rolloutpipe config reference` from
[the models](../rolloutpipe_core/config/models.py); a key that is not here is an error.
`rolloutpipe config check FILE` says what does not fit together and how much memory the run needs.
Every command that takes a file also takes `--set section.key=value` (the value in YAML), as often as needed:

```
rolloutpipe run configs/quickstart.yaml --set schedule.rounds=10 --set schedule.kind=stream
```

A run that is started again must have the configuration that it began with; what may change is marked with *.
"""

ENVIRONMENT = """
## Environment

Addresses and secrets come from the environment only. Where it names neither Redis nor S3, the embedded servers are
taken that `rolloutpipe up` started in this folder.

```
{}
```
"""

BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
NAMES = {int: "integer", float: "number", str: "text", bool: "true or false"}
PLURALS = {int: "integers", str: "texts"}


def reference() -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION, "## The run\n", *_table(RunConfig.model_fields, ""), *_sections(RunConfig.model_fields, "")]
    # The docstring's first paragraph says what the module is for; the second one lists the variables.
    variables = (connections.__doc__ or "").partition("\n\n")[2].strip()
    return "\n".join([*parts, ENVIRONMENT.format(variables)])


def _sections(fields: dict[str, FieldInfo], prefix: str) -> Iterator[str]:
    """Every section among the fields with its table, each followed by the sections in it."""
    for name, info in fields.items():
        if section := section_of(info):
            path = prefix + name
            optional = "" if info.default is not None or info.is_required() else " Left out unless given."
            yield f"\n## {path}\n"
            yield f"{Key(path, info).meaning}{optional}\n"
            yield from _table(section.model_fields, f"{path}.")
            yield from _sections(section.model_fields, f"{path}.")


def _table(fields: dict[str, FieldInfo], prefix: str) -> Iterator[str]:
    """The fields that are no sections."""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in fields.items():
        if section_of(info):
            continue
        key = Key(prefix + name, info)
        star = "*" if key.path in MAY_CHANGE or prefix.rstrip(".") in MAY_CHANGE else ""
        yield f"| `{key.path}`{star} | {_values(info)} | {_default(info)} | {key.meaning} |"


def _values(info: FieldInfo) -> str:
    kind = _kind(info.annotation)
    bounds = _bounds(info.metadata)
    return f"{kind} {bounds}" if bounds else kind


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"list of {PLURALS[_bare(inner[0])]}" if Ellipsis in inner else f"{len(inner)} of: {_kind(inner[0])}"
    if origin is dict:
        return f"{NAMES[inner[1]]} by name"
    if hasattr(annotation, "__metadata__"):
        return f"{_kind(inner[0])} {_bounds(_constraints(annotation))}"
    return NAMES[annotation]


def _bare(annotation: Any) -> Any:
    """A type without its constraints."""
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _constraints(annotation: Any) -> list[Any]:
    return FieldInfo.from_annotation(annotation).metadata


def _bounds(metadata: list[Any]) -> str:
    found = [
        f"{sign} {getattr(one, name):g}" for one in metadata for name, sign in BOUNDS.items() if hasattr(one, name)
    ]
    return " and ".join(found)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.default
    if value is None or value in ((), {}):
        return "unset" if value is None else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"
