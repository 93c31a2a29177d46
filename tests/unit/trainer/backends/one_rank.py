"""One rank of a test's trainers of several: `python one_rank.py FOLDER`, its place in the environment.

FOLDER/cases.json holds {name: {config, model, reference, steps, groups}}: every case gets a trainer of its own, in the
same processes, and leaves FOLDER/<name>-<rank>.json with the results of its steps.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rolloutpipe_components.trainer.backends.choice import make_backend
from rolloutpipe_components.trainer.ranks.collective import process_group
from rolloutpipe_components.trainer.ranks.place import Place
from rolloutpipe_components.trainer.trainer import Backend

from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import Group
from rolloutpipe_core.store.groups import decode_group

Steps = Sequence[Sequence[Any]]


def play(trainer: Backend, steps: Steps, groups: Sequence[Group], folder: Path) -> list[dict[str, Any]]:
    """Do the steps: ["round"], ["update", number, calls of groups], ["load" | "save" | "export", name in folder]."""
    results = []
    for do, *arguments in steps:
        if do == "round":
            trainer.begin_round()
        elif do == "update":
            number, calls = arguments
            trainer.begin_update(number)
            for call in calls:
                trainer.accumulate([groups[index] for index in call])
            results.append(asdict(trainer.step()))
        elif do == "load":
            trainer.load(folder / arguments[0])
        elif do == "save":
            trainer.save(folder / arguments[0])
        else:
            trainer.export_weights(folder / arguments[0])
    return results


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    cases = json.loads((folder / "cases.json").read_text())
    configs = {name: RunConfig.model_validate(case["config"]) for name, case in cases.items()}
    place = Place.read(os.environ, next(iter(configs.values())).trainer)
    assert place is not None
    with process_group(place, "cpu", 120):
        for name, case in cases.items():
            reference = case["reference"] and Path(case["reference"])
            trainer = make_backend(configs[name], Path(case["model"]), reference)
            groups = [decode_group((folder / group).read_bytes()) for group in case["groups"]]
            results = play(trainer, case["steps"], groups, folder)
            (folder / f"{name}-{place.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
