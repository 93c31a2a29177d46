"""GET and PUT of whole objects, for what is handed over group by group.

boto3 spends a millisecond of CPU on the parameters, events and parsing of each call, more than all that we do to a
group. This takes the client's own signer and connections, and leaves the rest out. Errors are those of the client, so
that callers judge both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from http import HTTPStatus
from typing import Any

from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.parsers import create_parser
from botocore.response import StreamingBody
from botocore.utils import percent_encode

SAFE = "/~"  # what S3 leaves unquoted in a key


class Wire:
    """One bucket over one boto3 client, which is addressed path-style and signs with s3v4. Thread-safe."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def get(self, key: str) -> bytes:
        """The whole object. Raises as the client's `get_object` and the reading of its body do."""
        response = self._send("GetObject", AWSRequest("GET", self._url(key), stream_output=True))
        # It notices an answer that is cut off. A gateway that sends chunks tells no length.
        with closing(StreamingBody(response.raw, response.headers.get("Content-Length"))) as body:
            return bytes(body.read())

    def put(self, key: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Write the object. Raises as the client's `put_object` does."""
        self._send("PutObject", AWSRequest("PUT", self._url(key), headers=dict(headers), data=data))

    def _url(self, key: str) -> str:
        return f"{self._client.meta.endpoint_url}/{self._bucket}/{percent_encode(key, safe=SAFE)}"

    def _send(self, operation: str, request: AWSRequest) -> AWSResponse:
        # Asked each time: credentials of a role are renewed.
        region = self._client.meta.region_name
        self._client._request_signer.get_auth_instance("s3", region, "s3v4").add_auth(request)
        response = self._client._endpoint.http_session.send(request.prepare())
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._error(operation, response)
        return response

    def _error(self, operation: str, response: AWSResponse) -> Exception:
        model = self._client.meta.service_model
        answer = {"status_code": response.status_code, "headers": response.headers, "body": response.content}
        parser = create_parser(model.metadata["protocol"])
        parsed = parser.parse(answer, model.operation_model(operation).output_shape)
        kind = self._client.exceptions.from_code(parsed.get("Error", {}).get("Code"))
        error: Exception = kind(parsed, operation)
        return error
