"""The probe passes a store that keeps its promise and refuses one that doesn't."""

from collections.abc import Mapping

import pytest

from rolloutpipe_core.errors import StoreRefused
from rolloutpipe_core.store import probe
from rolloutpipe_core.store.objects import PutOutcome, PutResult
from rolloutpipe_core.store.probe import probe_store, why_refused
from rolloutpipe_core.store.wire import Wire


def test_a_good_store_passes_and_is_left_clean(object_store):
    facts = probe_store(object_store)
    assert facts.bucket == object_store.bucket and facts.server.startswith("SeaweedFS")
    assert facts.put_ms > 0 and abs(facts.clock_offset_s) < 60
    assert list(object_store.list("probes/")) == []


@pytest.fixture
def forget_the_condition(monkeypatch):
    """The real store, with the condition taken away, before the request is signed, of the keys that contain a word."""
    put = Wire.put

    def forget(word: str) -> None:
        def forgetful_put(wire: Wire, key: str, data: bytes, headers: Mapping[str, str]) -> None:
            kept = {name: value for name, value in headers.items() if name != "If-None-Match" or word not in key}
            put(wire, key, data, kept)

        monkeypatch.setattr(Wire, "put", forgetful_put)

    return forget


def test_a_store_that_ignores_the_condition_is_refused(object_store, forget_the_condition):
    forget_the_condition("probes/")
    with pytest.raises(StoreRefused, match=r"3 of 3 writers created the same key.*SeaweedFS 4.17") as caught:
        probe_store(object_store, settle_s=0)
    assert caught.value.exit_code == 7
    assert list(object_store.list("probes/")) == []


def test_a_store_that_fails_once_has_to_pass_more_races(object_store, forget_the_condition, caplog):
    forget_the_condition("first-2")
    facts = probe_store(object_store, settle_s=0)
    assert facts.races == 48
    assert "asked again in 0 s" in caplog.text and "3 of 3 writers created the same key" in caplog.text
    assert list(object_store.list("probes/")) == []


def test_only_a_seaweedfs_gets_a_second_chance(object_store, forget_the_condition, monkeypatch):
    monkeypatch.setattr(probe, "YOUNG_MAY_FAIL", "another kind of server")
    forget_the_condition("first-2")
    with pytest.raises(StoreRefused, match="3 of 3 writers created the same key"):
        probe_store(object_store)


WON = PutResult(PutOutcome.CREATED, b"one")
LATE = PutResult(PutOutcome.ALREADY_EQUAL, b"one")
LOST = PutResult(PutOutcome.OTHER, b"one")


@pytest.mark.parametrize(
    ("results", "stored", "reason"),
    [
        ([WON, LOST], b"one", None),
        ([LATE, LOST], b"one", None),
        ([WON, PutResult(PutOutcome.CREATED, b"two")], b"one", "2 of 2 writers created the same key"),
        ([LOST, LOST], b"one", "0 of 2 writers created the same key"),
        ([WON, LOST], b"two", "a reader got other bytes than the winner wrote"),
        ([WON, PutResult(PutOutcome.OTHER, b"old")], b"one", "a loser saw other bytes than the winner wrote"),
    ],
)
def test_what_a_race_shows(results, stored, reason):
    assert why_refused([b"one", b"two"], results, stored) == reason
