"""From a prompt to the ids that the engine and, unchanged, the loss see."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder. Raises BadInput when the folder holds none."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError) as error:
        raise BadInput(
            "cannot load the tokenizer", given=f"{directory}: {error}", remedy="set model.path to a complete folder"
        ) from error
    return tokenizer


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, max_tokens: int) -> list[int]:
    """Ids of one prompt: plain text as it is, messages through the chat template up to the assistant's turn.

    No special token is added beyond what the template writes. Raises BadInput for a prompt that is empty or
    longer than `max_tokens`, and when messages meet a tokenizer without a chat template.
    """
    ids: list[int] = tokenizer(_text(tokenizer, prompt), add_special_tokens=False).input_ids
    if not 1 <= len(ids) <= max_tokens:
        raise BadInput(
            "a prompt has a length that cannot be served",
            given=f"row {prompt.id} with {len(ids)} tokens",
            expected=f"1 to {max_tokens} tokens (data.max_prompt_tokens)",
            remedy="raise data.max_prompt_tokens or take the row out",
        )
    return ids


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    if prompt.messages is None:
        return prompt.text or ""
    if tokenizer.chat_template is None:
        raise BadInput(
            "the model has no chat template",
            given=f"row {prompt.id} with messages",
            remedy="take a chat model, or set data.chat=false and leave data.system_prompt out",
        )
    messages = [dict(message) for message in prompt.messages]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
