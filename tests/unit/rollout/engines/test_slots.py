import pytest
import torch
from rolloutpipe_components.rollout.engines.slots import PrefilledPrompt, SlotCache
from torch import Tensor

LAYERS, HEADS, SIZE = 2, 3, 4


def prompt(length: int, start: float) -> PrefilledPrompt:
    count = LAYERS * 2 * HEADS * length * SIZE
    kv = (torch.arange(count, dtype=torch.float32) + start).view(LAYERS, 2, HEADS, length, SIZE)
    return PrefilledPrompt(kv, torch.zeros(5))


def step(cache: SlotCache, positions: list[int], value: float) -> list[tuple[Tensor, Tensor]]:
    """One step that writes `value` for keys and its negative for values; what each layer sees."""
    cache.begin_step(torch.tensor(positions), max(positions))
    new = torch.full((len(positions), HEADS, 1, SIZE), value)
    return [cache.update(new, -new, layer) for layer in range(LAYERS)]


def test_layers_see_the_prompt_and_what_was_written_behind_it() -> None:
    cache = SlotCache(4, window_quantum=8)
    short, long = prompt(3, 100.0), prompt(5, 900.0)
    cache.put(0, short)
    cache.put(1, long)
    for layer, (keys, values) in enumerate(step(cache, [3, 5], 7.0)):
        assert keys.shape == values.shape == (2, HEADS, 8, SIZE)
        assert torch.equal(keys[0, :, :3], short.kv[layer, 0])
        assert torch.equal(values[1, :, :5], long.kv[layer, 1])
        assert (keys[0, :, 3] == 7).all()
        assert (values[1, :, 5] == -7).all()


def test_window_is_the_quantum_that_holds_the_longest_row() -> None:
    cache = SlotCache(4, window_quantum=8)
    cache.put(0, prompt(7, 0.0))
    assert cache.begin_step(torch.tensor([7]), 7) == 8
    assert cache.begin_step(torch.tensor([8]), 8) == 16


def test_growing_keeps_what_was_written() -> None:
    cache = SlotCache(2, window_quantum=8)
    first = prompt(3, 100.0)
    cache.put(0, first)
    step(cache, [3], 7.0)
    cache.put(1, prompt(50, 5000.0))
    keys, _ = step(cache, [4, 50], 8.0)[1]
    assert keys.shape[2] == 56
    assert torch.equal(keys[0, :, :3], first.kv[1, 0])
    assert (keys[0, :, 3] == 7).all()
    assert (keys[0, :, 4] == 8).all()


def test_a_moved_slot_goes_on_elsewhere() -> None:
    cache = SlotCache(3, window_quantum=8)
    cache.put(0, prompt(2, 0.0))
    cache.put(2, prompt(4, 300.0))
    cache.move(2, 0, length=4)
    keys, values = step(cache, [4], 7.0)[0]
    assert torch.equal(keys[0, :, :4], prompt(4, 300.0).kv[0, 0])
    assert torch.equal(values[0, :, :4], prompt(4, 300.0).kv[0, 1])


def test_a_model_that_asks_for_one_length_is_told_that_rows_differ() -> None:
    with pytest.raises(NotImplementedError, match="position_ids"):
        SlotCache(1, 8).get_seq_length()
