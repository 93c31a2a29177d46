"""`rolloutpipe certify` on the session's servers: a certificate, and a configuration that gets none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpipe_core.config.connections import Connections
from rolloutpipe_core.ledger.runs import list_runs
from rolloutpipe_core.store.objects import ObjectStore

from .conftest import SMALL, merged

RANDOM_VERIFIER = """
import random
from rolloutpipe_core.rewards.score import Score

def verify(prompt, response):
    return Score(random.random())
"""


class Certify:
    """The command in a folder of its own."""

    def __init__(self, folder: Path, run: str, connections: Connections, store: ObjectStore) -> None:
        self.folder, self.run, self.connections, self.store = folder, run, connections, store

    def __call__(self, *options: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        """Under two schedules, with one worker."""
        (self.folder / "run.yaml").write_text(yaml.safe_dump(merged(SMALL, {"run": self.run, **changes})))
        command = [sys.executable, "-c", "from rolloutpipe_core.cli.main import main; main()", "certify", "run.yaml"]
        two = ["--workers", "1", "--schedule", "serial", "--schedule", "stream"]
        return subprocess.run(
            [*command, *two, *options],
            cwd=self.folder,
            env={**os.environ, **self.connections.environment(), "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=400,
        )

    @property
    def certificate(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "certificate.json").read_text())
        return content

    def left(self, run: str) -> tuple[bool, bool]:
        """Whether objects of the run are in the store, and keys in Redis."""
        client = self.connections.redis.client()
        return any(self.store.list(f"runs/{run}/")), run in list_runs(client, 10)


@pytest.fixture
def certify(tmp_path: Path, run_name: str, connections: Connections, object_store: ObjectStore) -> Certify:
    return Certify(tmp_path, run_name, connections, object_store)


def test_a_certificate(certify: Certify) -> None:
    done = certify("--rounds", "1", schedule={"order": "submission"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{certify.run}: certified to the bit, every round" in done.stdout
    content = certify.certificate
    assert (content["certified"], content["compared"], content["promise"]) == (True, "to the bit", "every round")
    assert (content["config"]["deterministic"], content["weights_moved"]) == (True, True)
    serial, stream = content["runs"]
    assert (serial["schedule"], stream["schedule"]) == ("serial", "stream")
    for hashes, count in (("samples", 1), ("weights", 2), ("optimizer_states", 1)):
        assert serial[hashes] == stream[hashes]
        assert len(serial[hashes]) == count
    assert [certify.left(run["run"]) for run in content["runs"]] == [(False, False)] * 2


def test_rewards_by_chance_are_not_certified(certify: Certify) -> None:
    (certify.folder / "by_chance.py").write_text(RANDOM_VERIFIER)
    done = certify("--tolerance", rewards={"verifier": "by_chance:verify"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT certified within rounding" in done.stdout
    content = certify.certificate
    assert (content["certified"], content["promise"]) == (False, "first round")
    first, second = content["runs"]
    assert first["difference"] is None
    where = {name: second["difference"][name] for name in ("round", "what", "group", "sample")}
    assert where == {"round": 0, "what": "the reward", "group": "r000000-g0000", "sample": 0}
    assert [certify.left(run["run"]) for run in content["runs"]] == [(True, True)] * 2


def test_bad_input_runs_nothing(certify: Certify) -> None:
    done = certify("--output", "nowhere/certificate.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cannot write the certificate; given: nowhere/certificate.json")
