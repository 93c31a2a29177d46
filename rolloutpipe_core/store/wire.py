"""GET and PUT of whole objects, for what is handed over group by group.

boto3 spends a millisecond of CPU and many turns of the interpreter's lock on each call, more than all that we do to a
group. libcurl signs, sends and reads beside the interpreter. Address, credentials, proxy and certificates are the boto3
client's, a standstill ends a transfer within about its read timeout, and the errors are the client's, so that callers
judge both alike. Keys have no `.` or `..` between their slashes: curl would resolve them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from io import BytesIO
from typing import Any

import pycurl
from botocore.exceptions import EndpointConnectionError, HTTPClientError, NoCredentialsError, SSLError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import percent_encode

SAFE = "/~"  # what S3 leaves unquoted in a key
BUFFER_BYTES = 256 * 1024
"""What is read at a time: most groups, so that the interpreter is asked but once."""
UNREACHABLE = (pycurl.E_COULDNT_CONNECT, pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_RESOLVE_PROXY)
UNTRUSTED = (pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_ISSUER_ERROR)
SPEED_WINDOW_S = 5
"""Over so long curl averages a speed before it calls it too low, once bytes have flowed."""


class Wire:
    """One bucket over one boto3 client, which is addressed path-style and signs with s3v4. Thread-safe."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._threads = threading.local()  # a connection each, kept open

    def get(self, key: str) -> bytes:
        """The whole object. Raises as the client's `get_object` and the reading of its body do."""
        return self._send("GetObject", key, (), {})

    def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Write the object. Raises as the client's `put_object` does."""
        # Without a callback curl can send the data again when a kept connection proves to be closed.
        self._send("PutObject", key, ((pycurl.CUSTOMREQUEST, "PUT"), (pycurl.POSTFIELDS, data)), headers)

    def _send(self, operation: str, key: str, options: Sequence[tuple[int, Any]], headers: Mapping[str, str]) -> bytes:
        url = f"{self._client.meta.endpoint_url}/{self._bucket}/{percent_encode(key, safe=SAFE)}"
        body = BytesIO()
        settings = (*self._settings(url, headers), *options, (pycurl.WRITEDATA, body))
        handle = self._handle()
        try:
            for option, value in settings:
                handle.setopt(option, value)
            handle.perform()
            status = handle.getinfo(pycurl.RESPONSE_CODE)
        except pycurl.error as error:
            raise _of_transport(url, error) from error
        finally:
            handle.reset()  # it would keep the data and the secret; the connection stays
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._refusal(operation, status, body.getvalue())
        return body.getvalue()

    def _handle(self) -> pycurl.Curl:
        """This thread's; nothing is set between two transfers."""
        if not hasattr(self._threads, "handle"):
            self._threads.handle = pycurl.Curl()
        handle: pycurl.Curl = self._threads.handle
        return handle

    def _settings(self, url: str, headers: Mapping[str, str]) -> list[tuple[int, Any]]:
        config, session = self._client.meta.config, self._client._endpoint.http_session
        settings: list[tuple[int, Any]] = [
            *self._signature(url, headers),
            (pycurl.URL, url),
            (pycurl.NOSIGNAL, 1),
            (pycurl.BUFFERSIZE, BUFFER_BYTES),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            # boto3 has decided; curl would ask the environment, too.
            (pycurl.PROXY, session._proxy_config.proxy_url_for(url) or ""),
            (pycurl.NOPROXY, ""),
            (pycurl.CONNECTTIMEOUT_MS, int(config.connect_timeout * 1000)),
            # A standstill ends it, and not its length.
            (pycurl.LOW_SPEED_LIMIT, 1),
            (pycurl.LOW_SPEED_TIME, max(1, math.ceil(config.read_timeout) - SPEED_WINDOW_S)),
        ]
        if bundle := get_cert_path(session._verify):
            settings += [(pycurl.CAINFO, bundle), (pycurl.PROXY_CAINFO, bundle)]
        else:
            settings += [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
        if threading.current_thread() is threading.main_thread():
            # Called now and then, so that a signal's handler runs, and what it raises ends the transfer.
            settings += [(pycurl.NOPROGRESS, 0), (pycurl.XFERINFOFUNCTION, _go_on)]
        return settings

    def _signature(self, url: str, headers: Mapping[str, str]) -> list[tuple[int, Any]]:
        """Who signs, and all headers: each is signed."""
        # Asked each time: credentials of a role are renewed.
        credentials = self._client._request_signer._credentials
        if credentials is None:
            raise NoCredentialsError
        frozen = credentials.get_frozen_credentials()
        sent = {"Content-Type": "", "Expect": "", **headers}
        if url.startswith("https:"):  # else curl signs the data's hash, as boto3 does
            sent["x-amz-content-sha256"] = "UNSIGNED-PAYLOAD"
        if frozen.token:
            sent["x-amz-security-token"] = frozen.token
        return [
            (pycurl.AWS_SIGV4, f"aws:amz:{self._client.meta.region_name}:s3"),
            (pycurl.USERNAME, frozen.access_key),
            (pycurl.PASSWORD, frozen.secret_key),
            # Without a value, curl leaves out what it would send by itself.
            (pycurl.HTTPHEADER, [f"{name}: {value}" if value else f"{name}:" for name, value in sent.items()]),
        ]

    def _refusal(self, operation: str, status: int, body: bytes) -> Exception:
        model = self._client.meta.service_model
        parser = create_parser(model.metadata["protocol"])
        answer = {"status_code": status, "headers": {}, "body": body}
        parsed = parser.parse(answer, model.operation_model(operation).output_shape)
        kind = self._client.exceptions.from_code(parsed.get("Error", {}).get("Code"))
        error: Exception = kind(parsed, operation)
        return error


def _go_on(*_: int) -> int:
    return 0


def _of_transport(url: str, error: pycurl.error) -> Exception:
    """A curl error as boto3's."""
    code, message = error.args[0], str(error.args[-1])
    told: Exception
    if code in UNTRUSTED:
        told = SSLError(endpoint_url=url, error=f"CERTIFICATE_VERIFY_FAILED: {message}")
    elif code in UNREACHABLE:
        told = EndpointConnectionError(endpoint_url=url, error=message)
    else:
        told = HTTPClientError(error=f"{message} ({url})")
    return told
