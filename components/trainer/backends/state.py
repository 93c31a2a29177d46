"""The small part of a checkpoint, the same for every backend: `state.json`, {"format": 1, "updates": 12}."""

from __future__ import annotations

import json
from pathlib import Path

from rolloutpipe_core.errors import BadInput

STATE_FORMAT = 1


def write_updates(directory: Path, updates: int) -> None:
    """`updates`: of the run so far, skipped ones included."""
    (directory / "state.json").write_text(json.dumps({"format": STATE_FORMAT, "updates": updates}))


def read_updates(directory: Path) -> int:
    """Raises BadInput for a folder without a checkpoint, or with one of another format."""
    try:
        state = json.loads((directory / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise BadInput("no trainer checkpoint", given=f"{directory}: {error}") from error
    if state["format"] != STATE_FORMAT:
        raise BadInput("a checkpoint of another format", given=str(state["format"]), expected=str(STATE_FORMAT))
    return int(state["updates"])
