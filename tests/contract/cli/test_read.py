"""Commands that look at a run, asked for what is not there; on a real Redis."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from rolloutpipe_core.cli.main import app
from rolloutpipe_core.config.connections import Connections, RedisConnection, S3Connection
from rolloutpipe_core.config.models import ScheduleConfig
from rolloutpipe_core.domain import group_id
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.reader import LedgerReader
from rolloutpipe_core.ledger.rollout import Cohort, RolloutLedger
from rolloutpipe_core.preparation import register_run
from rolloutpipe_core.store.commits import Genesis, Link

GROUP = group_id(0, 0)
NO_STORE = S3Connection("http://127.0.0.1:1", "here", "key", "secret")
Ask = Callable[..., Any]


@pytest.fixture
def ask(valkey: RedisConnection, run_name: str) -> Iterator[Ask]:
    """Of a run whose round 0 has one group, which a worker has admitted."""
    client = valkey.client()
    ledger = LedgerClient(client, run_name, 10)
    genesis = Genesis(run=run_name, lineage=1, weights_sha="a" * 64, data_fingerprint="data", config_sha="c" * 64)
    head = Link(genesis.key, "0" * 64, genesis)
    register_run(ledger, head, "worker")
    rollout = RolloutLedger(ledger, "worker", 3600, 3)
    schedule = ScheduleConfig(groups_per_round=1, samples_per_group=2, update_batch_size=2, frontier_width=1)
    rollout.open_round(
        Cohort(0, 1, head.commit.version, (GROUP,), ("p0",), "c" * 64, "data", cursor=0, cursor_end=1), schedule
    )
    rollout.admit(GROUP)
    environment = dict(Connections(valkey, NO_STORE).environment())
    yield lambda *arguments: CliRunner().invoke(app, arguments, env=environment)
    client.close()


@pytest.mark.parametrize("command", ["groups", "timeline"])
def test_a_round_that_is_not_there(ask: Ask, run_name: str, command: str) -> None:
    result = ask(command, run_name, "--round", "999")
    told = f"error: run {run_name} has no such round; given: 999; expected: a round from 0 to 0\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", told)
    assert ask(command, run_name, "--round", "0").exit_code == 0


def test_show_keeps_the_fencing_token_to_itself(ask: Ask, run_name: str, valkey: RedisConnection) -> None:
    nonce = LedgerReader(valkey.client(), run_name).group(GROUP)["nonce"]
    told = ask("show", GROUP, "--run", run_name, "--json")
    assert json.loads(told.stdout)["state"] == "admitted"
    assert nonce not in told.output + ask("show", GROUP, "--run", run_name).output


def test_metrics_at_an_address_in_use(ask: Ask, run_name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = ask("metrics", run_name, "--port", str(port))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot serve the metrics; given: 127.0.0.1:{port}; expected: a free")


def test_a_picture_into_a_folder_that_is_not_there(ask: Ask, run_name: str) -> None:
    result = ask("timeline", run_name, "--svg", "/no/such/folder/x.svg")
    assert (result.exit_code, result.stderr) == (2, "error: No such file or directory: /no/such/folder/x.svg\n")
