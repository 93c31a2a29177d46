"""Scores of vocabulary shards. Shards of several ranks are compared in tests/contract/megatron."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from rolloutpipe_components.trainer.backends.megatron import vocabulary
from rolloutpipe_components.trainer.backends.megatron.vocabulary import ShardScores, score_shard
from torch import distributed
from torch.distributed import ProcessGroup

N, HIDDEN, VOCABULARY, TEMPERATURE = 7, 6, 11, 1.7


@pytest.fixture(scope="module")
def group() -> Iterator[ProcessGroup]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(N, HIDDEN, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, generator=generator, requires_grad=True)
    return states, weight, torch.randint(VOCABULARY, (N,), generator=generator)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("ids", [VOCABULARY - 2, VOCABULARY, VOCABULARY + 9], ids=["padded", "whole", "not the last"])
def test_scores_and_gradients_are_those_of_log_softmax(rows, ids, group, given, monkeypatch):
    monkeypatch.setattr(vocabulary, "CHUNK_LOGITS", rows * VOCABULARY)
    states, weight, targets = given
    targets = targets.clamp(max=ids - 1)
    scores = score_shard(
        states, weight, targets, first=0, ids=ids, temperature=TEMPERATURE, group=group, entropy_gradient=True
    )
    table = torch.log_softmax(states @ weight[:ids].T / TEMPERATURE, dim=-1)
    logprobs, entropy = table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(1)
    torch.testing.assert_close(scores.logprobs, logprobs)
    torch.testing.assert_close(scores.entropy, entropy)
    mix = torch.linspace(-1, 2, N, dtype=torch.float64)
    given_gradients = torch.autograd.grad(
        (mix * scores.logprobs + mix.flip(0) * scores.entropy).sum(), (states, weight)
    )
    expected = torch.autograd.grad((mix * logprobs + mix.flip(0) * entropy).sum(), (states, weight))
    for left, right in zip(given_gradients, expected, strict=True):
        torch.testing.assert_close(left, right)


def test_the_gradient_is_that_of_finite_differences(group):
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([0, 4, 2, 2])
    assert torch.autograd.gradcheck(lambda logits: ShardScores.apply(logits, targets, group), (logits,))


def test_entropy_has_a_gradient_only_when_asked(group, given):
    states, weight, targets = given
    scores = score_shard(
        states, weight, targets, first=0, ids=VOCABULARY, temperature=1.0, group=group, entropy_gradient=False
    )
    assert scores.logprobs.requires_grad
    assert not scores.entropy.requires_grad


def test_large_logits_do_not_overflow(group):
    logits = torch.tensor([[1000.0, 0.0], [-1000.0, -1000.0]])
    logprobs, entropy = ShardScores.apply(logits, torch.tensor([0, 1]), group)
    assert logprobs.tolist() == pytest.approx([0.0, -0.6931472])
    assert entropy.tolist() == pytest.approx([0.0, 0.6931472])
