"""A tiny Qwen3 (598k parameters), warm-started on the pointer walk so that GRPO has something to lift.

    python -m rolloutpipe_components.init_weights.pointer_walk OUT [--seed N]

Two phases of supervised training on generated rows. First only walks, until the model can walk at all (the
running loss is below `WALK_LOSS`): stopped earlier, GRPO does not lift off. Then a mix of few walks and many
direct guesses, so that the model samples both and mostly guesses. Reward under sampling at temperature 1 is
then about 0.4, and GRPO finds that walking pays. `pointer_walk_model/` is what this makes with the default seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.data.pointer_walk import SYMBOLS, Walk, generate_walk, pair
from rolloutpipe_core.errors import RolloutPipeError

from .walk_skill import measure_walk_skill

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PAD_ID, EOS_ID = 0, 1

DEFAULT_SEED = 1
ROWS_SEED = 1  # not that of the runs' rows (DataConfig.seed)
LEARNING_RATE = 2e-3
RAMP_STEPS = 20
BATCH_TOKENS = 3000
POOL_ROWS = 4096
WALK_LOSS = 0.1  # nats a response token, running average
MAX_WALK_STEPS = 600
MIX_STEPS = 50
MIX_WALK_SHARE = 0.35

Example = tuple[list[int], list[int]]  # prompt ids, response ids


class WarmStartFailed(RolloutPipeError):
    pass


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One id a character: <pad> 0, <eos> 1, <unk> 2, then SYMBOLS. Nothing is added to what is encoded."""
    words = [PAD, EOS, UNKNOWN, *SYMBOLS]
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN)


def build_model(vocabulary: int, seed: int) -> Qwen3ForCausalLM:
    """Random float32 weights from the seed."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def demonstration(walk: Walk, walking: bool) -> str:
    """`"aDdBbB#B"` when walking, `"#B"` when guessing."""
    steps = zip(walk.path, [*walk.path[1:], walk.path[-1]], strict=True) if walking else ()
    return "".join(pair(node, target) for node, target in steps) + "#" + walk.answer


def warm_start(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> int:
    """Train in place; return the number of optimizer steps. Raises WarmStartFailed when walking is not learnt."""
    draw = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.95))
    batches = batches_by_length(draw)
    walk_steps = _learn_to_walk(model, tokenizer, optimizer, batches)
    for step, walks in enumerate(islice(batches, MIX_STEPS)):
        _set_learning_rate(optimizer, LEARNING_RATE * (1 - 0.9 * step / MIX_STEPS))
        _train_step(model, optimizer, [_example(tokenizer, w, draw.random() < MIX_WALK_SHARE) for w in walks])
    return walk_steps + MIX_STEPS


def _learn_to_walk(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[list[Walk]],
) -> int:
    average = 3.0
    for step, walks in enumerate(islice(batches, MAX_WALK_STEPS), start=1):
        _set_learning_rate(optimizer, LEARNING_RATE * min(1.0, step / RAMP_STEPS))
        loss = _train_step(model, optimizer, [_example(tokenizer, walk, True) for walk in walks])
        average = 0.9 * average + 0.1 * loss
        if average < WALK_LOSS:
            return step
    raise WarmStartFailed(
        "the warm start did not learn to walk",
        given=f"loss {average:.2f} after {MAX_WALK_STEPS} steps",
        expected=f"below {WALK_LOSS}",
        remedy="take another seed",
    )


def batches_by_length(draw: random.Random) -> Iterator[list[Walk]]:
    """Batches of about equal length within the token budget, in random order, without end."""
    for pool in count():
        walks = [generate_walk(ROWS_SEED, row) for row in range(pool * POOL_ROWS, (pool + 1) * POOL_ROWS)]
        walks.sort(key=lambda walk: tokens_of(walk) + 4 * draw.random())
        batches: list[list[Walk]] = [[]]
        for walk in walks:
            if (len(batches[-1]) + 1) * tokens_of(walk) > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(walk)
        draw.shuffle(batches)
        yield from batches


def tokens_of(walk: Walk) -> int:
    """Of the prompt and the walking response."""
    return len(walk.question) + 2 * len(walk.path) + 3


def _example(tokenizer: PreTrainedTokenizerFast, walk: Walk, walking: bool) -> Example:
    prompt, response = tokenizer([walk.question, demonstration(walk, walking)], add_special_tokens=False).input_ids
    return prompt, [*response, EOS_ID]


def _train_step(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, examples: Sequence[Example]) -> float:
    """One step on the mean loss of the response tokens; returns it, in nats."""
    ids, labels = pad_examples(examples)
    # Right padding behind a causal mask: what is padded is seen by no real token, so no attention mask is needed.
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def pad_examples(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Ids and labels, int64 [B, S], padded right; labels are -100 but at response tokens."""
    width = max(len(prompt) + len(response) for prompt, response in examples)
    ids = torch.full((len(examples), width), PAD_ID)
    labels = torch.full((len(examples), width), -100)
    for row, (prompt, response) in enumerate(examples):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return ids, labels


def _set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = value


def make_checkpoint(out: Path, seed: int) -> int:
    """Write the HF folder `out`; return the optimizer steps it took. One seed and torch build give the same bytes."""
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), seed)
    steps = warm_start(model, tokenizer, seed)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return steps


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write; made when it is missing.")],
    seed: Annotated[int, typer.Option(help="Of the weights and of the order of the rows.")] = DEFAULT_SEED,
) -> None:
    """Make the warm-started model of the pointer-walk task: about a minute on one core."""
    torch.set_num_threads(1)
    steps = make_checkpoint(out, seed)
    typer.echo(f"{out}: {steps} steps; {json.dumps(asdict(measure_walk_skill(out)))}")


if __name__ == "__main__":
    start_alone(main)
