import shutil

import numpy as np
import pytest
from rolloutpipe_components.rollout.tokenize import PromptTokenizer

from rolloutpipe_core.config.models import DataConfig
from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.data.pointer_walk import pointer_walk_prompts
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput

SHIPPED = resolve_model("builtin:pointer-walk")
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}={{ m.content }}?{% endfor %}{{ '#' if add_generation_prompt }}"


def shipped(max_prompt_tokens: int = 96) -> PromptTokenizer:
    return PromptTokenizer(SHIPPED, DataConfig(max_prompt_tokens=max_prompt_tokens))


def text(content: str) -> Prompt:
    return Prompt(id="w-0", answer="B", text=content)


def test_text_is_encoded_as_it_is():
    # a-z are 6..31, A-Z 32..57, ?=# are 3, 4, 5 in the shipped tokenizer.
    assert shipped(5).encode(text("aD?z=")) == [6, 35, 3, 31, 4]


def test_responses_are_decoded_without_special_tokens():
    assert shipped().decode(np.array([6, 35, 5, 57, 1], dtype=np.int32)) == "aD#Z"
    assert shipped().decode(np.array([], dtype=np.int32)) == ""


def test_prompts_survive_the_way_there_and_back():
    tokenizer = shipped()
    for prompt in pointer_walk_prompts(2, 50):
        ids = tokenizer.encode(prompt)
        assert len(ids) == len(prompt.text)
        assert tokenizer.decode(ids) == prompt.text


def test_messages_go_through_the_chat_template_up_to_the_assistants_turn(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = PromptTokenizer(tmp_path, DataConfig(chat=True))
    messages = ({"role": "system", "content": "A"}, {"role": "user", "content": "bC"})
    prompt = Prompt(id="w-0", answer="B", messages=messages)
    assert tokenizer.encode(prompt) == tokenizer.encode(text("s=A?u=bC?#"))


def test_too_long_a_prompt_names_row_and_length():
    with pytest.raises(BadInput, match=r"row w-0 with 5 tokens.*1 to 4 tokens \(data.max_prompt_tokens\)"):
        shipped(4).encode(text("aD?z="))


def test_an_empty_prompt_is_refused():
    with pytest.raises(BadInput, match="row w-0 with 0 tokens"):
        shipped().encode(text(""))


def test_messages_without_a_template_are_refused():
    with pytest.raises(BadInput, match=r"no chat template.*data\.chat=false"):
        shipped().encode(Prompt(id="w-0", answer="B", messages=({"role": "user", "content": "a"},)))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot load the tokenizer"):
        PromptTokenizer(tmp_path, DataConfig())
