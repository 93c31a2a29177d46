"""Objects of one bucket, through outages: every call waits for the store until its deadline.

    put_if_absent ── 412 ──> read what is there ── equal bytes ──> ours (an answer of an earlier try was lost)
                                                └─ other bytes ──> another writer won

The name of an object is a hash of its content or belongs to one attempt, so that repeating a write is
harmless; the only fixed names are the commits', written with `put_if_absent`.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from rolloutpipe_core.errors import Damaged, ObjectMissing
from rolloutpipe_core.store.outage import STORE_ERRORS, OnWait, Patience, error_code, http_status, ignore
from rolloutpipe_core.store.wire import Wire

T = TypeVar("T")

PART_BYTES = 16 * 2**20
"""Files larger than this go up in parts of this size; S3 takes 5 MiB to 5 GiB a part, at most 10,000."""
MOST_PARTS = 10_000
MOST_DELETED = 1000
"""Keys that S3 takes in one deletion."""
CHUNK_BYTES = 2**20

PRECONDITION_FAILED = 412
RANGE_NOT_SATISFIABLE = 416


class PutOutcome(StrEnum):
    CREATED = "created"
    ALREADY_EQUAL = "already_equal"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PutResult:
    """What stands at the key after `put_if_absent`."""

    outcome: PutOutcome
    stored: bytes

    @property
    def ours(self) -> bool:
        return self.outcome is not PutOutcome.OTHER


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    bytes: int
    sha256: str | None = None  # as `upload_file` recorded it; listings don't tell
    modified: datetime | None = None  # the store's clock, whole seconds; only listings tell


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload in parts that nobody completed yet, or ever will."""

    key: str
    id: str
    begun: datetime  # the store's clock


class ObjectStore:
    """One bucket. Thread-safe, as boto3's clients are.

    Every method raises StoreUnavailable when the store stayed away past `deadline_s` seconds, and
    StoreMisconfigured at once when it refuses us.
    """

    def __init__(self, client: Any, bucket: str, deadline_s: float = 60.0, on_wait: OnWait = ignore) -> None:
        self._client = client
        self._wire = Wire(client, bucket)
        self.bucket = bucket
        self._deadline_s = deadline_s
        self._on_wait = on_wait

    def ensure_bucket(self) -> None:
        """Make the bucket if it is missing."""

        def attempt() -> None:
            try:
                # Not HEAD: its answers have no body, so a refusal would have no cause.
                self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)
            except ClientError as error:
                if error_code(error) != "NoSuchBucket":
                    raise
                self._create_bucket()

        self._call(f"bucket {self.bucket}", attempt)

    def _create_bucket(self) -> None:
        region = self._client.meta.region_name
        # AWS wants the region named everywhere but in us-east-1, where it refuses the name.
        place = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
        try:
            self._client.create_bucket(Bucket=self.bucket, **place)
        except ClientError as error:
            if error_code(error) != "BucketAlreadyOwnedByYou":
                raise

    @property
    def endpoint(self) -> str:
        return str(self._client.meta.endpoint_url)

    def answer_headers(self) -> Mapping[str, str]:
        """The HTTP headers of an answer, names in lower case: they tell the server's name and clock."""
        answer = self._call(
            f"bucket {self.bucket}", lambda: self._client.list_objects_v2(Bucket=self.bucket, MaxKeys=1)
        )
        headers: Mapping[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
        return headers

    def now(self) -> datetime:
        """The store's clock, in whole seconds."""
        return parsedate_to_datetime(self.answer_headers()["date"])

    def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectMissing."""
        return self._call(f"get {key}", lambda: self._wire.get(key))

    def put(self, key: str, data: bytes) -> None:
        """Write the object, over what may be there."""
        self._call(f"put {key}", lambda: self._put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> PutResult:
        """Write the object if its key is free, and tell what stands there now.

        Always one PUT (up to 5 GiB), never in parts: SeaweedFS 4.48 lets several writers complete a conditional
        multipart upload.
        """

        def attempt() -> PutResult:
            try:
                self._put(key, data, {"If-None-Match": "*"})
            except ClientError as error:
                if http_status(error) != PRECONDITION_FAILED:
                    raise
                stored = self.get(key)
                return PutResult(PutOutcome.ALREADY_EQUAL if stored == data else PutOutcome.OTHER, stored)
            return PutResult(PutOutcome.CREATED, data)

        return self._call(f"put if absent {key}", attempt)

    def _put(self, key: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        # Without a checksum SeaweedFS 4.48 stores an empty object when the connection breaks before the body.
        self._wire.put(key, data, {"Content-MD5": _md5(data), **(headers or {})})

    def head(self, key: str) -> ObjectInfo:
        """Size and recorded hash. Raises ObjectMissing."""
        found = self._call(f"head {key}", lambda: self._client.head_object(Bucket=self.bucket, Key=key))
        return ObjectInfo(key, int(found["ContentLength"]), found.get("Metadata", {}).get("sha256"))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys, page by page."""
        page: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix}
        more = True
        while more:
            found = self._call(f"list {prefix}", lambda: self._client.list_objects_v2(**page))
            for entry in found.get("Contents", ()):
                yield ObjectInfo(entry["Key"], int(entry["Size"]), modified=entry["LastModified"])
            more = found["IsTruncated"]
            page["ContinuationToken"] = found.get("NextContinuationToken")

    def delete(self, key: str) -> None:
        """Delete the object; that it is already gone is no error."""
        with suppress(ObjectMissing):
            self._call(f"delete {key}", lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand a request; those already gone are no error."""
        rest = iter(keys)
        while batch := list(islice(rest, MOST_DELETED)):
            self._call(f"delete {len(batch)} objects, the first {batch[0]}", partial(self._delete, batch))

    def _delete(self, keys: Sequence[str]) -> None:
        named = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = self._client.delete_objects(Bucket=self.bucket, Delete=named)
        for error in answer.get("Errors", ()):  # told in the body of an answer of 200
            status = 403 if error.get("Code") == "AccessDenied" else 500
            raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}, "DeleteObjects")

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Uploads in parts that were begun under `prefix` and neither completed nor aborted."""
        page: dict[str, Any] = {"Bucket": self.bucket, "Prefix": prefix}
        more = True
        while more:
            found = self._call(f"list uploads of {prefix}", lambda: self._client.list_multipart_uploads(**page))
            for entry in found.get("Uploads", ()):
                yield UnfinishedUpload(entry["Key"], entry["UploadId"], entry["Initiated"])
            more = found.get("IsTruncated", False)
            page.update(KeyMarker=found.get("NextKeyMarker"), UploadIdMarker=found.get("NextUploadIdMarker"))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Drop the parts of an upload; that it is already gone is no error."""
        address = {"Bucket": self.bucket, "Key": upload.key, "UploadId": upload.id}
        with suppress(ObjectMissing):
            self._call(f"abort upload of {upload.key}", lambda: self._client.abort_multipart_upload(**address))

    def upload_file(self, path: Path, key: str, sha256: str) -> None:
        """Stream a file up, hashing it on the way; the hash is recorded with the object.

        Raises Damaged, and leaves no object, when the file's bytes are not those of `sha256`.
        """
        size = path.stat().st_size
        if size <= PART_BYTES:
            data = b"".join(_verified(path, sha256, PART_BYTES))
            self._call(f"put {key}", lambda: self._put(key, data, {"x-amz-meta-sha256": sha256}))
            return
        parts = _verified(path, sha256, max(PART_BYTES, -(-size // MOST_PARTS)))
        try:
            self._upload_parts(key, parts, sha256)
        except ObjectMissing:
            # The upload is gone: right if an earlier try whose answer was lost completed it.
            if self.head(key).sha256 != sha256:
                raise

    def _upload_parts(self, key: str, parts: Iterable[bytes], sha256: str) -> None:
        """Raises ObjectMissing when the upload vanished, and whatever `parts` raises."""
        address, metadata = {"Bucket": self.bucket, "Key": key}, {"sha256": sha256}
        created = self._call(f"begin {key}", lambda: self._client.create_multipart_upload(**address, Metadata=metadata))
        upload = {**address, "UploadId": created["UploadId"]}
        done: list[dict[str, Any]] = []
        try:
            for number, part in enumerate(parts, start=1):
                done.append({"PartNumber": number, "ETag": self._upload_part(upload, number, part)})
            self._call(
                f"complete {key}",
                lambda: self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done}),
            )
        except BaseException:
            # One try: parts left behind are swept with the orphans.
            with suppress(*STORE_ERRORS):
                self._client.abort_multipart_upload(**upload)
            raise

    def _upload_part(self, upload: dict[str, str], number: int, part: bytes) -> str:
        sent = self._call(
            f"put part {number} of {upload['Key']}",
            lambda: self._client.upload_part(**upload, PartNumber=number, Body=part, ContentMD5=_md5(part)),
        )
        return str(sent["ETag"])

    def download_file(self, key: str, path: Path, sha256: str) -> None:
        """Stream an object into a file that appears only when it is whole and its hash is right.

        A broken transfer goes on where it broke. Raises ObjectMissing, and Damaged on a wrong hash.
        """
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            found = self._download(key, partial)
            if found != sha256:
                raise Damaged(f"wrong hash: {key}", given=f"sha256 {found}", expected=sha256)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def _download(self, key: str, path: Path) -> str:
        """Return the sha256 of what was written."""
        digest = hashlib.sha256()
        with path.open("wb") as file:

            def attempt(patience: Patience) -> None:
                rest = {"Range": f"bytes={file.tell()}-"} if file.tell() else {}
                try:
                    response = self._client.get_object(Bucket=self.bucket, Key=key, **rest)
                except ClientError as error:
                    # The transfer broke behind the last byte: all is here.
                    if rest and http_status(error) == RANGE_NOT_SATISFIABLE:
                        return
                    raise
                with closing(response["Body"]) as body:
                    for chunk in body.iter_chunks(CHUNK_BYTES):
                        file.write(chunk)
                        digest.update(chunk)
                        patience.progress()

            self._persist(f"get {key}", attempt)
        return digest.hexdigest()

    def _call(self, what: str, attempt: Callable[[], T]) -> T:
        return self._persist(what, lambda _: attempt())

    def _persist(self, what: str, attempt: Callable[[Patience], T]) -> T:
        """Try until it works, is refused or the deadline is over."""
        patience = Patience(what, self._deadline_s, self._on_wait)
        try:
            while True:
                try:
                    return attempt(patience)
                except STORE_ERRORS as error:
                    patience.bear(error)
        finally:
            patience.ended()


def _md5(data: bytes) -> str:
    """As S3's oldest checksum header wants it, which every S3 checks."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _verified(path: Path, sha256: str, chunk_bytes: int) -> Iterator[bytes]:
    """The file's bytes in chunks; raises Damaged behind the last one when the whole hashes otherwise."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(chunk_bytes):
            digest.update(chunk)
            yield chunk
    if digest.hexdigest() != sha256:
        raise Damaged(f"the file changed: {path}", given=f"sha256 {digest.hexdigest()}", expected=sha256)
