"""What the engine must know of a model before it sends anything: read from its folder's JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutpipe_core.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class ModelFacts:
    vocabulary: int  # ids are 0 to vocabulary - 1; a server dies of one outside
    max_positions: int | None  # longest sequence in tokens
    eos_ids: frozenset[int]


def read_facts(directory: Path) -> ModelFacts:
    """Raises EngineFailure when the folder does not say."""
    config = _read(directory / "config.json")
    text = config.get("text_config", config)
    generation = directory / "generation_config.json"
    eos: set[int] = set()
    for section in (text, _read(generation) if generation.is_file() else {}):
        given = section.get("eos_token_id")
        eos.update([given] if isinstance(given, int) else given or [])
    if not isinstance(text.get("vocab_size"), int):
        raise EngineFailure("the model does not say how large its vocabulary is", given=str(directory / "config.json"))
    return ModelFacts(text["vocab_size"], text.get("max_position_embeddings"), frozenset(eos))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise EngineFailure("a file of the model cannot be read", given=f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise EngineFailure("a file of the model is not what it should be", given=str(path), expected="a JSON object")
    return found
