"""The commands that look back, over a run whose first rounds are archived and forgotten by Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from rolloutpipe_core.cli.main import app
from rolloutpipe_core.config.connections import Connections, S3Connection
from rolloutpipe_core.observe.measures import all_round_metrics
from rolloutpipe_core.observe.timeline import Timelines
from rolloutpipe_core.preparation import register_run

from ..ledger.archived import ROUND, START, Archived

NO_STORE = S3Connection("http://127.0.0.1:1", "here", "key", "secret")
Ask = Callable[..., Any]


@pytest.fixture
def ask(connections: Connections, run: Archived) -> Ask:
    environment = dict(connections.environment())
    return lambda *arguments: CliRunner().invoke(app, arguments, env=environment)


@pytest.fixture
def run(connections: Connections, run_name: str, object_store: Any) -> Archived:
    """Four rounds, of which the last is in Redis."""
    client: redis.Redis = connections.redis.client()
    run = Archived(client, run_name, object_store)
    run.publish_rounds(4)
    run.archivist().tend(3)
    return run


def test_why(ask: Ask, run: Archived) -> None:
    for round in (0, 3):
        told = ask("why", f"r00000{round}-g0001", "--run", run.keys.name)
        assert told.exit_code == 0, told.output
        assert "was trained, with the first attempt" in told.stdout
        assert f"round {round} is published" in told.stdout


def test_timeline(ask: Ask, run: Archived) -> None:
    periods = [metrics.round_period_s for metrics in all_round_metrics(Timelines(run.reader.events()).rounds())]
    for arguments, rounds in (
        ((), [3]),
        (("--round", "1"), [1]),
        (("--last", "3"), [1, 2, 3]),
        (("--round", "2", "--last", "9"), [0, 1, 2]),
    ):
        told = json.loads(ask("timeline", run.keys.name, *arguments, "--json").stdout)
        assert [pair["metrics"]["round"] for pair in told] == rounds
        assert [pair["metrics"]["round_period_s"] for pair in told] == [periods[round] for round in rounds]
        assert [len(pair["timeline"]["groups"]) for pair in told] == [4] * len(rounds)


def test_audit(ask: Ask, run: Archived) -> None:
    told = json.loads(ask("audit", run.keys.name, "--bucket", run.store.bucket, "--json").stdout)
    assert (told["events"], told["rounds_in_ledger"]) == (START + 4 * ROUND, 4)
    assert {finding["check"] for finding in told["findings"]} == {"object-missing", "weights-missing"}


def test_what_redis_has_forgotten(ask: Ask, run: Archived) -> None:
    name = run.keys.name
    told = ask("groups", name, "--round", "1")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"error: round 1 of run {name} is archived: Redis no longer has its groups; do: `rolloutpipe timeline {name}"
        f" --round 1` shows it, `rolloutpipe why GROUP --run {name}` one group\n"
    )
    told = ask("show", "r000001-g0002", "--run", name)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"error: round 1 of run {name} is archived: Redis no longer has its groups' present state;"
        f" given: r000001-g0002; do: `rolloutpipe why r000001-g0002 --run {name}` tells its history\n"
    )
    for command in ("groups", "timeline"):
        told = ask(command, name, "--round", "4")
        expected = f"error: run {name} has no such round; given: 4; expected: a round from 0 to 3\n"
        assert (told.exit_code, told.stderr) == (2, expected)


def test_more_rounds_than_any_run_has(ask: Ask, run: Archived) -> None:
    told = ask("timeline", run.keys.name, "--round", "3", "--last", f"{10**15}", "--json")
    assert [pair["metrics"]["round"] for pair in json.loads(told.stdout)] == [0, 1, 2, 3]
    told = ask("timeline", run.keys.name, "--round", f"{10**15}", "--last", f"{10**15}")
    expected = f"error: run {run.keys.name} has no such round; given: {10**15}; expected: a round from 0 to 3\n"
    assert (told.exit_code, told.stderr) == (2, expected)


def test_a_redis_that_was_emptied_and_restored(ask: Ask, run: Archived) -> None:
    """No round is open yet: the newest one that anybody knows of is the archive's last."""
    run.redis.delete(*run.redis.scan_iter(f"{run.keys.prefix}*"))
    register_run(run.hand.client, run.hand.head, "trainer")
    run.trainer = run.take_role()
    run.archivist().reconcile()
    name = run.keys.name
    told = json.loads(ask("timeline", name, "--json").stdout)
    assert [pair["metrics"]["round"] for pair in told] == [2]
    for command in (["status", name], ["groups", name], ["audit", name, "--bucket", run.store.bucket], ["pins", name]):
        told = ask(*command)
        assert told.exception is None or isinstance(told.exception, SystemExit), command
    for command in ("timeline", "groups"):
        told = ask(command, name, "--round", "3")
        assert (told.exit_code, told.stderr.partition(";")[0]) == (2, f"error: run {name} has no such round")


def test_what_is_in_redis_needs_no_store(run: Archived, connections: Connections) -> None:
    run.publish_round()  # the newest timeline begins with the publishing of the round before
    environment = dict(replace(connections, s3=NO_STORE).environment())
    for command in ("timeline", "groups", "status"):
        assert CliRunner().invoke(app, [command, run.keys.name], env=environment).exit_code == 0
