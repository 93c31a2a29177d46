"""Where Redis and S3 are and how to sign in: from the environment, or from the servers that `rolloutpipe up` started.

ROLLOUTPIPE_REDIS_URL              redis://[user:password@]host[:port][/db], or rediss:// for TLS
ROLLOUTPIPE_REDIS_USERNAME         user and password, when they are not in the URL
ROLLOUTPIPE_REDIS_PASSWORD
ROLLOUTPIPE_REDIS_CA_FILE          certificates to trust, when not the system's
ROLLOUTPIPE_REDIS_CLUSTER=1        the URL names a node of a Redis Cluster
ROLLOUTPIPE_REDIS_SENTINEL         host:port,host:port of Sentinels, instead of the URL (TLS when there is a CA file)
ROLLOUTPIPE_REDIS_SENTINEL_MASTER  the name under which they know the master
ROLLOUTPIPE_S3_ENDPOINT            http(s)://host[:port]; without it AWS
ROLLOUTPIPE_S3_REGION              default us-east-1
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or whatever else boto3 finds (profile, role)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from rolloutpipe_core.errors import BadInput
from rolloutpipe_core.local.state import read_credentials, read_servers

REDIS_SOCKET_TIMEOUT_S = 10.0
"""A blocking read (XREADGROUP BLOCK) must ask for less."""
REMEDY = "run `rolloutpipe up` in this folder for embedded servers, or set ROLLOUTPIPE_REDIS_URL and ROLLOUTPIPE_S3_*"
LOCAL_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class RedisConnection:
    """One Redis or Valkey: a single server, a cluster, or a master behind Sentinels."""

    nodes: tuple[tuple[str, int], ...]  # (host, port): the server, a node of the cluster, or the Sentinels
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: bool = False
    ca_file: str | None = None
    cluster: bool = False
    sentinel_master: str | None = None

    def client(self) -> redis.Redis:
        """A client that decodes text and never retries: a lost answer is the ledger's to repeat."""
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "decode_responses": True,
            # The shape of the answers differs between the protocols; 2 is known to every server and client.
            "protocol": 2,
            "socket_timeout": REDIS_SOCKET_TIMEOUT_S,
            "socket_connect_timeout": REDIS_SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
            **self._tls_options(),
        }
        host, port = self.nodes[0]
        if self.cluster:
            # Not a subclass, but it answers the same commands.
            return cast(redis.Redis, RedisCluster(host=host, port=port, **options))
        options |= {"retry": Retry(NoBackoff(), 0), "db": self.database}
        if self.sentinel_master is None:
            return redis.Redis(host=host, port=port, **options)
        watch = {key: value for key, value in options.items() if key not in ("username", "password", "db")}
        sentinel: Any = Sentinel(list(self.nodes), sentinel_kwargs=watch, **options)  # type: ignore[no-untyped-call]
        return cast(redis.Redis, sentinel.master_for(self.sentinel_master))

    def _tls_options(self) -> dict[str, Any]:
        return {"ssl": True, "ssl_ca_certs": self.ca_file} if self.tls else {}


@dataclass(frozen=True, slots=True)
class S3Connection:
    """One S3. Without keys boto3 looks for its own."""

    endpoint: str | None  # None: AWS
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    def client(self, read_timeout_s: float = 20.0) -> Any:
        """A boto3 client that never retries: ObjectStore does, up to its own deadline."""
        import boto3  # here, because it takes its time to load, and half of the commands look at Redis alone
        from botocore.config import Config

        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            aws_session_token=self.session_token,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                connect_timeout=5.0,
                read_timeout=read_timeout_s,
                tcp_keepalive=True,
                max_pool_connections=32,
                retries={"total_max_attempts": 1, "mode": "standard"},
                # Newer boto3 adds checksum trailers that not every S3 knows; every object has its sha256 anyway.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                # None: as the environment says. A proxy can't reach this machine's own loopback.
                proxies={} if _is_loopback(self.endpoint) else None,
            ),
        )
        client.meta.events.register("before-call.s3", _without_expect)
        return client


@dataclass(frozen=True, slots=True)
class Connections:
    """Both servers of a run; `repr` shows no secret."""

    redis: RedisConnection
    s3: S3Connection

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ, directory: Path = Path()) -> Connections:
        """From the environment; where it names neither server, from the embedded ones of `directory`.

        Raises BadInput when there is neither, or when the environment names only one of the two.
        """
        names_redis = bool(environ.get("ROLLOUTPIPE_REDIS_URL") or environ.get("ROLLOUTPIPE_REDIS_SENTINEL"))
        names_s3 = bool(environ.get("ROLLOUTPIPE_S3_ENDPOINT") or environ.get("ROLLOUTPIPE_S3_REGION"))
        if names_redis and names_s3:
            return cls(_redis_from(environ), _s3_from(environ))
        if names_redis or names_s3:
            raise BadInput(
                "the environment names only one of Redis and S3",
                given="Redis" if names_redis else "S3",
                expected="both, or neither",
                remedy="set ROLLOUTPIPE_REDIS_URL, and ROLLOUTPIPE_S3_ENDPOINT or ROLLOUTPIPE_S3_REGION",
            )
        return cls.of_embedded(directory)

    @classmethod
    def of_embedded(cls, directory: Path) -> Connections:
        """The recorded embedded servers of a folder. Raises BadInput when there are none."""
        servers, credentials = read_servers(directory), read_credentials(directory)
        if servers is None or credentials is None:
            raise BadInput("no Redis and no S3 are named", given=f"folder {directory.resolve()}", remedy=REMEDY)
        return cls(
            RedisConnection(nodes=(("127.0.0.1", servers.redis.ports[0]),), password=credentials.redis_password),
            S3Connection(
                endpoint=f"http://127.0.0.1:{servers.s3.ports[0]}",
                region=LOCAL_REGION,
                access_key=credentials.s3_access_key,
                secret_key=credentials.s3_secret_key,
            ),
        )

    def environment(self) -> dict[str, str]:
        """Variables that give a child process the same connections. With secrets: never to be logged."""
        redis, s3 = self.redis, self.s3
        nodes = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in redis.nodes]
        variables = {
            "ROLLOUTPIPE_REDIS_USERNAME": redis.username,
            "ROLLOUTPIPE_REDIS_PASSWORD": redis.password,
            "ROLLOUTPIPE_REDIS_CA_FILE": redis.ca_file,
            "ROLLOUTPIPE_REDIS_CLUSTER": "1" if redis.cluster else None,
            "ROLLOUTPIPE_REDIS_SENTINEL_MASTER": redis.sentinel_master,
            "ROLLOUTPIPE_S3_ENDPOINT": s3.endpoint,
            "ROLLOUTPIPE_S3_REGION": s3.region,
            "AWS_ACCESS_KEY_ID": s3.access_key,
            "AWS_SECRET_ACCESS_KEY": s3.secret_key,
            "AWS_SESSION_TOKEN": s3.session_token,
        }
        if redis.sentinel_master is not None:
            variables["ROLLOUTPIPE_REDIS_SENTINEL"] = ",".join(nodes)
        else:
            scheme = "rediss" if redis.tls else "redis"
            variables["ROLLOUTPIPE_REDIS_URL"] = f"{scheme}://{nodes[0]}/{redis.database}"
        return {name: value for name, value in variables.items() if value is not None}


def _without_expect(params: dict[str, Any], **_: Any) -> None:
    """Send headers and body at once.

    botocore's `Expect: 100-continue` costs a round trip, loops for ever when the connection breaks inside the
    answer to it, and lets SeaweedFS 4.48 store an empty object when it breaks behind it.
    """
    params["headers"].pop("Expect", None)


def _s3_from(environ: Mapping[str, str]) -> S3Connection:
    endpoint = environ.get("ROLLOUTPIPE_S3_ENDPOINT") or None
    if endpoint is not None:
        _parse_url("ROLLOUTPIPE_S3_ENDPOINT", endpoint, ("http", "https"))
    return S3Connection(
        endpoint=endpoint,
        region=environ.get("ROLLOUTPIPE_S3_REGION") or "us-east-1",
        access_key=environ.get("AWS_ACCESS_KEY_ID"),
        secret_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=environ.get("AWS_SESSION_TOKEN"),
    )


def _redis_from(environ: Mapping[str, str]) -> RedisConnection:
    username = environ.get("ROLLOUTPIPE_REDIS_USERNAME")
    password = environ.get("ROLLOUTPIPE_REDIS_PASSWORD")
    ca_file = environ.get("ROLLOUTPIPE_REDIS_CA_FILE") or None
    if ca_file is not None and not Path(ca_file).is_file():
        raise BadInput("no such file", given=f"ROLLOUTPIPE_REDIS_CA_FILE={ca_file}", expected="PEM certificates")
    cluster = environ.get("ROLLOUTPIPE_REDIS_CLUSTER", "0")
    if cluster not in ("", "0", "1"):
        raise BadInput("not a switch", given=f"ROLLOUTPIPE_REDIS_CLUSTER={cluster}", expected="0 or 1")
    sentinels = environ.get("ROLLOUTPIPE_REDIS_SENTINEL")
    if sentinels:
        if environ.get("ROLLOUTPIPE_REDIS_URL") or cluster == "1":
            raise BadInput(
                "ROLLOUTPIPE_REDIS_SENTINEL stands beside another way to Redis",
                remedy="unset ROLLOUTPIPE_REDIS_URL and ROLLOUTPIPE_REDIS_CLUSTER, or the Sentinels",
            )
        master = environ.get("ROLLOUTPIPE_REDIS_SENTINEL_MASTER")
        if not master:
            raise BadInput(
                "the Sentinels' master has no name",
                remedy="set ROLLOUTPIPE_REDIS_SENTINEL_MASTER (`redis-cli -p 26379 sentinel masters` shows it)",
            )
        nodes = tuple(_parse_node(node) for node in sentinels.split(","))
        return RedisConnection(nodes, username, password, 0, ca_file is not None, ca_file, sentinel_master=master)
    url = _parse_url("ROLLOUTPIPE_REDIS_URL", environ["ROLLOUTPIPE_REDIS_URL"], ("redis", "rediss"))
    database = url.path.strip("/") or "0"
    if not database.isdigit():
        raise BadInput("not a Redis database", given=f"/{database} in ROLLOUTPIPE_REDIS_URL", expected="a number")
    return RedisConnection(
        nodes=((url.hostname or "", url.port or 6379),),
        username=unquote(url.username) if url.username else username,
        password=unquote(url.password) if url.password else password,
        database=int(database),
        tls=url.scheme == "rediss",
        ca_file=ca_file,
        cluster=cluster == "1",
    )


def _parse_node(text: str) -> tuple[str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdigit():
        raise BadInput("not a Sentinel", given=text, expected="host:port[,host:port]")
    return host.strip("[]"), int(port)


def _parse_url(name: str, text: str, schemes: tuple[str, ...]) -> SplitResult:
    """The URL, or BadInput that doesn't repeat it: it may hold a password."""
    expected = f"{' or '.join(f'{scheme}://' for scheme in schemes)}host[:port]"
    try:
        url = urlsplit(text)
        valid = url.scheme in schemes and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise BadInput(f"{name} is not an address", expected=expected)
    return url


def _is_loopback(endpoint: str | None) -> bool:
    host = urlsplit(endpoint or "").hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
