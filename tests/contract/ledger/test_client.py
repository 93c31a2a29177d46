"""Calls of the ledger's scripts over a Redis that forgets them, restarts, loses answers, stays away or refuses us."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis import exceptions

from rolloutpipe_core.config.connections import RedisConnection
from rolloutpipe_core.domain import GroupState
from rolloutpipe_core.errors import BadInput, LedgerRefused, RedisUnavailable
from rolloutpipe_core.ledger.client import LedgerClient
from rolloutpipe_core.ledger.events import EngineNoted
from rolloutpipe_core.ledger.keys import RunKeys
from rolloutpipe_core.ledger.trainer import Drained
from rolloutpipe_core.local.process import ServerProcess, free_ports
from rolloutpipe_core.local.valkey import start_valkey

from .conftest import HandRun, K, LossyProxy


def test_scripts_that_the_server_forgot_are_loaded_again(hand: HandRun) -> None:
    for _ in range(2):
        hand.open()
        hand.client.redis.script_flush()
    lease = hand.admit(0)
    hand.client.redis.script_flush()
    hand.announce(lease)
    assert hand.reader.group(lease.group)["state"] == GroupState.QUEUED


def test_a_call_whose_answer_was_lost_is_made_again_and_changes_nothing_more(
    redis_client: redis.Redis, lossy_client: redis.Redis, proxy: LossyProxy, run_name: str
) -> None:
    """A round with every call of both services, undisturbed and with each call made twice: the same in every key."""
    undisturbed = HandRun.prepare(redis_client, run_name)
    calls = whole_round(undisturbed)
    proxy.lossy = True
    disturbed = HandRun.prepare(lossy_client, f"{run_name}-lossy")
    whole_round(disturbed)
    proxy.lossy = False
    assert proxy.lost > calls
    expected, found = undisturbed.snapshot(), disturbed.snapshot()
    assert found.keys() == expected.keys()
    for key in expected:
        assert found[key] == expected[key], key


def test_what_a_server_of_the_engine_did_is_noted_until_it_says_the_same_again(hand: HandRun) -> None:
    out, again = "out of service: killed", "serves v0 again"
    for server, what in (("a", out), ("a", out), ("b", out), ("a", again), ("b", out), ("a", out)):
        hand.rollout.note(server, what)
    noted = [event for event in hand.reader.events() if isinstance(event, EngineNoted)]
    assert [(note.server, note.what) for note in noted] == [("a", out), ("b", out), ("a", again), ("a", out)]
    assert {note.actor for note in noted} == {hand.rollout.worker}


def test_nothing_is_noted_in_a_redis_that_lost_the_run(hand: HandRun) -> None:
    hand.client.redis.delete(hand.client.keys.run, hand.client.keys.ledger)
    with pytest.raises(LedgerRefused, match="no such run"):
        hand.rollout.note("a", "out of service: killed")
    assert not hand.client.redis.exists(hand.client.keys.ledger)


def whole_round(hand: HandRun) -> int:
    """Every call that the services make in a round, and how many these are at least."""
    rollout, trainer = hand.rollout, hand.take_role()
    hand.open()
    assert rollout.give_up(hand.admit(0), "the engine broke") == GroupState.DEFERRED
    rollout.hand_back(hand.admit(1), "the worker stopped")
    rollout.note("server-a", "out of service: killed")
    rollout.note("server-a", "serves v0 again")
    for outcome in (GroupState.DEFERRED, GroupState.DEFERRED, GroupState.FAILED):
        assert rollout.give_up(hand.admit(2), "the engine broke") == outcome
    for index in (3, 1):
        lease = hand.admit(index)
        assert rollout.renew(0, [lease]) == []
        hand.announce(lease)
    damaged, second = hand.announced(trainer)
    assert trainer.reject(damaged, "altered object", 2)[0] in ("deferred", "ignored")
    hand.filter(3)
    hand.announce(hand.admit(0))
    *_, third, marker = trainer.read("0-0")
    assert isinstance(marker, Drained)
    trainer.assign(second.ref, 0, 0)
    trainer.unassign(0, [second.ref.group], "missing object")
    for place, entry in enumerate((third, second)):
        trainer.assign(entry.ref, 0, place)  # type: ignore[union-attr]
    trainer.seal(0, 0, 2, 2 * K, 20)
    trainer.stepped(0, 0, False, False, [(1, 2)], 0, {"loss": 0.5})
    trainer.trained(0, 1)
    ended = {index: hand.reader.group(f"r000000-g000{index}") for index in (2, 3)}
    reasons = {index: (GroupState(row["state"]), row["reason"]) for index, row in ended.items()}
    trainer.publish(hand.commit([[(0, 2), (1, 2)]], reasons), "object")
    trainer.stop("enough")
    return 38


def test_a_call_waits_for_a_redis_that_is_stopped_and_started_again(tmp_path: Path, run_name: str) -> None:
    """`on_wait` is told why, and '' when it is over; here it is what starts the server again."""
    password, (port,) = secrets.token_hex(8), free_ports(1)

    def start() -> ServerProcess:
        return start_valkey(tmp_path / "data", tmp_path / "log", password, die_with_parent=True, port=port)

    servers = [start()]
    told: list[str] = []

    def on_wait(reason: str) -> None:
        told.append(reason)
        if not servers[-1].is_running():
            servers.append(start())

    client = RedisConnection(nodes=(("127.0.0.1", port),), password=password).client()
    try:
        hand = HandRun.prepare(client, run_name)
        hand.open()
        patient = LedgerClient(client, run_name, 30, on_wait)
        first_run, _ = patient.server()
        servers[-1].stop()  # kill -9 may lose what was not yet written
        hand.rollout.client = patient
        hand.announce(hand.admit(0))
        assert patient.server()[0] != first_run
        assert hand.reader.group("r000000-g0000")["state"] == GroupState.QUEUED
    finally:
        for server in servers:
            server.kill()
    assert told[0].startswith("Redis (script admit): ")
    assert told[-1] == ""
    assert len(servers) == 2


def test_past_the_deadline_the_cause_and_the_remedy_are_named() -> None:
    (port,) = free_ports(1)
    client = LedgerClient(RedisConnection(nodes=(("127.0.0.1", port),)).client(), "walk", 0.2)
    with pytest.raises(RedisUnavailable, match="Connection refused") as caught:
        client.server_time_ms()
    error = caught.value
    assert error.what == "Redis stayed away for 0.2 s (TIME)"
    assert "redis_s" in error.expected
    assert "start Redis" in error.remedy
    assert error.exit_code == 6


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("reset"),
        exceptions.TimeoutError("no answer"),
        exceptions.BusyLoadingError("loading its data"),
        exceptions.ReadOnlyError("a replica"),
        exceptions.MasterDownError("MASTERDOWN"),
        exceptions.ClusterDownError("CLUSTERDOWN"),
        exceptions.SlotNotCoveredError("no node has the slot"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_failover_answers_is_waited_for(hand: HandRun, error: Exception) -> None:
    answers, told = [error, None], list[str]()

    def operation() -> str:
        answer = answers.pop(0)
        if answer:
            raise answer
        return "done"

    assert LedgerClient(hand.client.redis, "walk", 10, told.append).patiently(operation, "PING") == "done"
    assert told == [f"Redis (PING): {error}", ""]


@pytest.mark.parametrize("password", ["not-the-password", None])
def test_wrong_credentials_are_the_users_to_mend_and_are_not_waited_for(
    redis_server: RedisConnection, password: str | None
) -> None:
    told: list[str] = []
    client = LedgerClient(replace(redis_server, password=password).client(), "walk", 60, told.append)
    with pytest.raises(BadInput) as caught:
        client.server_time_ms()
    line = str(caught.value)
    assert "\n" not in line
    assert "ROLLOUTPIPE_REDIS_" in line
    assert "not-the-password" not in line
    assert caught.value.exit_code == 2
    assert told == []


def test_a_user_whose_rights_do_not_reach_is_told_so(redis_server: RedisConnection, redis_client: redis.Redis) -> None:
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "-time", "+client")
    try:
        client = replace(redis_server, username="reader", password="secret").client()
        with pytest.raises(BadInput, match="permission") as caught:
            LedgerClient(client, "walk", 60).server_time_ms()
        assert "secret" not in str(caught.value)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")


def test_a_foreign_value_under_our_key_is_named(hand: HandRun) -> None:
    hand.client.redis.set(RunKeys(hand.client.keys.name).round(0), "mine")
    with pytest.raises(LedgerRefused, match=r"script open_round.*WRONGTYPE"):
        hand.open()
