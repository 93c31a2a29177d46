"""ObjectStore on a real S3: contents, races, refusals, broken transfers."""

import hashlib
import random
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import botocore.auth
import pytest

from rolloutpipe_core.errors import Damaged, ObjectMissing, StoreMisconfigured
from rolloutpipe_core.store.objects import PART_BYTES, ObjectStore, PutOutcome

BUCKET = "rolloutpipe-tests"


def never(reason: str) -> None:
    raise AssertionError(f"waited: {reason}")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_put_get_head_list_delete(object_store, run_name):
    key = f"runs/{run_name}/a"
    object_store.put(key, b"one")
    object_store.put(key, b"second")
    object_store.put(f"runs/{run_name}/b", b"")
    assert object_store.get(key) == b"second"
    assert object_store.get(f"runs/{run_name}/b") == b""
    assert object_store.head(key).bytes == 6
    assert [(info.key, info.bytes) for info in object_store.list(f"runs/{run_name}/")] == [
        (key, 6),
        (f"runs/{run_name}/b", 0),
    ]
    object_store.delete(key)
    object_store.delete(key)
    assert [info.key for info in object_store.list(f"runs/{run_name}/")] == [f"runs/{run_name}/b"]


def test_a_listing_has_every_page(object_store, run_name):
    keys = [f"runs/{run_name}/{number:04d}" for number in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: object_store.put(key, b""), keys))
    assert [info.key for info in object_store.list(f"runs/{run_name}/")] == keys


def test_a_missing_object(object_store, run_name):
    for call in (object_store.get, object_store.head):
        with pytest.raises(ObjectMissing, match=f"runs/{run_name}/gone"):
            call(f"runs/{run_name}/gone")


def test_a_key_names_the_same_object_for_boto3(seaweedfs, object_store, run_name):
    """Whatever has to be quoted in it."""
    key = f"runs/{run_name}/a b+c=d&e~f%20é.json"
    object_store.put(key, b"12345")
    assert seaweedfs.client().get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"12345"
    assert object_store.get(key) == b"12345"
    assert [info.key for info in object_store.list(f"runs/{run_name}/")] == [key]


def test_put_if_absent_tells_whose_bytes_are_there(object_store, run_name):
    key = f"runs/{run_name}/commit"
    first = object_store.put_if_absent(key, b"ours")
    assert (first.outcome, first.ours, first.stored) == (PutOutcome.CREATED, True, b"ours")
    again = object_store.put_if_absent(key, b"ours")
    assert (again.outcome, again.ours) == (PutOutcome.ALREADY_EQUAL, True)
    other = object_store.put_if_absent(key, b"theirs")
    assert (other.outcome, other.ours, other.stored) == (PutOutcome.OTHER, False, b"ours")
    assert object_store.get(key) == b"ours"


@pytest.mark.parametrize("size", [20, 6 * 2**20])
def test_of_racing_writers_exactly_one_wins(object_store, run_name, size):
    writers = 6
    start = threading.Barrier(writers)
    written = [bytes([number]) * size for number in range(writers)]

    def write(data):
        start.wait(30)
        return object_store.put_if_absent(f"runs/{run_name}/commit", data)

    with ThreadPoolExecutor(writers) as pool:
        results = list(pool.map(write, written))
    winners = [data for data, result in zip(written, results, strict=True) if result.ours]
    assert len(winners) == 1
    assert all(result.stored == winners[0] for result in results)
    assert object_store.get(f"runs/{run_name}/commit") == winners[0]


def test_a_lost_answer_of_a_conditional_put_is_no_lost_race(cutting, run_name):
    client, proxy = cutting(cuts=1, after=10)
    result = ObjectStore(client, BUCKET, deadline_s=20.0).put_if_absent(f"runs/{run_name}/commit", b"ours")
    assert proxy.connections > 1
    assert (result.outcome, result.ours) == (PutOutcome.ALREADY_EQUAL, True)


@pytest.mark.parametrize("after", [0, 100])
def test_a_request_broken_in_its_body_writes_nothing(cutting, run_name, after):
    """Also where the server has all the headers and nothing of the body."""
    client, proxy = cutting(cuts=1, after=after, requests=True)
    result = ObjectStore(client, BUCKET, deadline_s=20.0).put_if_absent(f"runs/{run_name}/commit", b"ours" * 100)
    assert proxy.connections > 1
    assert result.outcome is PutOutcome.CREATED


@pytest.mark.parametrize("after", [0, 100])
def test_a_file_whose_upload_breaks_leaves_no_object(object_store, cutting, run_name, tmp_path, after):
    """It would carry the whole file's hash."""
    key, data, found = f"runs/{run_name}/file", b"weights" * 100, []
    (tmp_path / "up").write_bytes(data)
    client, _ = cutting(cuts=1, after=after, requests=True)
    store = ObjectStore(client, BUCKET, 20.0, lambda _: found.append([info.key for info in object_store.list(key)]))
    store.upload_file(tmp_path / "up", key, sha256(data))
    assert found[0] == []
    assert object_store.get(key) == data


@pytest.mark.parametrize(
    ("changes", "cause", "remedy"),
    [
        ({"access_key": "nobody"}, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ({"secret_key": "wrong"}, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_wrong_credentials_stop_at_once(seaweedfs, run_name, changes, cause, remedy):
    store = ObjectStore(replace(seaweedfs, **changes).client(), BUCKET, on_wait=never)
    for call in (
        store.ensure_bucket,
        lambda: store.put(f"runs/{run_name}/a", b""),
        lambda: store.put_if_absent(f"runs/{run_name}/a", b""),
        lambda: store.get(f"runs/{run_name}/a"),
        lambda: list(store.list(f"runs/{run_name}/")),
    ):
        with pytest.raises(StoreMisconfigured) as caught:
            call()
        assert cause in caught.value.given and remedy in caught.value.remedy


def test_a_skewed_clock_stops_at_once(seaweedfs, monkeypatch):
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *rest, **named: now() - timedelta(hours=1))
    with pytest.raises(StoreMisconfigured, match=r"RequestTimeTooSkewed.*clock"):
        ObjectStore(seaweedfs.client(), BUCKET, on_wait=never).ensure_bucket()


def test_a_missing_bucket_stops_at_once_and_can_be_made(s3_client):
    store = ObjectStore(s3_client, f"made-{secrets.token_hex(6)}", on_wait=never)
    for call in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.list(""))):
        with pytest.raises(StoreMisconfigured, match="NoSuchBucket"):
            call()
    store.ensure_bucket()
    store.ensure_bucket()
    store.put("a", b"")
    assert [info.key for info in store.list("")] == ["a"]
    store.delete("a")
    s3_client.delete_bucket(Bucket=store.bucket)


@pytest.fixture(scope="module")
def large() -> bytes:
    """More than two parts."""
    return random.Random(1).randbytes(2 * PART_BYTES + 12345)


@pytest.mark.parametrize("small", [True, False])
def test_files_go_up_and_down_whole(object_store, run_name, tmp_path, large, small):
    data = b"weights" if small else large
    (tmp_path / "up").write_bytes(data)
    object_store.upload_file(tmp_path / "up", f"runs/{run_name}/file", sha256(data))
    info = object_store.head(f"runs/{run_name}/file")
    assert (info.bytes, info.sha256) == (len(data), sha256(data))
    object_store.download_file(f"runs/{run_name}/file", tmp_path / "down", sha256(data))
    assert (tmp_path / "down").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["down", "up"]


@pytest.mark.parametrize("small", [True, False])
def test_a_file_that_changed_is_not_uploaded(object_store, s3_client, run_name, tmp_path, large, small):
    data = b"weights" if small else large
    (tmp_path / "up").write_bytes(data)
    with pytest.raises(Damaged, match="the file changed"):
        object_store.upload_file(tmp_path / "up", f"runs/{run_name}/file", sha256(b"as it was"))
    assert list(object_store.list(f"runs/{run_name}/")) == []
    assert "Uploads" not in s3_client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"runs/{run_name}/")


def test_a_download_with_another_hash_leaves_no_file(object_store, run_name, tmp_path):
    object_store.put(f"runs/{run_name}/file", b"altered")
    with pytest.raises(Damaged, match="wrong hash"):
        object_store.download_file(f"runs/{run_name}/file", tmp_path / "down", sha256(b"as it was"))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_leaves_no_file(object_store, run_name, tmp_path):
    with pytest.raises(ObjectMissing):
        object_store.download_file(f"runs/{run_name}/gone", tmp_path / "down", "ab" * 32)
    assert list(tmp_path.iterdir()) == []


def test_an_answer_cut_off_in_the_middle_is_read_again(object_store, cutting, run_name):
    data = random.Random(2).randbytes(300_000)
    object_store.put(f"runs/{run_name}/a", data)
    client, proxy = cutting(cuts=2, after=150_000)
    said: list[str] = []
    assert ObjectStore(client, BUCKET, deadline_s=20.0, on_wait=said.append).get(f"runs/{run_name}/a") == data
    assert proxy.connections == 3
    assert len(said) == 3 and said[0].startswith(f"object store (get runs/{run_name}/a): ") and said[-1] == ""


def test_a_broken_download_goes_on_where_it_broke(object_store, cutting, run_name, tmp_path, large):
    (tmp_path / "up").write_bytes(large)
    object_store.upload_file(tmp_path / "up", f"runs/{run_name}/file", sha256(large))
    client, proxy = cutting(cuts=3, after=10 * 2**20)
    ranges: list[str] = []
    client.meta.events.register(
        "before-call.s3.GetObject", lambda params, **_: ranges.append(params["headers"].get("Range", "all"))
    )
    ObjectStore(client, BUCKET, deadline_s=20.0).download_file(
        f"runs/{run_name}/file", tmp_path / "down", sha256(large)
    )
    assert (tmp_path / "down").read_bytes() == large
    assert proxy.connections == 4
    # Three broken connections brought their whole MiB each; the fourth brought the rest.
    assert ranges[0] == "all"
    begins = [int(text.removeprefix("bytes=").removesuffix("-")) for text in ranges[1:]]
    assert begins == sorted(begins) and len(set(begins)) == 3 and begins[-1] > 20 * 2**20


def test_an_upload_goes_through_broken_answers(object_store, cutting, run_name, tmp_path, large):
    """Every first answer is lost, also that of the completion: the object is there all the same."""
    (tmp_path / "up").write_bytes(large)
    client, proxy = cutting(cuts=3, after=10)
    ObjectStore(client, BUCKET, deadline_s=20.0).upload_file(tmp_path / "up", f"runs/{run_name}/file", sha256(large))
    assert proxy.connections > 3
    assert object_store.get(f"runs/{run_name}/file") == large
