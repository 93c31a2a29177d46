from __future__ import annotations

from rolloutpipe_core.cli.names import next_name
from rolloutpipe_core.config.identity import config_sha
from rolloutpipe_core.config.models import ModelConfig, RunConfig, ScheduleConfig

CONFIG = RunConfig(run="walk", model=ModelConfig(path="m"), schedule=ScheduleConfig(rounds=10))


def known(name: str, version: int, state: str = "active", config: RunConfig = CONFIG) -> dict[str, dict[str, str]]:
    sha = config_sha(config.model_copy(update={"run": name}))
    return {name: {"state": state, "version": str(version), "config_sha": sha}}


def test_the_first_run_has_the_plain_name() -> None:
    assert next_name(CONFIG, {}) == "walk"
    assert next_name(CONFIG, known("walker", 3) | known("walk-x", 3)) == "walk"


def test_an_unfinished_run_goes_on() -> None:
    assert next_name(CONFIG, known("walk", 9)) == "walk"
    assert next_name(CONFIG, known("walk", 10) | known("walk-2", 0)) == "walk-2"


def test_a_finished_or_stopped_run_is_followed_by_a_new_one() -> None:
    assert next_name(CONFIG, known("walk", 10)) == "walk-2"
    assert next_name(CONFIG, known("walk", 10) | known("walk-2", 10)) == "walk-3"
    assert next_name(CONFIG, known("walk", 3, state="stopped")) == "walk-2"


def test_numbers_are_compared_as_numbers() -> None:
    runs = known("walk", 10) | known("walk-9", 10) | known("walk-10", 10)
    assert next_name(CONFIG, runs) == "walk-11"


def test_another_configuration_is_another_run() -> None:
    other = CONFIG.model_copy(update={"seed": 1})
    assert next_name(other, known("walk", 3)) == "walk-2"
