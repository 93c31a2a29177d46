"""What a pointer-walk model can do: how often it walks, and how often it is right when it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolloutpipe_core.data.pointer_walk import pointer_walk_prompts
from rolloutpipe_core.rewards.pointer_walk import verify

EVALUATION_SEED = 777  # rows that neither the warm start nor a run trains on
LONGEST_GUESS = 3  # "#B" and the eos


@dataclass(frozen=True, slots=True)
class WalkSkill:
    """Shares in [0, 1], of sampled responses at temperature 1."""

    reward: float
    walk_share: float
    walk_accuracy: float
    guess_accuracy: float


@torch.no_grad()
def measure_walk_skill(directory: Path, rows: int = 512, seed: int = 0) -> WalkSkill:
    """Sample one response (at most 96 tokens) to each of `rows` prompts."""
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    prompts = list(pointer_walk_prompts(EVALUATION_SEED, rows))
    batch = tokenizer([prompt.text for prompt in prompts], padding=True, return_tensors="pt", add_special_tokens=False)
    torch.manual_seed(seed)
    sampled = model.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        max_new_tokens=96,
    )
    responses = sampled[:, batch.input_ids.shape[1] :]
    lengths = (responses != tokenizer.pad_token_id).sum(1)
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    rewards = torch.tensor([verify(prompt, text).value for prompt, text in zip(prompts, texts, strict=True)])
    walks = lengths > LONGEST_GUESS
    return WalkSkill(
        reward=rewards.mean().item(),
        walk_share=walks.float().mean().item(),
        walk_accuracy=rewards[walks].mean().item(),
        guess_accuracy=rewards[~walks].mean().item(),
    )
