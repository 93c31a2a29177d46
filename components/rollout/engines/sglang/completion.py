"""A sample's request, and what becomes of its answer: pure. Ids and log-probabilities are the server's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan, WeightVersion

from .answers import Generated, MetaInfo
from .failures import Unusable, WrongVersion

SEED_BITS = 63
"""SGLang keeps seeds as signed 64-bit integers."""


def version_tag(version: WeightVersion) -> str:
    """The name that a server reports for a version: number and manifest sha, so that no other weights share it."""
    return f"v{version.number}@{version.sha}"


def sampling_params(sampling: SamplingConfig, stop_ids: Sequence[int], seed: int) -> dict[str, Any]:
    """SGLang's form of a sampling configuration.

    What a server could set by default (penalties, min_p) is sent too. `sampling_seed` has an effect only under
    `--enable-deterministic-inference`; elsewhere it is ignored.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": sampling.max_new_tokens,
        "stop_token_ids": list(stop_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "sampling_seed": seed & ((1 << SEED_BITS) - 1),
    }


def request_body(
    prompt_ids: Sequence[int], params: dict[str, Any], rid: str, priority: int | None = None
) -> dict[str, Any]:
    """The body of `POST /generate` for one sample. `priority` is in the server's sense; None: it is not to schedule."""
    body = {"rid": rid, "input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True}
    return body if priority is None else {**body, "priority": priority}


def completion_of(answer: Generated, version: WeightVersion, fenced: bool) -> Completion:
    """The sample in an answer.

    `fenced`: nobody can have changed the server's weights between request and answer. Only then is a server believed
    that names the version of its last token alone. Raises Unusable, or WrongVersion for other weights.
    """
    meta = answer.meta_info
    finish = meta.finish_reason
    if finish is None or finish.type not in (FinishReason.STOP, FinishReason.LENGTH):
        told = finish and f"{finish.type} {finish.message or ''}".strip()
        raise Unusable("a sample did not end by itself", given=f"finish reason {told}", expected="stop or length")
    ids = [id for _, id, _ in meta.output_token_logprobs]
    logprobs = [logprob for logprob, _, _ in meta.output_token_logprobs]
    if not ids or ids != answer.output_ids:
        given = f"{len(answer.output_ids)} ids and {len(ids)} log-probabilities"
        raise Unusable("a sample is not whole", given=given, expected="one log-probability for each id")
    if None in logprobs:
        raise Unusable("a log-probability is not finite", given=f"at position {logprobs.index(None)}")
    return Completion(
        response_ids=np.array(ids, dtype=np.int32),
        behavior_logprobs=np.array(logprobs, dtype=np.float32),
        finish_reason=FinishReason(finish.type),
        spans=_spans(meta, len(ids), version, fenced),
    )


def _spans(meta: MetaInfo, length: int, version: WeightVersion, fenced: bool) -> tuple[VersionSpan, ...]:
    """Spans that cover [0, length), all of this version."""
    tag = version_tag(version)
    if meta.weight_versions is None:
        if not fenced:
            raise WrongVersion("a sample's weights are not known", given="the server reports no spans")
        if meta.weight_version != tag:
            raise _wrong(str(meta.weight_version), tag)
        return (VersionSpan(version, 0, length),)
    for span in meta.weight_versions:
        if span.version != tag:
            raise _wrong(span.version, tag)
    edges = [0, *(span.end for span in meta.weight_versions)]
    if [span.start for span in meta.weight_versions] != edges[:-1] or edges[-1] != length:
        given = ", ".join(f"{span.start} to {span.end}" for span in meta.weight_versions)
        raise Unusable("version spans do not cover the sample", given=given or "none", expected=f"0 to {length}")
    return tuple(VersionSpan(version, span.start, span.end) for span in meta.weight_versions)


def _wrong(given: str, tag: str) -> WrongVersion:
    return WrongVersion("a sample comes from other weights", given=given, expected=tag)
