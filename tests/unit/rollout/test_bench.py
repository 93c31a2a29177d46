import pytest
import torch
from rolloutpipe_components.rollout.bench import DETERMINISTIC, FAST, PLAIN_ALL, PLAIN_CHUNKS, plain_chunk, summarise
from transformers import Qwen3Config, Qwen3ForCausalLM


def test_ratios_are_medians_within_turns() -> None:
    turns = [
        {FAST: 200.0, DETERMINISTIC: 180.0, PLAIN_CHUNKS: 100.0, PLAIN_ALL: 80.0},
        {FAST: 100.0, DETERMINISTIC: 80.0, PLAIN_CHUNKS: 40.0, PLAIN_ALL: 25.0},
        {FAST: 90.0, DETERMINISTIC: 63.0, PLAIN_CHUNKS: 50.0, PLAIN_ALL: 60.0},
    ]
    report = summarise([3, 5, 10, 2], turns)
    assert (report.responses, report.mean_length, report.longest, report.turns) == (4, 5.0, 10, 3)
    assert report.fast_over_plain == 2.0  # of 2.0, 2.5 and 1.5
    assert report.deterministic_over_fast == 0.8  # of 0.9, 0.8 and 0.7
    speed = report.speeds[FAST]
    assert (speed.median, speed.least, speed.most) == (100.0, 90.0, 200.0)


def test_the_plain_loop_is_a_right_one() -> None:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.3,
    )
    model = Qwen3ForCausalLM(config).eval()
    prompts, lengths = [[5, 6, 7], [8] * 9, [9, 10]], [4, 2, 7]
    responses = plain_chunk(model, prompts, torch.tensor(lengths))
    assert [len(ids) for ids, _ in responses] == lengths
    for prompt, (ids, logprobs) in zip(prompts, responses, strict=True):
        with torch.no_grad():
            rows = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        expected = rows.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)
