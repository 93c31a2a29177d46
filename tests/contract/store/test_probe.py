"""The probe passes a store that keeps its promise and refuses one that doesn't."""

import pytest

from rolloutpipe_core.errors import StoreRefused
from rolloutpipe_core.store.objects import ObjectStore, PutOutcome, PutResult
from rolloutpipe_core.store.probe import probe_store, why_refused


def test_a_good_store_passes_and_is_left_clean(object_store):
    facts = probe_store(object_store)
    assert facts.bucket == object_store.bucket and facts.server.startswith("SeaweedFS")
    assert facts.put_ms > 0 and abs(facts.clock_offset_s) < 60
    assert list(object_store.list("probes/")) == []


def test_a_store_that_ignores_the_condition_is_refused(seaweedfs, object_store):
    """The real store, with the condition taken away before the request is signed."""
    client = seaweedfs.client()

    def forget(params: dict, **_: object) -> None:
        params["headers"].pop("If-None-Match", None)

    client.meta.events.register("before-call.s3.PutObject", forget)
    with pytest.raises(StoreRefused, match=r"3 of 3 writers created the same key.*SeaweedFS 4.17") as caught:
        probe_store(ObjectStore(client, object_store.bucket, deadline_s=20.0))
    assert caught.value.exit_code == 7
    assert list(object_store.list("probes/")) == []


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
