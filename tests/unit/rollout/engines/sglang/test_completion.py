"""From answers of SGLang 0.5.23, as recorded, to completions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rolloutpipe_components.rollout.engines.sglang.answers import Generated
from rolloutpipe_components.rollout.engines.sglang.completion import (
    completion_of,
    request_body,
    sampling_params,
    version_tag,
)
from rolloutpipe_components.rollout.engines.sglang.failures import Unusable, WrongVersion

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan, WeightVersion

V3 = WeightVersion(3, "c" * 64)
TAG = "v3@" + "c" * 64


def answer(ids: tuple[int, ...] = (223, 341, 265, 226), **meta: Any) -> dict[str, Any]:
    """Four tokens that ended by their length; keywords replace fields of `meta_info`."""
    info = {
        "id": "9d67",
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 4,
        "weight_version": TAG,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-6.4275, 223, None], [-6.3172, 341, None], [-6.2067, 265, None], [-0.5, 226, None]],
        "completion_tokens": 4,
        "weight_versions": [{"version": TAG, "start": 0, "end": 4}],
        "dp_rank": None,
    }
    return {"text": "..", "output_ids": list(ids), "meta_info": {**info, **meta}}


def completion(raw: dict[str, Any], fenced: bool = False) -> Completion:
    return completion_of(Generated.model_validate(raw), V3, fenced)


def test_ids_and_logprobs_are_the_answers_own() -> None:
    found = completion(answer())
    assert found.response_ids.tolist() == [223, 341, 265, 226]
    assert found.response_ids.dtype == np.int32
    np.testing.assert_array_equal(found.behavior_logprobs, np.float32([-6.4275, -6.3172, -6.2067, -0.5]))
    assert found.finish_reason is FinishReason.LENGTH
    assert found.spans == (VersionSpan(V3, 0, 4),)


def test_an_id_that_stopped_it_is_part_of_the_sample() -> None:
    found = completion(answer(finish_reason={"type": "stop", "matched": 226}))
    assert found.finish_reason is FinishReason.STOP
    assert found.response_ids[-1] == 226


def test_spans_are_kept_as_they_are() -> None:
    spans = [{"version": TAG, "start": 0, "end": 1}, {"version": TAG, "start": 1, "end": 4}]
    assert completion(answer(weight_versions=spans)).spans == (VersionSpan(V3, 0, 1), VersionSpan(V3, 1, 4))


@pytest.mark.parametrize(
    "spans",
    [
        [{"version": "default", "start": 0, "end": 4}],
        [{"version": TAG, "start": 0, "end": 2}, {"version": "v4@" + "d" * 64, "start": 2, "end": 4}],
        [{"version": "v3@" + "d" * 64, "start": 0, "end": 4}],  # the number alone does not make a version
    ],
)
def test_tokens_of_other_weights_are_no_sample(spans: list[dict[str, Any]]) -> None:
    with pytest.raises(WrongVersion, match="other weights"):
        completion(answer(weight_versions=spans))


@pytest.mark.parametrize("edges", [[], [(0, 3)], [(1, 4)], [(0, 2), (3, 4)], [(0, 3), (2, 4)], [(0, 5)]])
def test_spans_must_cover_the_sample_once(edges: list[tuple[int, int]]) -> None:
    spans = [{"version": TAG, "start": start, "end": end} for start, end in edges]
    with pytest.raises(Unusable, match="spans do not cover"):
        completion(answer(weight_versions=spans))


def test_a_server_without_spans_is_believed_only_when_fenced() -> None:
    assert completion(answer(weight_versions=None), fenced=True).spans == (VersionSpan(V3, 0, 4),)
    with pytest.raises(WrongVersion, match="reports no spans"):
        completion(answer(weight_versions=None))
    with pytest.raises(WrongVersion, match="default"):
        completion(answer(weight_versions=None, weight_version="default"), fenced=True)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (answer(finish_reason={"type": "abort", "message": "Abort before prefill"}), "abort Abort before prefill"),
        (answer(finish_reason=None), "finish reason None"),
        (answer(ids=(223, 341, 265)), "3 ids and 4 log-probabilities"),
        (answer(ids=(223, 341, 226, 265)), "not whole"),
        (answer(ids=(), output_token_logprobs=[]), "0 ids"),
        (
            answer(
                output_token_logprobs=[[-1, 223, None], [None, 341, None], [-1, 265, None], [-1, 226, None]],
            ),
            "not finite; given: at position 1",
        ),
    ],
)
def test_what_is_no_sample(raw: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        completion(raw)


def test_the_request_says_all_that_a_server_could_default() -> None:
    sampling = SamplingConfig(temperature=0.7, top_p=0.9, top_k=0, max_new_tokens=5)
    params = sampling_params(sampling, [1, 7], seed=(5 << 64) + 3)
    body = request_body([4, 5], params, "rid-0")
    assert body["input_ids"] == [4, 5]
    assert body["return_logprob"] is True
    assert "priority" not in body
    assert params["temperature"] == 0.7
    assert (params["top_p"], params["top_k"], params["max_new_tokens"]) == (0.9, -1, 5)
    assert params["stop_token_ids"] == [1, 7]
    assert params["repetition_penalty"] == 1.0
    assert params["sampling_seed"] == 3  # the low 63 bits
    assert request_body([4], params, "rid-1", priority=-12)["priority"] == -12
    assert sampling_params(SamplingConfig(top_k=20), [1], (1 << 63) + 1)["sampling_seed"] == 1


def test_a_version_is_named_by_number_and_manifest() -> None:
    assert version_tag(V3) == TAG
