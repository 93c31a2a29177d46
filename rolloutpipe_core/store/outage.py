"""What a failed S3 call means, and how long an outage is borne.

    transport error, 5xx, 408, 409, 429, 499, cut-off body -> tried again until the deadline, then StoreUnavailable
    400, 404, 412, 416 without S3's own word for it        -> likewise: the word was cut off, or a proxy answered
    404 of a key or an upload                              -> ObjectMissing at once
    any other 4xx, 501, no credentials, no such bucket     -> StoreMisconfigured at once

An outage is never damage: only what was read whole can be damaged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from rolloutpipe_core.errors import ObjectMissing, StoreMisconfigured, StoreUnavailable

OnWait = Callable[[str], None]
"""Told why a call waits for the store at each failed try, and '' when it no longer does."""

STORE_ERRORS = (BotoCoreError, ClientError, ResponseParserError, HTTPError)
"""All that a boto3 call or the reading of its body raises; errors of local files are not among them."""

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0

NOT_IMPLEMENTED = 501
# 499: the server saw the connection break before it had the whole request.
RETRIED_STATUS = (408, 409, 429, 499)
EXPLAINED_STATUS = (400, 404, 412, 416)
"""S3 says in the body what they mean; without it they may be an outage's, or half of an answer."""
# S3 answers 400 to a request whose body it did not get in time or whole.
RETRIED_CODES = ("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch")
REMEDIES = {
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "renew the temporary credentials",
    "RequestTimeTooSkewed": "set this machine's clock (S3 refuses more than 15 minutes)",
    "AccessDenied": "allow reading, writing, listing and deleting in this bucket",
    "NoSuchBucket": "create the bucket, or correct `bucket` in the config",
    "AuthorizationHeaderMalformed": "set ROLLOUTPIPE_S3_REGION to the bucket's region",
    "PermanentRedirect": "set ROLLOUTPIPE_S3_REGION to the bucket's region",
}
GENERAL_REMEDY = "check ROLLOUTPIPE_S3_ENDPOINT, the credentials and the bucket; `rolloutpipe doctor` tries them"


def ignore(reason: str) -> None:
    """An OnWait for callers that show nothing."""


class Verdict(Enum):
    RETRY = "retry"
    MISSING = "missing"
    REFUSED = "refused"


def error_code(error: Exception) -> str:
    """S3's error code of a ClientError, or an empty string."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def http_status(error: ClientError) -> int:
    """The answer's HTTP status, 0 when it had none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def judge(error: Exception) -> Verdict:
    """What one of STORE_ERRORS means."""
    if isinstance(error, ClientError):
        status, code = http_status(error), error_code(error)
        # A status of 200 is an error told in the body of a long request (CompleteMultipartUpload).
        away = status < 400 or (status >= 500 and status != NOT_IMPLEMENTED)
        # botocore puts the status in the code's place when it found no S3 error in the body; HEAD's answers have none.
        unexplained = status in EXPLAINED_STATUS and code == str(status) and error.operation_name != "HeadObject"
        if away or unexplained or status in RETRIED_STATUS or code in RETRIED_CODES:
            return Verdict.RETRY
        return Verdict.MISSING if status == 404 and code != "NoSuchBucket" else Verdict.REFUSED
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Verdict.REFUSED
    transport = (NoConnectionError, HTTPClientError, IncompleteReadError, ResponseParserError, HTTPError)
    return Verdict.RETRY if isinstance(error, transport) else Verdict.REFUSED


class Patience:
    """One operation's failures, borne with exponential backoff and jitter until the deadline.

    The deadline counts from the operation's start, and anew from each `progress`, so that a long transfer
    is bounded by its standstill and not by its size.
    """

    def __init__(self, what: str, deadline_s: float, on_wait: OnWait) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self._on_wait = on_wait
        self._failures = 0
        self.progress()

    def progress(self) -> None:
        self._since = time.monotonic()
        self._delay_s = FIRST_DELAY_S

    def ended(self) -> None:
        """The operation waits no longer, whatever came of it."""
        if self._failures:
            self._on_wait("")

    def bear(self, error: Exception) -> None:
        """Sleep before the next try, or raise StoreUnavailable, StoreMisconfigured or ObjectMissing."""
        verdict = judge(error)
        if verdict is Verdict.MISSING:
            raise ObjectMissing(f"no such object: {self._what}", given=str(error)) from error
        if verdict is Verdict.REFUSED:
            remedy = REMEDIES.get(error_code(error), GENERAL_REMEDY)
            raise StoreMisconfigured(
                f"the object store refuses: {self._what}", given=str(error), remedy=remedy
            ) from error
        self._failures += 1
        waited_s = time.monotonic() - self._since
        if waited_s >= self._deadline_s:
            raise StoreUnavailable(
                f"the object store stayed away: {self._what}",
                given=f"{self._failures} failed tries, the last: {error}",
                expected=f"an answer within {self._deadline_s:g} s",
                remedy="bring the store back, or raise deadlines.store_s",
            ) from error
        self._on_wait(f"object store ({self._what}): {error}")
        time.sleep(min(self._delay_s * random.uniform(0.5, 1.0), self._deadline_s - waited_s))
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)
