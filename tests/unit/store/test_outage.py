"""Which failures are borne, and for how long."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)

from rolloutpipe_core.errors import ObjectMissing, StoreMisconfigured, StoreUnavailable
from rolloutpipe_core.store import outage
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.outage import Patience, Verdict, judge


def answer(status: int, code: str, operation: str = "PutObject") -> ClientError:
    response = {"Error": {"Code": code, "Message": "said the store"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)


CUT_OFF = IncompleteReadError(actual_bytes=3, expected_bytes=9)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (EndpointConnectionError(endpoint_url="http://store"), Verdict.RETRY),
        (ConnectTimeoutError(endpoint_url="http://store"), Verdict.RETRY),
        (ReadTimeoutError(endpoint_url="http://store"), Verdict.RETRY),
        (ResponseStreamingError(error="reset"), Verdict.RETRY),
        (CUT_OFF, Verdict.RETRY),
        (SSLError(endpoint_url="https://store", error="EOF occurred"), Verdict.RETRY),
        (answer(500, "InternalError"), Verdict.RETRY),
        (answer(503, "SlowDown"), Verdict.RETRY),
        (answer(200, "InternalError"), Verdict.RETRY),
        (answer(409, "ConditionalRequestConflict"), Verdict.RETRY),
        (answer(429, "TooManyRequests"), Verdict.RETRY),
        (answer(499, "ClientDisconnected"), Verdict.RETRY),
        (answer(400, "RequestTimeout"), Verdict.RETRY),
        (answer(404, "NoSuchKey"), Verdict.MISSING),
        (answer(404, "404", "HeadObject"), Verdict.MISSING),
        (answer(404, "404", "GetObject"), Verdict.RETRY),  # a proxy without its backend, or half an answer
        (answer(400, "400"), Verdict.RETRY),
        (answer(412, "412"), Verdict.RETRY),
        (answer(403, "403"), Verdict.REFUSED),
        (answer(404, "NoSuchUpload"), Verdict.MISSING),
        (answer(404, "NoSuchBucket"), Verdict.REFUSED),
        (answer(403, "AccessDenied"), Verdict.REFUSED),
        (answer(403, "RequestTimeTooSkewed"), Verdict.REFUSED),
        (answer(400, "InvalidBucketName"), Verdict.REFUSED),
        (answer(501, "NotImplemented"), Verdict.REFUSED),
        (NoCredentialsError(), Verdict.REFUSED),
        (SSLError(endpoint_url="https://store", error="CERTIFICATE_VERIFY_FAILED"), Verdict.REFUSED),
    ],
)
def test_what_an_error_means(error, verdict):
    assert judge(error) is verdict


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("RequestTimeTooSkewed", "clock"),
        ("AccessDenied", "allow"),
        ("SomethingElse", "doctor"),
    ],
)
def test_a_refusal_says_its_cause_and_what_to_do(code, remedy):
    with pytest.raises(StoreMisconfigured, match="said the store") as caught:
        Patience("put k", 60.0, outage.ignore).bear(answer(403, code))
    assert remedy in caught.value.remedy


def test_a_missing_object_is_no_outage():
    with pytest.raises(ObjectMissing, match="get k"):
        Patience("get k", 60.0, outage.ignore).bear(answer(404, "NoSuchKey"))


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        monkeypatch.setattr(outage.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(outage.time, "sleep", self.sleep)
        monkeypatch.setattr(outage.random, "uniform", lambda low, high: high)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def test_the_waits_double_up_to_the_deadline(monkeypatch):
    clock = Clock(monkeypatch)
    patience = Patience("get k", 10.0, outage.ignore)
    with pytest.raises(StoreUnavailable) as caught:
        while True:
            patience.bear(CUT_OFF)
    assert clock.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.7])
    assert caught.value.what == "the object store stayed away: get k"
    assert caught.value.given.startswith("8 failed tries, the last: 3 read, but total bytes expected is 9")
    assert caught.value.expected == "an answer within 10 s"


def test_progress_begins_the_deadline_anew(monkeypatch):
    clock = Clock(monkeypatch)
    patience = Patience("get k", 1.0, outage.ignore)
    for _ in range(100):
        patience.bear(CUT_OFF)
        patience.progress()
    assert clock.now == pytest.approx(10.0)


def test_a_waiting_call_says_so_and_says_when_it_is_over(monkeypatch):
    Clock(monkeypatch)
    said: list[str] = []
    patience = Patience("get k", 10.0, said.append)
    patience.bear(answer(503, "SlowDown"))
    patience.ended()
    assert len(said) == 2
    assert said[0].startswith("object store (get k): ") and "SlowDown" in said[0]
    assert said[1] == ""


def test_a_call_that_works_at_once_says_nothing():
    said: list[str] = []
    Patience("get k", 10.0, said.append).ended()
    assert said == []


class Answering:
    """A client that answers with these failures in turn, the last one again and again."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)

    def head_object(self, **_: str) -> None:
        raise self._failures.pop(0) if len(self._failures) > 1 else self._failures[0]


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (answer(404, "NoSuchKey", "HeadObject"), ObjectMissing),
        (answer(403, "AccessDenied", "HeadObject"), StoreMisconfigured),
        (answer(503, "SlowDown", "HeadObject"), StoreUnavailable),
        (RuntimeError("a local one"), RuntimeError),
    ],
)
def test_a_call_that_fails_for_good_waits_no_longer(monkeypatch, last, error):
    """Its caller may live on, as the housekeeper does."""
    Clock(monkeypatch)
    said: list[str] = []
    with pytest.raises(error):
        ObjectStore(Answering(answer(503, "SlowDown"), last), "bucket", 10.0, said.append).head("k")
    assert len(said) >= 2 and said[-1] == ""
