"""From a prompt to the ids that the engine and, unchanged, the loss see; from sampled ids to the verifier's text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rolloutpipe_core.config.models import DataConfig
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput


class PromptTokenizer:
    """The tokenizer of a model folder. Raises BadInput when the folder holds none."""

    def __init__(self, model: Path, config: DataConfig) -> None:
        try:
            self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise BadInput(
                "cannot load the tokenizer", given=f"{model}: {error}", remedy="set model.path to a complete folder"
            ) from error
        self._max_tokens = config.max_prompt_tokens

    def encode(self, prompt: Prompt) -> list[int]:
        """Plain text as it is, messages through the chat template up to the assistant's turn.

        No special token is added beyond what the template writes. Raises BadInput for a prompt that is empty or
        longer than `data.max_prompt_tokens`, and when messages meet a tokenizer without a chat template.
        """
        ids: list[int] = self._tokenizer(self._text(prompt), add_special_tokens=False).input_ids
        if not 1 <= len(ids) <= self._max_tokens:
            raise BadInput(
                "a prompt has a length that cannot be served",
                given=f"row {prompt.id} with {len(ids)} tokens",
                expected=f"1 to {self._max_tokens} tokens (data.max_prompt_tokens)",
                remedy="raise data.max_prompt_tokens or take the row out",
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The response as text, without special tokens."""
        return str(self._tokenizer.decode([int(id) for id in ids], skip_special_tokens=True))

    def _text(self, prompt: Prompt) -> str:
        if prompt.messages is None:
            return prompt.text or ""
        if self._tokenizer.chat_template is None:
            raise BadInput(
                "the model has no chat template",
                given=f"row {prompt.id} with messages",
                remedy="take a chat model, or set data.chat=false and leave data.system_prompt out",
            )
        messages = [dict(message) for message in prompt.messages]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
