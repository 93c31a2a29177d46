"""Which runs are made of a configuration, and what is refused before the first one starts."""

from pathlib import Path

import pytest

from rolloutpipe_core.certify.trials import plan_trials
from rolloutpipe_core.certify.variants import SCHEDULES, Schedule, Variant, promise, run_name
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.errors import BadInput

FORCED = ["deterministic=true", "schedule.rounds=2"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("run: walk\nmodel: {path: 'builtin:pointer-walk'}\nschedule: {frontier_width: 3}\n")
    return path


def planned(file: Path, *overrides: str, kinds=(), workers="1,2"):
    return plan_trials(load_config(file, [*overrides, *FORCED]), file, overrides, kinds, workers)


def test_every_schedule_with_each_number_of_workers(file):
    trials = planned(file, "seed=7")
    assert [(trial.variant.workers, trial.variant.schedule) for trial in trials] == [
        (workers, schedule) for workers in (1, 2) for schedule in SCHEDULES
    ]
    for trial in trials:
        config = trial.config
        assert (config.schedule.kind, config.rollout_workers) == (trial.variant.schedule.kind, trial.variant.workers)
        assert trial.variant.schedule.frontier_mode in (None, config.schedule.frontier_mode)
        assert (config.deterministic, config.schedule.rounds, config.seed) == (True, 2, 7)
        assert config.schedule.frontier_width == 3
        assert load_config(file, trial.overrides) == config
    names = {trial.config.run for trial in trials}
    assert len(names) == 10
    assert not names & {trial.config.run for trial in planned(file)}, (
        "a certification never goes on with another's runs"
    )


def test_names():
    variant = Variant(Schedule("cgp+fgd", "hard"), 2)
    assert str(variant) == "cgp+fgd hard, 2 workers"
    assert run_name("walk", "3f9a", variant) == "walk-certify-3f9a-cgp-fgd-hard-2w"
    long = run_name("a" * 20 + "-" + "b" * 42, "3f9a", variant)
    assert long == "a" * 20 + "-" + "b" * 13 + "-certify-3f9a-cgp-fgd-hard-2w"
    assert len(long) == 63


@pytest.mark.parametrize(
    ("changes", "promised"),
    [
        ({"contract": "strict", "update_batch_size": 128}, "every round"),
        ({"update_batch_size": 128}, "every round"),  # one update a round by its sizes
        ({"order": "submission"}, "every round"),
        ({}, "first round"),
    ],
)
def test_the_promise(file, changes, promised):
    config = load_config(file, []).model_copy(update={"schedule": ScheduleConfig(**changes)})
    assert promise(config) == promised


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"kinds": ["fifo"]}, "no such schedule; given: fifo; expected: one of: cgp, cgp\\+fgd, serial, stream"),
        ({"workers": "1,x"}, "not numbers of rollout workers; given: '1,x'"),
        *(({"workers": text}, "not numbers of rollout workers") for text in ("0", "", "1,", "-1", "²", "9" * 5000)),
        ({"workers": "1,17"}, "given: '1,17'; expected: a form like 1,2, each at most groups_per_round = 16"),
        ({"kinds": ["serial"], "workers": "1"}, "nothing to compare; given: 1 run"),
    ],
)
def test_refusals(file, arguments, told):
    with pytest.raises(BadInput, match=told):
        planned(file, **arguments)


def test_a_schedule_that_cannot_run_is_refused(file):
    """`serial` has no frontier, so that the configuration itself is sound."""
    with pytest.raises(BadInput, match=r"schedule.frontier_width: F_w = 99 is wider than the round"):
        planned(file, "schedule.kind=serial", "schedule.frontier_width=99")
