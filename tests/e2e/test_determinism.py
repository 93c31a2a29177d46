"""The schedule changes only time: real runs under every schedule, with one and with two rollout workers.

Deterministic, all of them hold the same samples token for token, and where every update holds the same groups (one
update a round, or groups in submission order) the same weights and optimizer's state to the bit. They are compared as
`rolloutpipe certify` compares them.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from rolloutpipe_core.certify.certification import Certification
from rolloutpipe_core.certify.evidence import read_evidence
from rolloutpipe_core.certify.variants import Variant, all_variants, settings
from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.config.load import load_config
from rolloutpipe_core.config.models import RunConfig
from rolloutpipe_core.domain import group_id
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

# Groups of two samples, so that many have equal rewards; one round, for version 0 samples the same everywhere.
REFILL = {"zero_variance": "refill", "samples_per_group": 2, "rounds": 1}
REFILLED: dict[str, dict[str, Any]] = {
    "strict": {**REFILL, "contract": "strict", "update_batch_size": R * 2},
    "round, submission": {**REFILL, "order": "submission", "update_batch_size": 8},  # the last update is partial
    "round, completion": {**REFILL, "order": "completion", "update_batch_size": 8},
}

Train = Callable[[Variant, RunConfig], str]


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
def train(tmp_path_factory: pytest.TempPathFactory, connections: Connections) -> Iterator[Train]:
    """`train(variant, config)`: the name of a run of its own, which is complete."""
    folder = tmp_path_factory.mktemp("determinism")
    services = Services(folder, connections)

    def run(variant: Variant, config: RunConfig) -> str:
        name = f"test-{secrets.token_hex(6)}"
        file = folder / f"{name}.yaml"
        file.write_text(config.model_dump_json())
        made = load_config(file, settings(variant, name, config.schedule.rounds, config.deterministic))
        file.write_text(made.model_dump_json())
        services.serve(file, variant.workers)
        return name

    yield run
    services.close()


def configuration(
    contract: str, deterministic: bool = True, contracts: dict[str, dict[str, Any]] = CONTRACTS
) -> RunConfig:
    schedule = {"groups_per_round": R, "samples_per_group": K, **contracts[contract]}
    return RunConfig.model_validate(merged(SMALL, {"run": "any", "deterministic": deterministic, "schedule": schedule}))


@pytest.fixture(scope="module")
def certifications(train: Train, object_store: ObjectStore) -> dict[str, Certification]:
    """One for each contract, each with its serial run with one worker."""
    made = {contract: Certification(configuration(contract), object_store) for contract in CONTRACTS}
    for certification in made.values():
        certification.add(BASELINE, train(BASELINE, certification.config), 0.0)
    return made


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("variant", OTHERS, ids=str)
def test_every_schedule_gives_the_same(
    variant: Variant, contract: str, train: Train, certifications: dict[str, Certification]
) -> None:
    certification = certifications[contract]
    result = certification.add(variant, train(variant, certification.config), 0.0)
    assert result.difference is None
    first = certification.results[0]
    assert result.samples[0] == first.samples[0]
    if contract != "round, completion":
        assert (result.samples, result.weights, result.optimizer_states) == (
            first.samples,
            first.weights,
            first.optimizer_states,
        )


def test_there_is_something_to_compare(certifications: dict[str, Certification], object_store: ObjectStore) -> None:
    results = {contract: certification.results[0] for contract, certification in certifications.items()}
    for result in results.values():
        rounds = read_evidence(object_store, result.run).rounds
        assert [[len(group.samples) for group in round.groups] for round in rounds] == [[K] * R] * len(rounds)
        assert len(set(result.weights)) == len(rounds) + 1
    assert len({result.samples[0] for result in results.values()}) == 1, "version 0 samples the same everywhere"
    # `serial` takes groups by index in either order.
    assert results["round, completion"].weights == results["round, submission"].weights[:2]
    assert results["strict"].weights[1] != results["round, submission"].weights[1]


def test_a_refilled_round_keeps_the_same_groups_under_every_schedule(train: Train, object_store: ObjectStore) -> None:
    """The smallest prefix of the prompts' sequence with R groups of mixed rewards, whatever was finished first."""
    made = {contract: Certification(configuration(contract, contracts=REFILLED), object_store) for contract in REFILLED}
    variants = [(contract, BASELINE) for contract in REFILLED] + list(zip(cycle(REFILLED), OTHERS, strict=False))
    for contract, variant in variants:
        result = made[contract].add(variant, train(variant, made[contract].config), 0.0)
        assert result.difference is None, f"{variant}, {contract}"
    results = [result for certification in made.values() for result in certification.results]
    assert len({result.samples for result in results}) == 1, "the same groups, token for token"
    for contract, certification in made.items():
        weights = {result.weights for result in certification.results}
        assert len(weights) == 1 or contract == "round, completion"
    (round,) = read_evidence(object_store, results[0].run).rounds
    kept, ended = [group.id for group in round.groups], set(round.ended)
    assert len(kept) == R
    assert ended
    assert sorted([*kept, *ended]) == [group_id(0, index) for index in range(R + len(ended))]
    assert max(kept) > max(ended), "the smallest such prefix"


def test_without_it_runs_differ_by_rounding_alone(train: Train, object_store: ObjectStore) -> None:
    """Tolerances and their reasons: rolloutpipe_core/certify/tolerance.py."""
    certification = Certification(configuration("strict", deterministic=False), object_store)
    for variant in (BASELINE, OTHERS[1], OTHERS[-1]):
        result = certification.add(variant, train(variant, certification.config), 0.0)
        assert result.difference is None
        assert result.closeness is not None
        assert result.closeness.samples == R * K
        assert result.closeness.parted or result.closeness.movement is not None
