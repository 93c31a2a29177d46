import numpy as np
import pytest
import torch
from rolloutpipe_components.rollout.engines.sampling import SamplingRows, SlotNoise, choose, truncation

from rolloutpipe_core.config.models import SamplingConfig
from rolloutpipe_core.noise import GumbelStream

# Probabilities 0.1, 0.4, 0.2, 0.3: from the likeliest down, ids 1, 3, 2, 0.
PROBABILITIES = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
LOGPROBS = PROBABILITIES.log()


@pytest.mark.parametrize(
    ("top_k", "top_p", "allowed"),
    [
        (0, 1.0, {0, 1, 2, 3}),
        (2, 1.0, {1, 3}),
        (0, 0.39, {1}),
        (0, 0.41, {1, 3}),
        (0, 0.69, {1, 3}),
        (0, 0.71, {1, 2, 3}),
        (0, 1e-9, {1}),
        # Of the best two, renormalised, id 1 has 4/7 = 0.571.
        (2, 0.57, {1}),
        (2, 0.58, {1, 3}),
        (9, 1.0, {0, 1, 2, 3}),
    ],
)
def test_truncation(top_k: int, top_p: float, allowed: set[int]) -> None:
    assert set(truncation(LOGPROBS, top_k, top_p)[0].nonzero()[:, 0].tolist()) == allowed


def test_token_is_the_argmax_of_logprob_and_noise() -> None:
    # Sums: -2.30 + 1, -0.92 - 1, -1.61 + 0.5, -1.20 + 0 -> id 2 wins with -1.11.
    noise = torch.tensor([[1.0, -1.0, 0.5, 0.0]])
    ids, logprobs = choose(LOGPROBS, noise, None)
    assert ids.tolist() == [2]
    assert logprobs.tolist() == pytest.approx([np.log(0.2)])


def test_truncation_hides_ids_from_the_choice_but_not_from_the_logprob() -> None:
    noise = torch.tensor([[9.0, 0.0, 9.0, 0.5]])
    ids, logprobs = choose(LOGPROBS, noise, ~truncation(LOGPROBS, 2, 1.0))
    assert ids.tolist() == [3]
    assert logprobs.tolist() == pytest.approx([np.log(0.3)])


def test_choices_follow_the_distribution() -> None:
    draws = 20_000
    noise = torch.from_numpy(GumbelStream(1, 4).take(draws)).float()
    ids, _ = choose(LOGPROBS.expand(draws, -1), noise, None)
    shares = ids.bincount(minlength=4) / draws
    # Five deviations of a share of 0.4.
    assert shares.tolist() == pytest.approx(PROBABILITIES[0].tolist(), abs=5 * (0.24 / draws) ** 0.5)


def test_each_row_has_its_own_settings() -> None:
    rows = SamplingRows(3)
    rows.set(0, SamplingConfig(temperature=0.5))
    rows.set(1, SamplingConfig(top_k=1))
    rows.set(2, SamplingConfig(top_p=0.41))
    slots = np.arange(3)
    logits = LOGPROBS.expand(3, -1)
    logprobs = rows.logprobs(logits, slots)
    # Halving T squares the probabilities: 0.01, 0.16, 0.04, 0.09 of 0.3.
    assert logprobs[0].exp().tolist() == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30])
    assert logprobs[1].exp().tolist() == pytest.approx(PROBABILITIES[0].tolist())
    forbidden = rows.forbidden(logprobs, slots)
    assert forbidden is not None
    assert forbidden.tolist() == [[False] * 4, [True, False, True, True], [True, False, True, False]]


def test_nothing_is_forbidden_without_truncation() -> None:
    assert SamplingRows(2).forbidden(LOGPROBS.expand(2, -1), np.arange(2)) is None


def test_slots_go_through_their_streams_at_their_own_pace() -> None:
    vocabulary, steps = 58, 40  # more steps than are drawn ahead
    noise = SlotNoise(3, vocabulary)
    first, second, third = (GumbelStream(seed, vocabulary).take(steps).astype(np.float32) for seed in (10, 20, 30))
    noise.start(0, 10)
    noise.start(2, 20)
    for position in range(steps - 1):
        given = noise.take(np.array([0, 2])).numpy()
        assert given.tobytes() == np.stack([first[position], second[position]]).tobytes()
    noise.move(2, 1)  # goes on where slot 2 was
    noise.start(0, 30)
    assert noise.take(np.array([0, 1])).numpy().tobytes() == np.stack([third[0], second[steps - 1]]).tobytes()
