"""Pins on a real Redis, and the commands that set them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from rolloutpipe_core.cli.main import app
from rolloutpipe_core.config.connections import Connections, RedisConnection, S3Connection
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.retention.pinning import pin_version

from .conftest import HandRun

HOUR_MS = 3600 * 1000


def test_a_pin_is_plain_in_redis_and_ends_by_the_servers_clock(hand: HandRun) -> None:
    now_ms = hand.reader.server_time_ms()
    pin = hand.pins.pin(hand.version(0), "evaluation of math", 3600)
    rows: Any = hand.client.redis.zrange(hand.client.keys.pins, 0, -1, withscores=True)
    assert rows == [(f"0 {hand.version(0).sha[:16]} evaluation of math", pin.until_ms)]
    assert HOUR_MS <= pin.until_ms - now_ms <= HOUR_MS + 60_000
    assert hand.pins.pins() == [pin]


def test_the_same_reason_moves_the_end_and_another_is_another_pin(hand: HandRun) -> None:
    hand.pins.pin(hand.version(0), "export", 60)
    hand.pins.pin(hand.version(0), "export", 7200)
    hand.pins.pin(hand.version(0), "replica", 60)
    assert [pin.reason for pin in hand.pins.pins()] == ["replica", "export"]
    assert [pin.reason for pin in hand.pins.unpin(0, "export")] == ["export"]
    assert hand.pins.unpin(0, "export") == []
    assert [pin.reason for pin in hand.pins.unpin(0)] == ["replica"]


def test_an_ended_pin_is_none(hand: HandRun) -> None:
    hand.pins.pin(hand.version(0), "evaluation", 0)
    assert hand.pins.pins() == []


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * 201])
def test_a_reason_is_a_line(hand: HandRun, reason: str) -> None:
    with pytest.raises(BadInput, match="not a reason"):
        hand.pins.pin(hand.version(0), reason, 60)


def test_retired_deleted_and_unknown_versions_are_refused(hand: HandRun) -> None:
    hand.grow(4)
    retention = hand.retention()

    def refusal(number: int) -> str:
        with pytest.raises(BadInput) as error:
            pin_version(hand.pins, hand.store, hand.name, number, "evaluation", 60)
        return str(error.value)

    retention.apply()
    assert "its weights are retired and about to be deleted" in refusal(1)
    retention.apply()
    assert "its weights were deleted" in refusal(1)
    assert "no such version; given: 9; expected: 0 to 4" in refusal(9)
    assert hand.pins.pins() == []
    assert pin_version(hand.pins, hand.store, hand.name, 3, "evaluation", 60).set == hand.set(3)


@pytest.fixture
def ask(redis_server: RedisConnection, seaweedfs: S3Connection, hand: HandRun) -> Callable[..., Any]:
    environment = dict(Connections(redis_server, seaweedfs).environment())
    return lambda *arguments: CliRunner().invoke(app, arguments, env=environment)


def test_the_commands(hand: HandRun, ask: Callable[..., Any]) -> None:
    where = ("--run", hand.name)
    bucket = ("--bucket", hand.store.bucket)
    assert json.loads(ask("pins", hand.name, "--json").stdout) == {"run": hand.name, "pins": []}

    told = ask("pin", "0", "--for", "1h30m", "--reason", "export", *where, *bucket)
    assert (told.exit_code, told.stdout) == (0, f"version 0 of run {hand.name} stays for 1h30m: export\n")
    (pin,) = json.loads(ask("pins", hand.name, "--json").stdout)["pins"]
    assert (pin["version"], pin["reason"]) == (0, "export")
    assert "export" in ask("pins", hand.name).stdout

    assert ask("unpin", "0", *where).stdout == f"version 0 of run {hand.name}: 1 pin ended\n"
    refused = ask("unpin", "0", *where)
    assert refused.exit_code == 2 and "has no such pin" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pin", "5"), "has no such version; given: 5; expected: 0 to 0"),
        (("pin", "0", "--for", "soon"), "not a time; given: 'soon'"),
        (("pin", "0", "--for", "0h"), "not a time; given: '0h'"),
    ],
)
def test_what_cannot_be_pinned_is_said(
    hand: HandRun, ask: Callable[..., Any], arguments: tuple[str, ...], told: str
) -> None:
    refused = ask(*arguments, "--run", hand.name, "--bucket", hand.store.bucket)
    assert refused.exit_code == 2 and told in refused.stderr
