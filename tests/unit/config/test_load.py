from __future__ import annotations

from pathlib import Path

import pytest

from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.errors import BadInput

SMALL = "run: walk\nmodel:\n  path: builtin:pointer-walk\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def refusal(path: Path, *overrides: str) -> list[str]:
    """The lines of the refusal, the file's path shortened."""
    with pytest.raises(BadInput) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(path), "FILE").splitlines()


def test_defaults_and_values(write) -> None:
    config = load_config(write(SMALL + "optimizer:\n  learning_rate: 3e-4\n"))
    assert (config.run, config.schedule.groups_per_update, config.optimizer.learning_rate) == ("walk", 2, 3e-4)


def test_set_reads_yaml_and_makes_sections(write) -> None:
    overrides = ["schedule.rounds=7", "sampling.stop_ids=[1, 2]", "data.system_prompt=", "optimizer.learning_rate=1e-5"]
    config = load_config(write(SMALL), overrides)
    assert (config.schedule.rounds, config.sampling.stop_ids, config.data.system_prompt) == (7, (1, 2), None)
    assert config.optimizer.learning_rate == 1e-5


def test_every_problem_has_its_line_with_key_given_and_expected(write) -> None:
    lines = refusal(write("run: walk\nschedule:\n  rounds: many\n  contract: loose\noptimizer: {betas: [0.9, 2]}\n"))
    assert lines == [
        "FILE: model: missing; expected: The policy's starting weights.",
        "FILE: schedule.contract; given: 'loose'; expected: 'round' or 'strict' "
        "(`round`: R/U updates on one version; `strict`: one optimizer step a version (needs U = R).)",
        "FILE: schedule.rounds; given: 'many'; expected: integer, unable to parse string as an integer "
        "(Rounds of the whole run; may be raised when a run is resumed.)",
        "FILE: optimizer.betas.1; given: 2; expected: less than 1 (AdamW's two decay rates.)",
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("schedule.rouns", "did you mean schedule.rounds?"),
        ("rounds", "did you mean schedule.rounds?"),
        ("schedul.kind", "did you mean schedule?"),
        ("loss.klcoef", "did you mean loss.kl_coefficient?"),
        ("model.zzz", "take one of: model.path, model.dtype, model.device"),
    ],
)
def test_an_unknown_key_names_the_nearest(write, key: str, nearest: str) -> None:
    (line,) = refusal(write(SMALL), f"{key}=1")
    where = key if not key.startswith("schedul.") else "schedul"
    assert line.endswith(f"{where}: unknown key; do: {nearest}")


def test_an_override_is_named_as_it_was_given(write) -> None:
    (line,) = refusal(write(SMALL), "schedule.rounds=0")
    assert line.startswith("--set schedule.rounds=0: schedule.rounds; given: 0; expected: greater than 0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SMALL + "run: again\n", "FILE:4: not valid YAML: the key 'run' is given twice"),
        ("run: [\n", "FILE:2: not valid YAML: expected the node content, but found '<stream end>'"),
        ("- run\n", "FILE: not a configuration; given: list; expected: a mapping of keys"),
        ("", "FILE: not a configuration; given: NoneType; expected: a mapping of keys"),
        ("run: !!python/object:os.system x\n", "FILE:1: not valid YAML: could not determine a constructor for the tag"),
        ("run: 2026-13-45\n", "FILE: not valid YAML: month must be in 1..12"),
        ("? [a, b]\n: 1\n", "FILE:1: not valid YAML: found unhashable key"),
    ],
)
def test_yaml_that_is_not_ours(write, text: str, problem: str) -> None:
    (line,) = refusal(write(text))
    assert line.startswith(problem)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("schedule.rounds", "not a setting; given: --set schedule.rounds; expected: --set section.key=value"),
        ("schedule..rounds=1", "not a setting; given: --set schedule..rounds=1"),
        ("run.name=x", "--set run.name=x: run is not a section; given: 'walk'"),
        ("run=[", "--set run=[:1: not valid YAML"),
    ],
)
def test_bad_overrides(write, override: str, problem: str) -> None:
    (line,) = refusal(write(SMALL), override)
    assert line.startswith(problem)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path / "none.yaml")
    assert line.startswith("no such config")
    (line,) = refusal(tmp_path)
    assert line.startswith("cannot read the config")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    (line,) = refusal(tmp_path / "bytes.yaml")
    assert "UTF-8" in line


def test_yaml_nested_too_deeply(write) -> None:
    deep = "[" * 3000
    assert refusal(write(deep)) == ["FILE: nested too deeply"]
    assert refusal(write(SMALL), f"run={deep}") == [f"--set run={deep}: nested too deeply"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "xpu:0"])
def test_devices(write, device: str) -> None:
    assert load_config(write(SMALL), [f"model.device={device}"]).model.device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", "meta"])
def test_what_is_no_device(write, device: str) -> None:
    assert refusal(write(SMALL), f"model.device='{device}'") == [
        f"--set model.device='{device}': model.device; given: '{device}'; expected: Torch device of both services: "
        "`cpu`, `cuda`, `mps` or `xpu`; one of several by its number, as `cuda:1`."
    ]


def test_what_does_not_fit_together_is_refused(write) -> None:
    (line,) = refusal(write(SMALL), "schedule.update_batch_size=12")
    assert line == (
        "FILE: schedule.update_batch_size: B = 12 is not a multiple of K = 8, and an update takes whole groups; "
        "do: set it to 8 or 16"
    )


def test_not_a_number_is_no_number(write) -> None:
    (line,) = refusal(write(SMALL), "optimizer.learning_rate=.inf")
    assert "expected: a finite number" in line or "expected: finite number" in line
