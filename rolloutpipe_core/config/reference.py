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


def reference() -> str:
    """The page, in Markdown."""
    plain = {name: info for name, info in RunConfig.model_fields.items() if section_of(info) is None}
    parts = [INTRODUCTION, "## The run\n", *_table(plain, "")]
    for name, info in RunConfig.model_fields.items():
        if section := section_of(info):
            parts += [f"\n## {name}\n", f"{Key(name, info).meaning}\n", *_table(section.model_fields, f"{name}.")]
    # The docstring's first paragraph says what the module is for; the second one lists the variables.
    variables = (connections.__doc__ or "").partition("\n\n")[2].strip()
    return "\n".join([*parts, ENVIRONMENT.format(variables)])


def _table(fields: dict[str, FieldInfo], prefix: str) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, info in fields.items():
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
        return f"list of {NAMES[int]}s" if Ellipsis in inner else f"{len(inner)} of: {_kind(inner[0])}"
    if hasattr(annotation, "__metadata__"):
        return f"{_kind(inner[0])} {_bounds(_constraints(annotation))}"
    return NAMES[annotation]


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
    if value is None or value == ():
        return "unset" if value is None else "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"
