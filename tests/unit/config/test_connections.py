"""Where Redis and S3 are, from the environment or the embedded servers' files."""

import os
from pathlib import Path

import pytest

from rolloutpipe_core.config.connections import Connections, RedisConnection, S3Connection
from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local.state import (
    CredentialsFile,
    ServerRecord,
    ServersFile,
    credentials_path,
    servers_path,
    write_private,
)

S3 = {
    "ROLLOUTPIPE_S3_ENDPOINT": "http://store:9000",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
REDIS = {"ROLLOUTPIPE_REDIS_URL": "redis://cache"}


def read(**variables: str) -> Connections:
    return Connections.read(variables)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ROLLOUTPIPE_REDIS_URL": "redis://cache"}, RedisConnection((("cache", 6379),))),
        (
            {"ROLLOUTPIPE_REDIS_URL": "rediss://ann:p%40ss@cache:7000/2"},
            RedisConnection((("cache", 7000),), "ann", "p@ss", database=2, tls=True),
        ),
        (
            {
                "ROLLOUTPIPE_REDIS_URL": "redis://[::1]:7000",
                "ROLLOUTPIPE_REDIS_USERNAME": "ann",
                "ROLLOUTPIPE_REDIS_PASSWORD": "pass",
            },
            RedisConnection((("::1", 7000),), "ann", "pass"),
        ),
        (
            {"ROLLOUTPIPE_REDIS_URL": "redis://cache", "ROLLOUTPIPE_REDIS_CLUSTER": "1"},
            RedisConnection((("cache", 6379),), cluster=True),
        ),
        (
            {
                "ROLLOUTPIPE_REDIS_SENTINEL": "one:26379, two:26380",
                "ROLLOUTPIPE_REDIS_SENTINEL_MASTER": "main",
                "ROLLOUTPIPE_REDIS_PASSWORD": "pass",
            },
            RedisConnection((("one", 26379), ("two", 26380)), password="pass", sentinel_master="main"),
        ),
    ],
)
def test_redis_from_the_environment(variables, expected):
    connections = read(**variables, **S3)
    assert connections.redis == expected
    assert Connections.read(connections.environment()) == connections


def test_s3_from_the_environment():
    assert read(**REDIS, **S3).s3 == S3Connection("http://store:9000", "us-east-1", "key", "secret")


def test_aws_needs_a_region_only():
    connections = read(**REDIS, ROLLOUTPIPE_S3_REGION="eu-central-1")
    assert connections.s3 == S3Connection(None, "eu-central-1")
    assert Connections.read(connections.environment()) == connections


@pytest.mark.parametrize(
    ("variables", "what"),
    [
        ({**REDIS}, "only one of Redis and S3"),
        ({**S3}, "only one of Redis and S3"),
        ({**S3, "ROLLOUTPIPE_REDIS_URL": "http://user:hush@cache"}, "ROLLOUTPIPE_REDIS_URL is not an address"),
        ({**S3, "ROLLOUTPIPE_REDIS_URL": "redis://:hush@"}, "ROLLOUTPIPE_REDIS_URL is not an address"),
        ({**S3, "ROLLOUTPIPE_REDIS_URL": "redis://:hush@cache:99999"}, "ROLLOUTPIPE_REDIS_URL is not an address"),
        ({**S3, "ROLLOUTPIPE_REDIS_URL": "redis://cache/first"}, "not a Redis database"),
        ({**S3, **REDIS, "ROLLOUTPIPE_REDIS_CLUSTER": "yes"}, "not a switch"),
        ({**S3, **REDIS, "ROLLOUTPIPE_REDIS_CA_FILE": "/nowhere.pem"}, "no such file"),
        ({**S3, **REDIS, "ROLLOUTPIPE_REDIS_SENTINEL": "one:1"}, "beside another way"),
        ({**S3, "ROLLOUTPIPE_REDIS_SENTINEL": "one:1"}, "the Sentinels' master has no name"),
        (
            {**S3, "ROLLOUTPIPE_REDIS_SENTINEL": "one", "ROLLOUTPIPE_REDIS_SENTINEL_MASTER": "main"},
            "not a Sentinel",
        ),
        ({**REDIS, **S3, "ROLLOUTPIPE_S3_ENDPOINT": "store:9000"}, "ROLLOUTPIPE_S3_ENDPOINT is not an address"),
    ],
)
def test_what_is_wrong_with_the_environment(variables, what):
    with pytest.raises(BadInput, match=what) as caught:
        read(**variables)
    assert "hush" not in str(caught.value)


def test_nothing_named_and_nothing_started(tmp_path):
    with pytest.raises(BadInput, match="no Redis and no S3 are named") as caught:
        Connections.read({}, tmp_path)
    assert "rolloutpipe up" in caught.value.remedy and "ROLLOUTPIPE_REDIS_URL" in caught.value.remedy


def record_servers(directory: Path) -> None:
    servers_path(directory).parent.mkdir()
    record = ServerRecord(pid=1, started=1, ports=(7001,))
    write_private(servers_path(directory), ServersFile(redis=record, s3=record.model_copy(update={"ports": (7002,)})))
    write_private(
        credentials_path(directory),
        CredentialsFile(redis_password="hush1", s3_access_key="hush2", s3_secret_key="hush3"),
    )


def test_the_embedded_servers_of_a_folder(tmp_path):
    record_servers(tmp_path)
    connections = Connections.read({}, tmp_path)
    assert connections.redis == RedisConnection((("127.0.0.1", 7001),), password="hush1")
    assert connections.s3 == S3Connection("http://127.0.0.1:7002", "us-east-1", "hush2", "hush3")
    assert "hush" not in repr(connections)


def test_the_environment_goes_before_the_embedded_servers(tmp_path):
    record_servers(tmp_path)
    assert Connections.read({**REDIS, **S3}, tmp_path).redis == RedisConnection((("cache", 6379),))


def test_credentials_that_others_can_read_are_refused(tmp_path):
    record_servers(tmp_path)
    assert credentials_path(tmp_path).stat().st_mode & 0o777 == 0o600
    credentials_path(tmp_path).chmod(0o640)
    with pytest.raises(BadInput, match=r"others can read .*mode 0640"):
        Connections.read({}, tmp_path)


def test_an_unreadable_file_does_not_show_its_secrets(tmp_path):
    record_servers(tmp_path)
    credentials_path(tmp_path).write_text('{"redis_password": {"hush": 1}}')
    with pytest.raises(BadInput, match=r"unreadable .*3 wrong fields") as caught:
        Connections.read({}, tmp_path)
    assert "hush" not in str(caught.value)


def test_secrets_are_in_no_repr():
    connections = read(**{**S3, "ROLLOUTPIPE_REDIS_URL": "redis://ann:hush@cache", "AWS_SECRET_ACCESS_KEY": "hush"})
    assert "hush" not in repr(connections) and "ann" in repr(connections)


def test_the_clients_are_made_as_the_services_need_them(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    redis = read(**REDIS, **S3).redis.client()
    options = redis.connection_pool.connection_kwargs
    assert options["decode_responses"] is True and options["socket_keepalive"] is True
    assert options["socket_timeout"] == 10.0 and options["retry"].get_retries() == 0
    config = S3Connection("http://127.0.0.1:9", "us-east-1", "key", "secret").client().meta.config
    assert config.signature_version == "s3v4" and config.s3["addressing_style"] == "path"
    assert config.retries["total_max_attempts"] == 1
    assert config.request_checksum_calculation == config.response_checksum_validation == "when_required"
    assert config.proxies == {}
    assert S3Connection("http://store", "us-east-1", "key", "secret").client().meta.config.proxies is None


def test_the_default_is_the_process_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith(("ROLLOUTPIPE_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ROLLOUTPIPE_REDIS_URL", "redis://cache")
    monkeypatch.setenv("ROLLOUTPIPE_S3_ENDPOINT", "http://store")
    assert Connections.read().s3.endpoint == "http://store"
