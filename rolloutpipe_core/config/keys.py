"""The keys of a configuration as dotted paths, and a configuration as a flat mapping of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rolloutpipe_core.config.models import RunConfig, Section


class Key(NamedTuple):
    path: str  # "schedule.rounds"
    info: FieldInfo

    @property
    def meaning(self) -> str:
        """Its documentation, on one line."""
        section = section_of(self.info)
        text = self.info.description or (section.__doc__ if section else None) or ""
        return " ".join(text.split())


def section_of(info: FieldInfo) -> type[Section] | None:
    """The model of a field that is a section, also of one that may be left out; else None."""
    kinds = get_args(info.annotation) or (info.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[Key]:
    """Every key in the order of the models; a section comes before its keys."""
    for name, info in model.model_fields.items():
        yield Key(prefix + name, info)
        if section := section_of(info):
            yield from keys(section, f"{prefix}{name}.")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`flatten({"a": {"b": 1}}) == {"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
