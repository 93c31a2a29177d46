"""The schedule changes only time: real runs under every schedule, with one and with two rollout workers.

Deterministic, all of them hold the same samples token for token, and where every update holds the same groups (one
update a round, or groups in submission order) the same weights and optimizer's state to the bit.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpipe_core.certify.difference import first_difference
from rolloutpipe_core.certify.evidence import RunEvidence, read_evidence
from rolloutpipe_core.certify.variants import Promise, Variant, all_variants
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.store.objects import ObjectStore

from .conftest import SMALL, merged

SERVICES = {"trainer": "trainer", "rollout-0": "rollout", "rollout-1": "rollout"}
BASELINE, *OTHERS = all_variants(kinds=(), workers=(1, 2))
R, K = 6, 4
CONTRACTS: dict[str, dict[str, Any]] = {
    "strict": {"contract": "strict", "update_batch_size": R * K},
    "round, submission": {"order": "submission", "update_batch_size": 2 * K},
    "round, completion": {"order": "completion", "update_batch_size": 2 * K, "rounds": 1},
}

Train = Callable[..., RunEvidence]


class Services:
    """A trainer and two rollout workers that serve one run after another."""

    def __init__(self, folder: Path, connections: Connections) -> None:
        self.folder = folder
        environment = {**os.environ, **connections.environment(), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        self._processes = {name: self._start(name, environment) for name in SERVICES}

    def _start(self, name: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("in_turn.py")), SERVICES[name], name]
        with self._log(name).open("wb") as log:
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def serve(self, file: Path, workers: int) -> None:
        """One run to its end, by the trainer and so many workers at once."""
        names = ["trainer", *(f"rollout-{number}" for number in range(workers))]
        for name in names:
            pipe = self._processes[name].stdin
            assert pipe is not None
            pipe.write(f"{file}\n")
            pipe.flush()
        for name in names:
            answers = self._processes[name].stdout
            assert answers is not None
            assert answers.readline() == "0\n", self._log(name).read_text()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def train(
    tmp_path_factory: pytest.TempPathFactory, connections: Connections, object_store: ObjectStore
) -> Iterator[Train]:
    """`train(variant, contract)`: what a run of its own left behind."""
    folder = tmp_path_factory.mktemp("determinism")
    services = Services(folder, connections)

    def run(variant: Variant, contract: str, deterministic: bool = True) -> RunEvidence:
        name, (kind, mode) = f"test-{secrets.token_hex(6)}", variant.schedule
        schedule = {"groups_per_round": R, "samples_per_group": K, "kind": kind, **CONTRACTS[contract]}
        if mode is not None:
            schedule["frontier_mode"] = mode
        head = {"run": name, "deterministic": deterministic, "rollout_workers": variant.workers}
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(merged(SMALL, {**head, "schedule": schedule})))
        services.serve(file, variant.workers)
        return read_evidence(object_store, name)

    yield run
    services.close()


@pytest.fixture(scope="module")
def baselines(train: Train) -> dict[str, RunEvidence]:
    """The serial run with one worker, for each contract."""
    return {contract: train(BASELINE, contract) for contract in CONTRACTS}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("variant", OTHERS, ids=str)
def test_every_schedule_gives_the_same(
    variant: Variant, contract: str, train: Train, baselines: dict[str, RunEvidence]
) -> None:
    promise: Promise = "first round" if contract == "round, completion" else "every round"
    assert first_difference(baselines[contract], train(variant, contract), promise) is None


def test_there_is_something_to_compare(baselines: dict[str, RunEvidence]) -> None:
    for run in baselines.values():
        assert [len(round.groups) for round in run.rounds] == [R] * len(run.rounds)
        versions = [run.genesis, *(round.weights for round in run.rounds)]
        assert len(set(versions)) == len(versions)
    rounds = [run.rounds[0] for run in baselines.values()]
    assert len({round.samples_sha for round in rounds}) == 1, "version 0 gives the same samples under every contract"
    strict, *by_index = (round.weights for round in rounds)  # `serial` takes groups by index in either order
    assert by_index == [by_index[0]] * 2 != [strict] * 2
