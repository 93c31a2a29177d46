from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rolloutpipe_components.rollout.engines.decoder import SlotDecoder
from rolloutpipe_components.rollout.engines.policy import Policy
from rolloutpipe_components.rollout.engines.requests import EngineStatistics, Request, SampleState
from rolloutpipe_components.rollout.engines.shapes import DeterministicShapes

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.domain import Completion, FinishReason, VersionSpan, WeightVersion
from rolloutpipe_core.errors import EngineFailure, RolloutPipeError

VERSION = WeightVersion(3, "c" * 64)
Policies = Callable[..., Policy]


class Run:
    """A decoder, and what its requests ended with, in the order of their ends."""

    def __init__(self, policy: Policy, slots: int, shapes: DeterministicShapes | None = None) -> None:
        self.policy = policy
        self.statistics = EngineStatistics()
        self.decoder = SlotDecoder(policy, VERSION, slots, self.statistics, shapes)
        self.ended: list[str] = []
        self.completions: dict[str, list[Completion]] = {}

    def submit(
        self, name: str, prompt: list[int], seeds: list[int], sampling: SamplingConfig, priority: int = 0
    ) -> Request:
        def end(result: list[Completion] | RolloutPipeError) -> None:
            assert isinstance(result, list)
            self.ended.append(name)
            self.completions[name] = result

        stop_ids = self.policy.eos_ids | frozenset(sampling.stop_ids)
        request = Request(prompt, sampling, stop_ids, [SampleState(seed) for seed in seeds], priority, end)
        self.decoder.submit(request)
        return request

    def to_the_end(self) -> None:
        while self.decoder.requests:
            self.decoder.step()


def never_stopping(policies: Policies) -> Policy:
    """The shared model without its eos: lengths are then those that a test asks for."""
    policy = policies()
    copy = Policy(policy._model)
    copy.eos_ids = frozenset()
    return copy


def teacher_forced(policy: Policy, prompt: list[int], response: NDArray[np.int32], temperature: float) -> torch.Tensor:
    """log-softmax(logits / T) of the response's ids from one plain forward over prompt and response, [T]."""
    with torch.no_grad():
        logits = policy.forward(torch.tensor([[*prompt, *response.tolist()]]))[0]
    logprobs = (logits / temperature).log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs.gather(1, torch.from_numpy(response).long()[:, None])[:, 0]


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("shapes", [None, DeterministicShapes(4, 16)])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(max_new_tokens=40),
        SamplingConfig(max_new_tokens=40, temperature=0.7),
        SamplingConfig(max_new_tokens=40, temperature=0.7, top_k=5, top_p=0.8),
    ],
)
def test_logprobs_are_those_of_a_teacher_forced_forward(
    policies: Policies,
    prompts: list[list[int]],
    family: str,
    shapes: DeterministicShapes | None,
    sampling: SamplingConfig,
) -> None:
    run = Run(policies(family), slots=8, shapes=shapes)
    for group, prompt in enumerate(prompts):
        run.submit(str(group), prompt, [100 * group + sample for sample in range(3)], sampling)
    run.to_the_end()
    lengths = set()
    for group, prompt in enumerate(prompts):
        for completion in run.completions[str(group)]:
            expected = teacher_forced(run.policy, prompt, completion.response_ids, sampling.temperature)
            assert completion.behavior_logprobs == pytest.approx(expected.numpy(), abs=1e-4)
            assert completion.behavior_logprobs.dtype == np.float32
            assert completion.response_ids.dtype == np.int32
            assert completion.spans == (VersionSpan(VERSION, 0, len(completion.response_ids)),)
            lengths.add(len(completion.response_ids))
    assert len(lengths) > 5  # ragged: slots were left and refilled at different steps


def test_a_freed_slot_is_taken_before_the_next_step(policies: Policies) -> None:
    # Two slots. The first token comes with the prompt, each further one takes a step: a (3 tokens) decodes in
    # steps 1 and 2, b (5) in steps 1 to 4, c (2), waiting, in step 3, d (2) in step 4.
    run = Run(never_stopping(policies), slots=2)
    for name, tokens in (("a", 3), ("b", 5), ("c", 2), ("d", 2)):
        run.submit(name, [5, 6, 7], [1], SamplingConfig(max_new_tokens=tokens))
    run.to_the_end()
    assert run.ended[:2] == ["a", "c"]
    assert sorted(run.ended[2:]) == ["b", "d"]
    assert (run.statistics.steps, run.statistics.slot_steps) == (4, 8)
    assert (run.statistics.tokens, run.statistics.samples_ended) == (12, 4)


def test_samples_that_end_with_their_first_token_take_no_step(policies: Policies) -> None:
    run = Run(policies(), slots=1)
    run.submit("a", [5, 6], [1, 2, 3], SamplingConfig(max_new_tokens=1))
    run.decoder.step()
    assert run.ended == ["a"]
    assert (run.statistics.steps, run.statistics.tokens) == (0, 3)


def test_a_prompt_is_prefilled_once_for_samples_that_start_at_different_steps(policies: Policies) -> None:
    run = Run(never_stopping(policies), slots=2)
    request = run.submit("a", [5, 6, 7], list(range(7)), SamplingConfig(max_new_tokens=3))
    run.to_the_end()
    assert (run.statistics.prefills, run.statistics.prompt_tokens) == (1, 3)
    assert run.statistics.steps == 8  # 4 waves of two slots, two steps each
    assert request.prompt is None  # let go with the last start


def test_lower_priority_numbers_start_first_and_equal_ones_as_they_came(policies: Policies) -> None:
    run = Run(never_stopping(policies), slots=1)
    for name, priority in (("late", 9), ("middle", 5), ("first", 1), ("second", 1)):
        run.submit(name, [5, 6], [1], SamplingConfig(max_new_tokens=2), priority)
    run.to_the_end()
    assert run.ended == ["first", "second", "middle", "late"]


def test_a_newcomer_of_lower_number_overtakes_the_waiting_rest_of_a_group(policies: Policies) -> None:
    run = Run(never_stopping(policies), slots=1)
    run.submit("group", [5, 6], [1, 2, 3], SamplingConfig(max_new_tokens=3), priority=2)
    run.decoder.step()
    run.submit("newcomer", [7, 8], [1], SamplingConfig(max_new_tokens=3), priority=1)
    run.to_the_end()
    assert run.ended == ["newcomer", "group"]


def test_top_k_of_one_is_greedy(policies: Policies) -> None:
    policy = never_stopping(policies)
    run = Run(policy, slots=4)
    run.submit("a", [5, 6, 7], [1, 2], SamplingConfig(max_new_tokens=12, top_k=1))
    run.to_the_end()
    ids = [5, 6, 7]
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(policy.forward(torch.tensor([ids]))[0, -1].argmax()))
    assert [completion.response_ids.tolist() for completion in run.completions["a"]] == [ids[3:]] * 2


def test_the_noise_decides_so_a_seed_repeats_its_sample(policies: Policies) -> None:
    run = Run(never_stopping(policies), slots=3)
    run.submit("a", [5, 6, 7], [1, 2, 1], SamplingConfig(max_new_tokens=12))
    run.to_the_end()
    first, second, third = (completion.response_ids.tolist() for completion in run.completions["a"])
    assert first == third != second


def test_stop_ids_end_a_response_and_belong_to_it(policies: Policies) -> None:
    free = Run(never_stopping(policies), slots=1)
    free.submit("a", [5, 6, 7], [1], SamplingConfig(max_new_tokens=12))
    free.to_the_end()
    response = free.completions["a"][0]
    assert response.finish_reason is FinishReason.LENGTH
    stop = int(response.response_ids[4])
    first = response.response_ids.tolist().index(stop)

    stopped = Run(free.policy, slots=1)
    stopped.submit("a", [5, 6, 7], [1], SamplingConfig(max_new_tokens=12, stop_ids=(stop,)))
    stopped.to_the_end()
    completion = stopped.completions["a"][0]
    assert completion.finish_reason is FinishReason.STOP
    assert completion.response_ids.tolist() == response.response_ids[: first + 1].tolist()


def test_the_models_eos_ends_a_response(policies: Policies, prompts: list[list[int]]) -> None:
    run = Run(policies(), slots=8)
    run.submit("a", prompts[0], list(range(32)), SamplingConfig(max_new_tokens=100))
    run.to_the_end()
    (eos,) = run.policy.eos_ids
    stopped = [c for c in run.completions["a"] if c.finish_reason is FinishReason.STOP]
    assert stopped
    assert all(c.response_ids.tolist().index(eos) == len(c.response_ids) - 1 for c in stopped)


def test_cancelling_frees_slots_and_queue_and_leaves_others_alone(policies: Policies) -> None:
    policy = never_stopping(policies)
    alone = Run(policy, slots=2, shapes=DeterministicShapes(4, 16))
    alone.submit("b", [7, 8], [4, 5], SamplingConfig(max_new_tokens=6))
    alone.to_the_end()

    run = Run(policy, slots=2, shapes=DeterministicShapes(4, 16))
    cancelled = run.submit("a", [5, 6], [1, 2, 3], SamplingConfig(max_new_tokens=50))
    run.decoder.step()
    run.submit("b", [7, 8], [4, 5], SamplingConfig(max_new_tokens=6))
    run.decoder.cancel(cancelled)
    run.decoder.cancel(cancelled)
    run.to_the_end()
    assert run.ended == ["b"]
    assert run.statistics.samples_ended == 5
    assert run.statistics.steps == 1 + 5
    for one, other in zip(run.completions["b"], alone.completions["b"], strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()


def test_calls_with_other_settings_share_a_step(policies: Policies) -> None:
    policy = policies()
    settings = [SamplingConfig(max_new_tokens=20), SamplingConfig(max_new_tokens=9, temperature=0.5, top_k=3)]
    together = Run(policy, slots=8, shapes=DeterministicShapes(4, 16))
    for index, sampling in enumerate(settings):
        together.submit(str(index), [5, 6, 7], [1, 2, 3], sampling)
    together.to_the_end()
    for index, sampling in enumerate(settings):
        alone = Run(policy, slots=8, shapes=DeterministicShapes(4, 16))
        alone.submit("a", [5, 6, 7], [1, 2, 3], sampling)
        alone.to_the_end()
        for one, other in zip(alone.completions["a"], together.completions[str(index)], strict=True):
            assert one.response_ids.tolist() == other.response_ids.tolist()


def test_logits_that_are_not_finite_are_a_failure(policies: Policies) -> None:
    policy = Policy(policies("llama")._model)
    logits = policy._model.get_output_embeddings().register_forward_hook(lambda *_: torch.full((1, 4, 61), torch.nan))
    try:
        run = Run(policy, slots=1)
        run.submit("a", [5, 6], [1], SamplingConfig(max_new_tokens=4))
        with pytest.raises(EngineFailure, match=r"not finite.*v3@cccc"):
            run.decoder.step()
    finally:
        logits.remove()
