"""From the config's `data` section to the prompts."""

from __future__ import annotations

from rolloutpipe_core.config.models import DataConfig
from rolloutpipe_core.data.jsonl import jsonl_prompts
from rolloutpipe_core.data.pointer_walk import DEFAULT_ROWS, pointer_walk_prompts
from rolloutpipe_core.data.prompts import PromptSet


def load_prompts(config: DataConfig) -> PromptSet:
    """The run's data set. Raises BadInput when it cannot be read."""
    if config.source == "jsonl":
        return jsonl_prompts(config)
    return pointer_walk_prompts(config.seed, config.rows or DEFAULT_ROWS)
