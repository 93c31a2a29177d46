"""Where the policy's starting weights lie."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rolloutpipe_core.errors import BadInput

POINTER_WALK = "builtin:pointer-walk"


def resolve_model(path: str) -> Path:
    """The folder of a Hugging Face causal LM. Raises BadInput when it holds none."""
    folder = _shipped_pointer_walk() if path == POINTER_WALK else Path(path).expanduser()
    lacking = [name for name in ("config.json", "*.safetensors") if not any(folder.glob(name))]
    if lacking:
        raise BadInput(
            "not a model folder",
            given=f"{folder} without {' and '.join(lacking)}",
            expected=f"a folder with config.json, *.safetensors and a tokenizer, or {POINTER_WALK}",
            remedy="set model.path",
        )
    return folder


def _shipped_pointer_walk() -> Path:
    spec = find_spec("rolloutpipe_components")
    if spec is None or not spec.submodule_search_locations:
        raise BadInput("the components are not installed", given=POINTER_WALK, remedy="install the whole wheel")
    return Path(spec.submodule_search_locations[0]) / "init_weights" / "pointer_walk_model"
