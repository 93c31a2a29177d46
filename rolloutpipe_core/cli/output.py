"""How commands print: rich tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

FILE_COLUMNS = 160


@cache
def console() -> Console:
    """Standard output; wide enough for our tables where it is no terminal."""
    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = FILE_COLUMNS
    return made


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], numbers: Collection[str] = ()
) -> Table:
    """A table whose `numbers` columns are right-aligned. Text is shown as it is: responses may look like markup."""
    made = Table(title=title or None, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def print_json(value: Any) -> None:
    """One JSON document; dataclasses and pydantic models as objects."""
    json.dump(value, sys.stdout, default=_plain, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")
