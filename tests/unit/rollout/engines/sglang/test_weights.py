from __future__ import annotations

import json
from pathlib import Path

import pytest
from rolloutpipe_components.rollout.engines.sglang.model_facts import ModelFacts, read_facts
from rolloutpipe_components.rollout.engines.sglang.weights import Weights, check_files

from rolloutpipe_core.domain import WeightVersion
from rolloutpipe_core.errors import EngineFailure
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.directories import describe_directory


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    return Weights(WeightVersion(1, sha256_hex(describe_directory(tmp_path).to_bytes())), tmp_path)


def test_whole_files_pass(weights: Weights) -> None:
    check_files(weights)


def test_a_truncated_file_is_refused(weights: Weights) -> None:
    (weights.directory / "model.safetensors").write_bytes(b"x" * 99)
    with pytest.raises(EngineFailure, match=r"not what was published.*model.safetensors \(99 bytes\)"):
        check_files(weights)


def test_a_missing_file_and_a_missing_folder_are_refused(weights: Weights, tmp_path: Path) -> None:
    (weights.directory / "model.safetensors").unlink()
    with pytest.raises(EngineFailure, match="not what was published"):
        check_files(weights)
    with pytest.raises(EngineFailure, match="cannot be read"):
        check_files(Weights(weights.version, tmp_path / "gone"))


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_facts_of_a_model(tmp_path: Path) -> None:
    config = {"vocab_size": 58, "max_position_embeddings": 512, "eos_token_id": 1}
    write(tmp_path, config=config, generation_config={"eos_token_id": [1, 4]})
    assert read_facts(tmp_path) == ModelFacts(vocabulary=58, max_positions=512, eos_ids=frozenset({1, 4}))


def test_facts_of_a_model_with_a_text_part(tmp_path: Path) -> None:
    write(tmp_path, config={"text_config": {"vocab_size": 9, "eos_token_id": None}})
    assert read_facts(tmp_path) == ModelFacts(vocabulary=9, max_positions=None, eos_ids=frozenset())


def test_a_model_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match="cannot be read"):
        read_facts(tmp_path)
    with pytest.raises(EngineFailure, match="vocabulary"):
        read_facts(write(tmp_path, config={}))
    with pytest.raises(EngineFailure, match="JSON object"):
        read_facts(write(tmp_path, config=[]))
