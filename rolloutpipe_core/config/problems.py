"""What a rule has to say of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """An `error` forbids the run; a `warning` says what may surprise."""

    severity: Literal["error", "warning"]
    key: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}; do: {self.remedy}"


def error(key: str, message: str, remedy: str) -> Problem:
    return Problem("error", key, message, remedy)


def warning(key: str, message: str, remedy: str) -> Problem:
    return Problem("warning", key, message, remedy)
