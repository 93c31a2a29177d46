"""The shipped model's shapes, its tokenizer and the recipe's parts. The recipe itself runs in tests/e2e."""

import random
from itertools import islice

import pytest
import torch
from rolloutpipe_components.init_weights.pointer_walk import (
    BATCH_TOKENS,
    batches_by_length,
    build_model,
    build_tokenizer,
    demonstration,
    pad_examples,
    tokens_of,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.data.pointer_walk import Walk

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def shipped_tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("builtin:pointer-walk"))


def test_one_id_a_character(shipped_tokenizer):
    # 3 special ids, then ?=# (3, 4, 5), a-z (6..31), A-Z (32..57).
    assert len(shipped_tokenizer) == 58
    assert shipped_tokenizer("aD?z=#Z", add_special_tokens=False).input_ids == [6, 35, 3, 31, 4, 5, 57]
    assert shipped_tokenizer("aD").input_ids == [6, 35]
    assert shipped_tokenizer("a b", add_special_tokens=False).input_ids == [6, 2, 7]
    assert shipped_tokenizer.decode([6, 35, 5, 57, 1], skip_special_tokens=True) == "aD#Z"
    assert (shipped_tokenizer.pad_token_id, shipped_tokenizer.eos_token_id) == (0, 1)


def test_the_shipped_tokenizer_is_the_recipes(shipped_tokenizer):
    assert build_tokenizer().backend_tokenizer.to_str() == shipped_tokenizer.backend_tokenizer.to_str()


def test_the_shipped_weights_are_those_of_the_recipes_model():
    shipped = AutoModelForCausalLM.from_pretrained(resolve_model("builtin:pointer-walk"))
    built = build_model(58, seed=0)
    shapes = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    assert {name: tuple(tensor.shape) for name, tensor in shipped.state_dict().items()} == shapes
    assert shipped.num_parameters() == 598_336
    assert shipped.dtype is torch.float32
    assert shipped.generation_config.eos_token_id == 1
    assert all(tensor.isfinite().all() for tensor in shipped.state_dict().values())


def test_weights_follow_from_the_seed():
    first, again, other = (build_model(58, seed).model.embed_tokens.weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_demonstrations():
    walk = Walk(question="dBaDbB?a=", path=(0, 3, 1))
    assert demonstration(walk, walking=True) == "aDdBbB#B"
    assert demonstration(walk, walking=False) == "#B"


def test_padded_trains_only_responses():
    ids, labels = pad_examples([([6, 7], [5, 1]), ([8], [9])])
    assert ids.tolist() == [[6, 7, 5, 1], [8, 9, 0, 0]]
    assert labels.tolist() == [[-100, -100, 5, 1], [-100, 9, -100, -100]]


def test_batches_keep_the_token_budget():
    for walks in islice(batches_by_length(random.Random(0)), 20):
        assert 0 < len(walks) * max(tokens_of(walk) for walk in walks) <= BATCH_TOKENS + 4 * len(walks)
        assert max(map(tokens_of, walks)) - min(map(tokens_of, walks)) <= 10
