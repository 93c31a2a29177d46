import string
from collections import Counter

import pytest

from rolloutpipe_core.data.pointer_walk import SYMBOLS, generate_walk, pair, pointer_walk_prompts


def solve(question: str) -> tuple[str, int]:
    """Root and hops, read from the question alone."""
    pairs, start = question[:-1].split("?")
    target = {pairs[i]: pairs[i + 1].lower() for i in range(0, len(pairs), 2)}
    assert len(target) == len(pairs) // 2, "a node points twice"
    node, hops = start, 0
    while target[node] != node:
        node, hops = target[node], hops + 1
        assert hops <= len(target), "the walk does not end"
    return node.upper(), hops


def test_rows_are_solvable():
    for index in range(2000):
        walk = generate_walk(5, index)
        assert solve(walk.question) == (walk.answer, len(walk.path) - 1)


def test_every_start_ends_at_a_root():
    for index in range(200):
        pairs = generate_walk(5, index).question.split("?")[0]
        for node in pairs[::2]:
            solve(f"{pairs}?{node}=")


def test_a_row_is_fixed_by_seed_and_index():
    assert generate_walk(2, 0).question == "zZxNpCjXnHcDqJhHdD?q="
    assert generate_walk(2, 0).path == (16, 9, 23, 13, 7)  # q -> J, j -> X, x -> N, n -> H, h -> H
    assert generate_walk(2, 0).answer == "H"
    assert generate_walk(2, 1).question == "vVtJbBoOrRlVnBhHjH?l="
    assert generate_walk(3, 0) != generate_walk(2, 0)


def test_hops_have_a_long_tail():
    hops = [len(generate_walk(0, index).path) - 1 for index in range(4000)]
    assert min(hops) == 1
    assert max(hops) == 20
    # 1 + floor of an exponential of mean 5, cut at 20: P(1) = 1 - exp(-1/5) = 0.181; P(20) = exp(-19/5) = 0.022.
    share = Counter(hops)
    assert abs(share[1] / 4000 - 0.181) < 0.03
    assert abs(share[20] / 4000 - 0.022) < 0.012


def test_questions_hold_only_the_tasks_symbols():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 55
    assert all(set(generate_walk(1, index).question) <= set(SYMBOLS) for index in range(100))


def test_pair():
    assert pair(0, 3) == "aD"
    assert string.ascii_lowercase.index("d") == 3


def test_prompt_set_is_lazy_and_fingerprinted():
    prompts = pointer_walk_prompts(2)
    assert len(prompts) == 100_000
    assert prompts.fingerprint == "9c2a058323128b6754928a27f6b8c5c2284e4815a17394f6a04e6632da0b0fef"
    assert prompts[0].id == "pointer-walk-2-000000"
    assert prompts[0].text == "zZxNpCjXnHcDqJhHdD?q="
    assert prompts[0].answer == "H"
    assert prompts[0].metadata == {"hops": "4"}
    assert prompts[99_999] == prompts[-1]
    assert [prompt.id for prompt in prompts[1:3]] == ["pointer-walk-2-000001", "pointer-walk-2-000002"]
    with pytest.raises(IndexError):
        prompts[100_000]


def test_fingerprint_tells_seed_and_count_apart():
    marks = {pointer_walk_prompts(seed, rows).fingerprint for seed in (1, 2) for rows in (1, 10, 1000, 1001)}
    assert len(marks) == 8
