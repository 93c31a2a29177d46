"""Deleting many objects at once, and uploads that nobody completes."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from rolloutpipe_core.errors import StoreMisconfigured, StoreUnavailable
from rolloutpipe_core.store import objects
from rolloutpipe_core.store.objects import ObjectStore


def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_many_objects_go_in_batches(object_store: ObjectStore, run_name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(objects, "MOST_DELETED", 2)
    names = [f"{run_name}/{number}" for number in range(5)]
    for name in names:
        object_store.put(name, b"bytes")
    object_store.delete_many([*names[:4], f"{run_name}/never-there"])
    assert keys(object_store, run_name) == names[4:]
    object_store.delete_many([])
    object_store.delete_many(names)
    assert keys(object_store, run_name) == []


def test_a_listing_tells_the_stores_clock(object_store: ObjectStore, run_name: str) -> None:
    before = object_store.now()
    object_store.put(f"{run_name}/one", b"bytes")
    (info,) = object_store.list(run_name)
    assert info.modified is not None and before <= info.modified <= object_store.now()


def test_unfinished_uploads_are_found_and_aborted(object_store: ObjectStore, s3_client: Any, run_name: str) -> None:
    before = object_store.now()
    for number in range(2):
        s3_client.create_multipart_upload(Bucket=object_store.bucket, Key=f"{run_name}/big-{number}")
    found = sorted(object_store.unfinished_uploads(f"{run_name}/"), key=lambda upload: upload.key)
    assert [upload.key for upload in found] == [f"{run_name}/big-0", f"{run_name}/big-1"]
    assert all(upload.begun >= before for upload in found)
    object_store.abort_upload(found[0])
    object_store.abort_upload(found[0])  # gone already
    assert list(object_store.unfinished_uploads(f"{run_name}/")) == found[1:]


class Answering:
    """A client whose deletions answer with an error in the body of a 200."""

    def __init__(self, code: str) -> None:
        self._code = code

    def delete_objects(self, **_: Any) -> dict[str, Any]:
        return {"Errors": [{"Key": "a", "Code": self._code, "Message": "no"}]}


@pytest.mark.parametrize(("code", "error"), [("AccessDenied", StoreMisconfigured), ("InternalError", StoreUnavailable)])
def test_an_object_that_was_not_deleted_is_an_error(code: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        ObjectStore(Answering(code), "bucket", deadline_s=0.01).delete_many(["a"])
    assert isinstance(raised.value.__cause__, ClientError)
