"""What a commit may say."""

import json

import pytest
from pydantic import ValidationError

from rolloutpipe_core.domain import GroupState, WeightVersion
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.store.commits import Commit, Genesis, Link, commit_key, finite, genesis_key

SHA = "ab" * 32
GENESIS = Genesis(run="demo", lineage=1, weights_sha=SHA, data_fingerprint="walk-2", config_sha="cd" * 32)


def group(index: int, samples: int = 8, tokens: int = 100) -> dict:
    return {
        "group": f"r000000-g{index:04d}",
        "attempt": 1,
        "object": f"runs/demo/groups/r000000/g{index:04d}-{SHA[:16]}.arrow",
        "sha256": SHA,
        "samples": samples,
        "tokens": tokens,
    }


def commit(**changes) -> dict:
    whole = {
        "run": "demo",
        "lineage": 1,
        "weights_sha": "ef" * 32,
        "data_fingerprint": "walk-2",
        "config_sha": "cd" * 32,
        "previous": {"key": genesis_key("demo"), "sha256": SHA},
        "trainer_epoch": {"number": 3, "nonce": "n1"},
        "round": 0,
        "updates": [
            {"index": 0, "samples": 16, "tokens": 230, "groups": [group(0), group(2, tokens=130)]},
            {"index": 1, "samples": 8, "tokens": 100, "groups": [group(1)]},
        ],
        "ended": [{"group": "r000000-g0003", "state": "failed", "reason": "engine"}],
        "cohort_sha": SHA,
        "cursor": 4,
        "checkpoint": None,
    }
    return whole | changes


def test_versions_follow_rounds():
    assert GENESIS.version == WeightVersion(0, SHA)
    first = Commit.model_validate(commit())
    assert first.version == WeightVersion(1, "ef" * 32)
    assert [each.group for each in first.groups] == ["r000000-g0000", "r000000-g0002", "r000000-g0001"]
    assert first.ended[0].state is GroupState.FAILED
    assert Link(first.key, SHA, first).next_round == 1
    assert Link(GENESIS.key, SHA, GENESIS).next_round == 0


def test_the_bytes_are_canonical():
    data = Commit.model_validate(commit()).to_bytes()
    value = json.loads(data)
    assert data == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    assert value["previous"] == {"key": "runs/demo/commits/genesis.json", "sha256": SHA}
    assert value["schema_version"] == 1
    assert Commit.model_validate_json(data).to_bytes() == data
    assert Genesis.model_validate_json(GENESIS.to_bytes()) == GENESIS


def test_keys():
    assert genesis_key("demo") == "runs/demo/commits/genesis.json"
    assert commit_key("demo", 12) == "runs/demo/commits/c000012.json"
    with pytest.raises(BadInput, match="not a run name"):
        commit_key("../demo", 12)


UPDATE = {"index": 0, "samples": 8, "tokens": 100, "groups": [group(0)]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"updates": [{**UPDATE, "samples": 9}]}, "update 0: samples is not the sum over its groups"),
        ({"updates": [{**UPDATE, "tokens": 99}]}, "update 0: tokens is not the sum over its groups"),
        ({"updates": [{**UPDATE, "index": 1}]}, "updates are not numbered"),
        ({"round": 1}, "r000000-g0000 is not a group of round 1"),
        ({"updates": [UPDATE, {**UPDATE, "index": 1}]}, "a group occurs twice"),
        ({"ended": [{"group": "r000000-g0000", "state": "failed", "reason": ""}]}, "a group occurs twice"),
        ({"ended": [{"group": "r000000-g0009", "state": "queued", "reason": ""}]}, "ended.0.state"),
        ({"weights_sha": "short"}, "weights_sha"),
        ({"schema_version": 2}, "schema_version"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_a_commit_may_not_say(changes, reason):
    with pytest.raises(ValidationError, match=reason):
        Commit.model_validate_json(json.dumps(commit(**changes)))


def test_metrics_that_are_no_numbers_become_null():
    metrics = finite({"loss": 0.5, "grad_norm": float("inf"), "kl": float("nan")})
    assert metrics == {"loss": 0.5, "grad_norm": None, "kl": None}
    assert (
        b'"metrics":{"grad_norm":null,"kl":null,"loss":0.5}'
        in Commit.model_validate(commit(metrics=metrics)).to_bytes()
    )
