"""One SGLang server over HTTP: pooled connections, a deadline on each call, typed answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from .answers import Answer, Checksums, Generated, Loads, ModelInfo, Outcome, ServerInfo
from .failures import Broken, Refused, Unreachable, Unusable

T = TypeVar("T", bound=Answer)

CONNECT_S = 5.0
KEEP_ALIVE_S = 3.0
"""Idle connections are dropped before the server does so after 5 s: a request could meet one that is just closing."""
SHOWN = 500
"""Characters of an error's text that are told."""


class SglangClient:
    """Raises Unreachable when there is no answer, Refused when it is an error, Unusable when it cannot be read."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            # The engine's slots are the limit; a second one here would only hide samples from their replica.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            trust_env=False,  # a proxy for the outside has no way to servers in here
        )

    async def generate(self, body: Mapping[str, Any]) -> Generated:
        """One sample. No deadline of its own: how long one takes is the model's matter (see fleet.py)."""
        return await self._call(Generated, "POST", "/generate", None, body)

    async def model_info(self, deadline_s: float) -> ModelInfo:
        return await self._call(ModelInfo, "GET", "/model_info", deadline_s)

    async def server_info(self, deadline_s: float) -> ServerInfo:
        return await self._call(ServerInfo, "GET", "/server_info", deadline_s)

    async def pulse(self, deadline_s: float) -> tuple[float, ...]:
        """When each scheduler last told its load, by its own clock: it does so as it works."""
        answer = await self._call(Loads, "GET", "/v1/loads", deadline_s)
        return tuple(load.timestamp for load in answer.loads)

    async def pause(self, deadline_s: float) -> None:
        """End all that runs and sample nothing until `resume`."""
        await self._call(Outcome, "POST", "/pause_generation", deadline_s, {"mode": "abort"})

    async def resume(self, deadline_s: float) -> None:
        await self._call(Outcome, "POST", "/continue_generation", deadline_s, {})

    async def update_weights(self, directory: Path, weight_version: str, deadline_s: float) -> None:
        """Load other weights of the same model from a directory that the server can read, and forget all prefixes."""
        body = {"model_path": str(directory), "weight_version": weight_version, "flush_cache": True}
        outcome = await self._call(Outcome, "POST", "/update_weights_from_disk", deadline_s, body)
        if not outcome.success:
            raise Refused(f"{self.url} did not load the weights", given=outcome.message[:SHOWN])

    async def checksums(self, deadline_s: float) -> tuple[str, ...]:
        """One checksum a rank over the weights in its memory."""
        answer = await self._call(Checksums, "POST", "/weights_checker", deadline_s, {"action": "checksum"})
        if not answer.success or not answer.ranks:
            raise Refused(f"{self.url} gave no checksums", given=answer.message[:SHOWN])
        return tuple(rank.per_gpu_checksum for rank in answer.ranks)

    async def abort(self, rid: str, deadline_s: float) -> None:
        """End the request with exactly this id; another's, or one that has ended, makes no difference."""
        await self._call(Outcome, "POST", "/abort_request", deadline_s, {"rid": rid})

    async def abort_all(self, deadline_s: float) -> None:
        await self._call(Outcome, "POST", "/abort_request", deadline_s, {"rid": "", "abort_all": True})

    async def close(self) -> None:
        await self._http.aclose()

    async def _call(
        self, kind: type[T], method: str, path: str, deadline_s: float | None, body: Mapping[str, Any] | None = None
    ) -> T:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._http.request(method, path, content=content, headers=headers)
        except TimeoutError:
            raise Unreachable(f"{self.url}{path} gave no answer", expected=f"one within {deadline_s:g} s") from None
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}{path} gave no answer", given=_told(error)) from error
        if response.is_error:
            kind_of_error = Broken if response.is_server_error else Refused
            raise kind_of_error(f"{self.url}{path} refused", given=f"{response.status_code} {response.text[:SHOWN]}")
        try:
            # Some administrative calls answer with plain text, or with nothing.
            return kind.model_validate_json(response.content if kind is not Outcome else _object(response))
        except ValidationError as error:
            told = response.text[:SHOWN]
            raise Unusable(f"{self.url}{path} answered what cannot be read", given=f"{told}: {error}") from error


def _object(response: httpx.Response) -> bytes:
    return response.content if response.content.startswith(b"{") else b"{}"


def _told(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
