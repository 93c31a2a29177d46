import random
from collections.abc import Callable

import pytest
import torch
from rolloutpipe_components.rollout.engines.decoder import SlotDecoder
from rolloutpipe_components.rollout.engines.determinism import LEAST_ROWS, WINDOW_QUANTA, checked_shapes
from rolloutpipe_components.rollout.engines.policy import Policy
from rolloutpipe_components.rollout.engines.requests import EngineStatistics, Request, SampleState
from rolloutpipe_components.rollout.engines.shapes import DeterministicShapes

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, WeightVersion
from rolloutpipe_core.errors import EngineFailure
from rolloutpipe_core.noise import sample_seed

Policies = Callable[..., Policy]
Bits = tuple[bytes, bytes]
SAMPLES = 4


def bits(
    policy: Policy, shapes: DeterministicShapes, slots: int, prompts: list[list[int]], order: list[int], late: int = 0
) -> dict[int, list[Bits]]:
    """Ids and log-probabilities of each group, submitted in this order, the last `late` ones only after 5 steps."""
    decoder = SlotDecoder(policy, WeightVersion(0, "0" * 64), slots, EngineStatistics(), shapes)
    ended: dict[int, list[Bits]] = {}

    def submit(group: int) -> None:
        def end(result: object) -> None:
            assert isinstance(result, list)
            completions: list[Completion] = result
            ended[group] = [(c.response_ids.tobytes(), c.behavior_logprobs.tobytes()) for c in completions]

        samples = [SampleState(sample_seed(0, 0, group, sample)) for sample in range(SAMPLES)]
        decoder.submit(Request(prompts[group], SamplingConfig(max_new_tokens=60), policy.eos_ids, samples, 0, end))

    for group in order[: len(order) - late]:
        submit(group)
    for _ in range(5):
        decoder.step()
    for group in order[len(order) - late :]:
        submit(group)
    while decoder.requests:
        decoder.step()
    return ended


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sample_depends_on_nothing_else_in_the_batch(
    policies: Policies, prompts: list[list[int]], family: str, dtype: str
) -> None:
    policy = policies(family, dtype)
    shapes = checked_shapes(policy, slots=64)
    order = list(range(len(prompts)))
    expected = bits(policy, shapes, 4, prompts, order)
    assert len({ids for group in expected.values() for ids, _ in group}) > SAMPLES * len(prompts) / 2
    for slots in (8, 64):
        assert bits(policy, shapes, slots, prompts, order) == expected
    random.Random(1).shuffle(order)
    assert bits(policy, shapes, 16, prompts, order, late=4) == expected
    # Alone, without neighbours.
    for group in (0, 7):
        assert bits(policy, shapes, 64, prompts, [group]) == {group: expected[group]}


def test_fast_mode_gives_the_same_samples_up_to_rounding(policies: Policies, prompts: list[list[int]]) -> None:
    policy = policies()
    fast = SlotDecoder(policy, WeightVersion(0, "0" * 64), 16, EngineStatistics())
    given: list[Completion] = []
    seeds = [sample_seed(0, 0, 7, sample) for sample in range(SAMPLES)]
    samples = [SampleState(seed) for seed in seeds]
    fast.submit(Request(prompts[7], SamplingConfig(max_new_tokens=60), policy.eos_ids, samples, 0, given.extend))  # type: ignore[arg-type]
    while fast.requests:
        fast.step()
    expected = bits(policy, DeterministicShapes(4, 16), 16, prompts, [7])[7]
    assert [completion.response_ids.tobytes() for completion in given] == [ids for ids, _ in expected]


def test_the_shapes_are_those_that_the_machine_bears(policies: Policies) -> None:
    shapes = checked_shapes(policies(), slots=8)
    assert shapes.least_rows in LEAST_ROWS
    assert shapes.window_quantum in WINDOW_QUANTA


def test_a_forward_whose_bits_follow_its_rows_is_refused(policies: Policies) -> None:
    policy = Policy(policies("llama")._model)

    def scale_by_rows(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * (1 + 1e-3 * (output.shape[0] == 8))

    hook = policy._model.get_output_embeddings().register_forward_hook(scale_by_rows)
    try:
        with pytest.raises(EngineFailure, match=r"8 rows are not bit-equal here.*deterministic: false"):
            checked_shapes(policy, slots=8)
    finally:
        hook.remove()
