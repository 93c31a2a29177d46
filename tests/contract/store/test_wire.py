"""The lean GET and PUT do what the boto3 client does, on a real server and on ones that misbehave."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

import pytest
import trustme
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError, SSLError

from rolloutpipe_core.config.connections import S3Connection
from rolloutpipe_core.store.outage import Verdict, judge
from rolloutpipe_core.store.wire import BUFFER_BYTES, Wire


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES, 5 * 2**20 + 1])
def test_an_object_comes_back_as_it_went(object_store, s3_client, run_name, size):
    wire, key, data = Wire(s3_client, object_store.bucket), f"{run_name}/size", b"rollout!" * (size // 8 + 1)
    wire.put(key, data[:size], {"x-amz-meta-sha256": "ab"})
    assert wire.get(key) == data[:size]
    found = s3_client.get_object(Bucket=object_store.bucket, Key=key)
    assert (found["Body"].read(), found["Metadata"]) == (data[:size], {"sha256": "ab"})


@pytest.mark.parametrize("name", ["a b", "a+b", "a%20b", "a~b", "ä/ö", "a=b&c?d#e", "(a)'!*"])
def test_a_key_is_what_boto3_takes_it_for(object_store, s3_client, run_name, name):
    wire, key = Wire(s3_client, object_store.bucket), f"{run_name}/{name}"
    wire.put(key, b"ours", {})
    assert s3_client.get_object(Bucket=object_store.bucket, Key=key)["Body"].read() == b"ours"
    s3_client.put_object(Bucket=object_store.bucket, Key=key, Body=b"boto3's")
    assert wire.get(key) == b"boto3's"


def test_threads_share_it(object_store, s3_client, run_name):
    wire = Wire(s3_client, object_store.bucket)

    def use(number: int) -> None:
        for turn in range(5):
            data = bytes([number, turn]) * 1000
            wire.put(f"{run_name}/{number}", data, {})
            seen.append(wire.get(f"{run_name}/{number}") == data)

    seen: list[bool] = []
    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 40


def failure(call: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def test_a_refusal_is_the_clients(seaweedfs, object_store, s3_client):
    stranger = S3Connection(seaweedfs.endpoint, seaweedfs.region, seaweedfs.access_key, "wrong").client()
    for client, bucket in ((s3_client, object_store.bucket), (s3_client, "no-such-bucket"), (stranger, "any")):
        ours = failure(lambda client=client, bucket=bucket: Wire(client, bucket).get("none"))
        theirs = failure(lambda client=client, bucket=bucket: client.get_object(Bucket=bucket, Key="none"))
        assert isinstance(ours, ClientError) and isinstance(theirs, ClientError) and type(ours) is type(theirs)
        assert ours.response["Error"]["Code"] == theirs.response["Error"]["Code"]
        assert ours.operation_name == theirs.operation_name
        assert judge(ours) is judge(theirs)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


class Greeter(BaseHTTPRequestHandler):
    """Says hello, notes what it was asked, and keeps no connection."""

    asked: list[dict[str, str]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


def test_a_roles_token_is_sent_and_signed():
    with serving(Greeter) as port:
        client = S3Connection(f"http://127.0.0.1:{port}", "eu-west-1", "key", "secret", "token").client()
        assert Wire(client, "any").get("a") == b"hello"
    asked = Greeter.asked[-1]
    assert asked["x-amz-security-token"] == "token"
    assert "Credential=key/" in asked["authorization"] and "/eu-west-1/s3/aws4_request" in asked["authorization"]
    signed = asked["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"} <= set(signed)


def test_a_certificate_has_to_be_trusted(tmp_path, monkeypatch):
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    with serving(Greeter, context) as port:
        connection = S3Connection(f"https://127.0.0.1:{port}", "us-east-1", "key", "secret")
        unknown = failure(lambda: Wire(connection.client(), "any").get("a"))
        assert isinstance(unknown, SSLError) and judge(unknown) is Verdict.REFUSED
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        assert Wire(connection.client(), "any").get("a") == b"hello"
    assert Greeter.asked[-1]["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_what_is_sent_over_tls_is_not_http_2(tmp_path, monkeypatch):
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with serving(Greeter, context) as port:
        client = S3Connection(f"https://127.0.0.1:{port}", "us-east-1", "key", "secret").client()
        assert Wire(client, "any").get("a") == b"hello"


def test_the_proxy_is_boto3s_choice(monkeypatch):
    with serving(Greeter) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "localhost,10.0.0.0/8")  # curl knows such ranges, boto3 does not
        client = S3Connection("http://10.255.255.1:9000", "us-east-1", "key", "secret").client()
        assert Wire(client, "any").get("a") == b"hello"
        assert Greeter.asked[-1]["host"] == "10.255.255.1:9000"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        own = S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client()
        assert Wire(own, "any").get("a") == b"hello"
        assert Greeter.asked[-1]["host"] == f"127.0.0.1:{port}"


class CutOff(Greeter):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "500")
        self.end_headers()
        self.wfile.write(b"hello")


def test_half_an_answer_is_an_outage():
    with serving(CutOff) as port:
        client = S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client()
        error = failure(lambda: Wire(client, "any").get("a"))
    assert isinstance(error, HTTPClientError) and judge(error) is Verdict.RETRY


class OneEach(Greeter):
    """Closes each connection behind a whole answer without having said so."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.asked.append({"body": self.rfile.read(int(self.headers["Content-Length"])).decode()})
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.close_connection = True


def test_a_kept_connection_that_was_closed_is_replaced():
    with serving(OneEach) as port:
        wire = Wire(S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client(), "any")
        for number in range(3):
            wire.put("a", f"data {number}".encode(), {})
            assert OneEach.asked[-1] == {"body": f"data {number}"}


class Hanging(Greeter):
    """Sends half of its answer, and keeps the connection."""

    end = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "500")
        self.end_headers()
        self.wfile.write(b"hello")
        self.end.wait(60)


def test_an_answer_that_stands_still_is_an_outage():
    with serving(Hanging) as port:
        client = S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client(read_timeout_s=1.0)
        error = failure(lambda: Wire(client, "any").get("a"))
        assert not Hanging.end.is_set()
        Hanging.end.set()
    assert isinstance(error, HTTPClientError) and judge(error) is Verdict.RETRY


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_nobody_there_and_nobody_answering_are_outages(silent):
    client = S3Connection(f"http://127.0.0.1:{silent}", "us-east-1", "key", "secret").client(read_timeout_s=1.0)
    error = failure(lambda: Wire(client, "any").get("a"))
    assert isinstance(error, HTTPClientError) and judge(error) is Verdict.RETRY
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    client = S3Connection(f"http://127.0.0.1:{port}", "us-east-1", "key", "secret").client()
    error = failure(lambda: Wire(client, "any").get("a"))
    assert isinstance(error, EndpointConnectionError) and judge(error) is Verdict.RETRY


class Told(BaseException):
    """What a signal's handler raises."""


def test_a_signal_ends_a_wait(silent):
    def tell(number: int, frame: FrameType | None) -> None:
        raise Told

    client = S3Connection(f"http://127.0.0.1:{silent}", "us-east-1", "key", "secret").client(read_timeout_s=300.0)
    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Told):
            Wire(client, "any").get("a")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
