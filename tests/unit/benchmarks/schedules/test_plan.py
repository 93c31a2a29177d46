from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from rolloutpipe_benchmarks.schedules.loop import rotated
from rolloutpipe_benchmarks.schedules.plan import GROUPS, QUICK_GROUPS, REGIMES, cells, configuration, overrides
from rolloutpipe_benchmarks.schedules.processes import Cores

from rolloutpipe_core.config.load import load_config

NAMES = [regime.name for regime in REGIMES]


def test_every_schedule_in_every_regime_and_the_sweep_in_one() -> None:
    count = Counter((cell.regime, cell.groups_per_update) for cell in cells(GROUPS, NAMES, quick=False))
    assert count == {
        ("rollout-bound", 2): 5,
        ("rollout-bound", GROUPS): 4,
        ("balanced", 2): 7,  # hard and fill at two widths each
        ("balanced", GROUPS): 4,
        ("trainer-bound", 2): 5,
        ("trainer-bound", GROUPS): 4,
    }
    assert len(cells(QUICK_GROUPS, NAMES, quick=True)) == 27


def test_every_cell_is_a_valid_run_of_one_round(tmp_path: Path) -> None:
    for regime in REGIMES:
        file = tmp_path / f"{regime.name}.json"
        file.write_text(json.dumps(configuration(regime, "model", "prompts.jsonl", GROUPS)))
        for cell in cells(GROUPS, [regime.name], quick=False):
            config = load_config(file, overrides(cell, f"{cell.id}-r0"))
            assert config.schedule.rounds == 1
            assert config.schedule.groups_per_update == cell.groups_per_update
            assert cell.schedule in (config.schedule.kind, f"{config.schedule.kind} {config.schedule.frontier_mode}")
            assert cell.frontier_width in (None, config.schedule.frontier_width)


def test_services_have_a_core_each_and_the_servers_a_third_if_there_is_one() -> None:
    assert Cores.choose({0, 1}) == Cores(rollout=0, trainer=1, servers=0)
    assert Cores.choose({3, 5, 7, 9}) == Cores(rollout=3, trainer=5, servers=7)
    assert Cores.choose({4}) == Cores(rollout=4, trainer=4, servers=4)


def test_each_repeat_begins_with_another_cell() -> None:
    planned = cells(GROUPS, ["rollout-bound"], quick=False)
    assert rotated(planned, 3) == [*planned[3:], *planned[:3]]
