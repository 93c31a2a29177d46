"""What was measured so far, kept line by line so that a benchmark that was stopped can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rolloutpipe_core.errors import BadInput

from .plan import Cell
from .summary import Floor, Measured


@dataclass(slots=True)
class Records:
    """All runs, in memory and, when there is a file, as JSON lines in it; the first line says what was set up."""

    setting: Mapping[str, Any]
    file: Path | None = None
    measured: list[Measured] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)

    @classmethod
    def begin(cls, setting: Mapping[str, Any], file: Path | None) -> Records:
        """A new file, or in memory alone."""
        records = cls(setting, file)
        if file is not None:
            file.write_text(json.dumps({"setting": setting}) + "\n")
        return records

    @classmethod
    def read(cls, file: Path) -> Records:
        """What a file holds. Raises BadInput when it is none of ours."""
        try:
            first, *lines = map(json.loads, file.read_text().splitlines())
            setting = first["setting"]
            measured = [_measured(line["cell"]) for line in lines if "cell" in line]
            floors = [Floor(**line["floor"]) for line in lines if "floor" in line]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                "no records of a benchmark", given=f"{file}: {error}", expected="what `bench schedules --raw` kept"
            ) from error
        return cls(setting, file, measured, floors)

    @classmethod
    def resume(cls, setting: Mapping[str, Any], file: Path) -> Records:
        """Go on with a file. Raises BadInput when it is none of ours, or was made with another setting."""
        records = cls.read(file)
        if records.setting != setting:
            raise BadInput(
                "these records were made with another setting",
                given=f"{file}: {_differing(records.setting, setting)}",
                remedy="leave --resume out, or take another file",
            )
        return records

    def add(self, entry: Measured | Floor) -> None:
        if isinstance(entry, Measured):
            self.measured.append(entry)
        else:
            self.floors.append(entry)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(json.dumps({"cell" if isinstance(entry, Measured) else "floor": asdict(entry)}) + "\n")

    def has(self, cell: Cell, repeat: int) -> bool:
        return any(run.cell == cell and run.repeat == repeat for run in self.measured)

    def has_floor(self, regime: str, groups_per_update: int, repeat: int) -> bool:
        place = (regime, groups_per_update, repeat)
        return any((floor.regime, floor.groups_per_update, floor.repeat) == place for floor in self.floors)


def _measured(facts: dict[str, Any]) -> Measured:
    return Measured(Cell(**facts["cell"]), facts["repeat"], facts["metrics"])


def _differing(stored: Mapping[str, Any], setting: Mapping[str, Any]) -> str:
    names = [name for name in {*stored, *setting} if stored.get(name) != setting.get(name)]
    return ", ".join(f"{name} was {stored.get(name)}, is {setting.get(name)}" for name in sorted(names))
