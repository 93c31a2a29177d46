"""Weights and checkpoints: published whole, fetched whole, named by their content."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rolloutpipe_core.errors import BadInput, Damaged, ObjectMissing
from rolloutpipe_core.store.cache import DirectoryCache
from rolloutpipe_core.store.canonical import sha256_hex
from rolloutpipe_core.store.checkpoints import download_checkpoint, upload_checkpoint
from rolloutpipe_core.store.objects import ObjectStore
from rolloutpipe_core.store.weights import fetch_weights, publish_weights, weights_prefix
from rolloutpipe_core.store.wire import Wire

FILES = {"config.json": b"{}", "model-00001.safetensors": b"one" * 1000, "tokenizer/vocab.txt": b"a b c"}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return written(tmp_path / "weights", FILES)


@pytest.fixture
def cache(tmp_path: Path) -> DirectoryCache:
    with DirectoryCache(tmp_path / "cache") as cache:
        yield cache


def written(directory: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.fixture
def sent(seaweedfs, object_store, monkeypatch) -> tuple[ObjectStore, list[tuple[str, str]]]:
    """A store, and the (method, path) of each request that it sends, by either way."""
    client, requests = seaweedfs.client(), []
    session = client._endpoint.http_session
    send, send_whole = session.send, Wire._send

    def noted(request):
        requests.append((request.method, urlsplit(request.url).path))
        return send(request)

    def noted_whole(wire, operation, key, *more):
        requests.append((operation[:3].upper(), key))
        return send_whole(wire, operation, key, *more)

    monkeypatch.setattr(session, "send", noted)
    monkeypatch.setattr(Wire, "_send", noted_whole)
    return ObjectStore(client, object_store.bucket, deadline_s=20.0), requests


def count(requests: list[tuple[str, str]], method: str) -> int:
    return [each for each, _ in requests].count(method)


def test_what_is_published_is_fetched(object_store, run_name, weights, cache):
    published = publish_weights(object_store, run_name, weights)
    assert published.prefix == f"runs/{run_name}/weights/{published.manifest_sha[:16]}"
    assert published.bytes == 2 + 3000 + 5
    assert published.manifest_sha == sha256_hex(object_store.get(f"{published.prefix}/manifest.json"))
    fetched = fetch_weights(object_store, run_name, published.manifest_sha, cache)
    assert content(fetched) == FILES


def test_the_manifest_comes_last(sent, run_name, weights):
    store, requests = sent
    publish_weights(store, run_name, weights)
    keys = [path for method, path in requests if method == "PUT"]
    assert len(keys) == 4 and keys[-1].endswith("/manifest.json")


def test_publishing_again_uploads_no_file_again(sent, run_name, weights):
    store, requests = sent
    first = publish_weights(store, run_name, weights)
    assert count(requests, "PUT") == 4
    assert publish_weights(store, run_name, weights) == first
    assert count(requests, "PUT") == 5


def test_a_file_cut_short_by_another_hand_is_uploaded_again(object_store, run_name, weights, cache):
    published = publish_weights(object_store, run_name, weights)
    object_store.put(f"{published.prefix}/config.json", b"[]")
    publish_weights(object_store, run_name, weights)
    assert content(fetch_weights(object_store, run_name, published.manifest_sha, cache)) == FILES


def test_a_node_downloads_once(sent, run_name, weights, cache, tmp_path):
    store, requests = sent
    published = publish_weights(store, run_name, weights)
    first = fetch_weights(store, run_name, published.manifest_sha, cache)
    assert count(requests, "GET") == 4
    with DirectoryCache(tmp_path / "cache") as another:
        assert fetch_weights(store, run_name, published.manifest_sha, another) == first
    assert count(requests, "GET") == 4


@pytest.mark.parametrize("name", ["manifest.json", "config.json", "model-00001.safetensors"])
def test_altered_weights_are_damaged_and_not_cached(object_store, run_name, weights, cache, tmp_path, name):
    published = publish_weights(object_store, run_name, weights)
    object_store.put(f"{published.prefix}/{name}", b"altered")
    with pytest.raises(Damaged, match=f"wrong hash: .*/{name}"):
        fetch_weights(object_store, run_name, published.manifest_sha, cache)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_missing_weights_are_missing(object_store, run_name, weights, cache, name):
    published = publish_weights(object_store, run_name, weights)
    object_store.delete(f"{published.prefix}/{name}")
    with pytest.raises(ObjectMissing, match=name):
        fetch_weights(object_store, run_name, published.manifest_sha, cache)


def test_a_manifest_that_is_none_is_damaged(object_store, run_name, cache):
    sha = sha256_hex(b"[]")
    object_store.put(f"{weights_prefix(run_name, sha)}/manifest.json", b"[]")
    with pytest.raises(Damaged, match="not a manifest"):
        fetch_weights(object_store, run_name, sha, cache)


def test_a_checkpoint_comes_back(object_store, run_name, weights, tmp_path):
    checkpoint = upload_checkpoint(object_store, run_name, "r000012-e3-5f1c9a", weights)
    assert checkpoint.prefix == f"runs/{run_name}/checkpoints/r000012-e3-5f1c9a"
    download_checkpoint(object_store, checkpoint, tmp_path / "down")
    assert content(tmp_path / "down") == FILES
    object_store.put(f"{checkpoint.prefix}/config.json", b"altered")
    with pytest.raises(Damaged, match="wrong hash"):
        download_checkpoint(object_store, checkpoint, tmp_path / "again")


def test_an_attempt_is_one_path_element(object_store, run_name, weights):
    with pytest.raises(BadInput, match="not an attempt"):
        upload_checkpoint(object_store, run_name, "../weights", weights)
