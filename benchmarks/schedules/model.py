"""Models with random weights, of a shape that makes a regime, and prompts of one length."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import torch
from rolloutpipe_components.init_weights.pointer_walk import EOS_ID, PAD_ID, build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from .plan import Shape


def write_model(shape: Shape, max_positions: int, folder: Path, seed: int = 1) -> int:
    """Write the HF folder, with the pointer walk's tokenizer, and return the number of parameters.

    The vocabulary is the tokenizer's, filled up with words that no prompt has. Of nearly uniform choices among V ids,
    one of which ends the response, it takes V on average until the end.
    """
    disable_progress_bar()
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(shape.vocabulary - len(tokenizer))])
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_size,
            max_position_embeddings=max_positions,
            tie_word_embeddings=False,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_prompts(tokens: int, rows: int, file: Path, seed: int = 1) -> None:
    """Write JSONL rows with a question of so many random letters (one id each) and a letter for an answer."""
    draw = random.Random(seed)
    with file.open("w") as lines:
        for _ in range(rows):
            question = "".join(draw.choices(string.ascii_letters, k=tokens))
            lines.write(json.dumps({"question": question, "answer": draw.choice(string.ascii_uppercase)}) + "\n")
