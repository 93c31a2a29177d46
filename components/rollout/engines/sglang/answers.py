"""What SGLang's HTTP server answers: the fields that are read, typed. Anything else in an answer is left alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Finish(Answer):
    """For example `{"type": "stop", "matched": 1}`."""

    type: str  # "stop", "length" or "abort"
    message: str | None = None


class Span(Answer):
    """Output tokens `start <= position < end` were sampled under `version`."""

    version: str
    start: int
    end: int


class MetaInfo(Answer):
    finish_reason: Finish | None = None
    output_token_logprobs: list[tuple[float | None, int, Any]] = []  # (log-probability, id, text or null)
    weight_version: str | None = None  # of the last token
    weight_versions: list[Span] | None = None  # absent on servers that know only the last


class Generated(Answer):
    """One sample of `POST /generate`."""

    output_ids: list[int] = []
    meta_info: MetaInfo


class ModelInfo(Answer):
    """`GET /model_info`, which the HTTP process answers by itself: also while it pauses, compiles or is busy."""

    model_path: str
    weight_version: str | None = None


class ServerInfo(Answer):
    """`GET /server_info`: how the server was started."""

    version: str | None = None
    device: str | None = None
    context_length: int | None = None
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False


class SchedulerLoad(Answer):
    timestamp: float  # seconds since the epoch, when the scheduler wrote it


class Loads(Answer):
    """`GET /v1/loads`: what the schedulers last wrote, one entry each. The HTTP process answers it by itself."""

    loads: list[SchedulerLoad] = []


class Outcome(Answer):
    """What an administrative call came to."""

    success: bool = True
    message: str = ""


class RankChecksum(Answer):
    per_gpu_checksum: str


class Checksums(Outcome):
    """`POST /weights_checker`: one checksum a rank, over all of its tensors."""

    ranks: list[RankChecksum] | None = None
