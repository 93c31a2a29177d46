"""What arrives is what was sent, through JSON."""

from __future__ import annotations

import json

import pytest
from rolloutpipe_components.trainer.rank import Start
from rolloutpipe_components.trainer.ranks import messages

from rolloutpipe_core.domain import GroupRef, WeightVersion
from rolloutpipe_core.errors import BadInput, Damaged, RankLost, StoreUnavailable
from rolloutpipe_core.gate import Expectation
from rolloutpipe_core.store.commits import Checkpoint

VERSION = WeightVersion(3, "ab" * 32)


def through_json(message):
    return json.loads(json.dumps(message))


def test_a_group_to_read() -> None:
    ref = GroupRef("r000001-g0002", 1, 2, 1, 2, VERSION, "runs/x/g.arrow", "cd" * 32, 4, 99, 0.5, 0.25)
    expected = Expectation("x", 1, VERSION, 4, 2, None)
    message = through_json(messages.read_message(ref, expected))
    assert messages.ref_from(message["ref"]) == ref
    assert messages.expectation_from(message["expected"]) == expected
    assert isinstance(messages.ref_from(message["ref"]).version, WeightVersion)


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(prefix="runs/x/checkpoints/a", manifest_sha="ef" * 32)])
@pytest.mark.parametrize("reference", [None, "12" * 32])
def test_a_start(reference: str | None, checkpoint: Checkpoint | None) -> None:
    start = Start("34" * 32, reference, checkpoint)
    assert messages.start_from(through_json(messages.start_message(start))) == start


@pytest.mark.parametrize("error", [Damaged("altered"), StoreUnavailable("away", "given", "expected", "do")])
def test_an_error(error) -> None:
    arrived = messages.from_message(through_json(messages.to_message(error)))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)


@pytest.mark.parametrize("kind", ["SystemExit", "dataclass", "nothing"])
def test_an_error_of_an_unknown_kind_is_a_lost_rank(kind: str) -> None:
    message = messages.to_message(BadInput("what")) | {"kind": kind}
    assert type(messages.from_message(message)) is RankLost
