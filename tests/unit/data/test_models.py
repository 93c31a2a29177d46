import subprocess
import sys

import pytest

from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.errors import BadInput


def test_the_shipped_model_is_found():
    folder = resolve_model("builtin:pointer-walk")
    assert folder.name == "pointer_walk_model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


def test_the_shipped_model_is_found_without_torch():
    code = (
        "import sys; from rolloutpipe_core.data.models import resolve_model; resolve_model('builtin:pointer-walk');"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_folder_of_ones_own(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ((), "without config.json and *.safetensors"),
        (("config.json",), "without *.safetensors"),
        (("model.safetensors",), "without config.json"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(tmp_path, files, lacking):
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(BadInput, match="not a model folder") as caught:
        resolve_model(str(tmp_path))
    assert f"{tmp_path} {lacking}" in str(caught.value).replace("\\", "")
    assert "model.path" in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="not a model folder"):
        resolve_model(str(tmp_path / "absent"))
