import pytest
from rolloutpipe_components.rollout.tokenize import encode_prompt, load_tokenizer

from rolloutpipe_core.data.models import resolve_model
from rolloutpipe_core.domain import Prompt
from rolloutpipe_core.errors import BadInput

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}={{ m.content }}?{% endfor %}{{ '#' if add_generation_prompt }}"


@pytest.fixture
def tokenizer():
    return load_tokenizer(resolve_model("builtin:pointer-walk"))


def text(content: str) -> Prompt:
    return Prompt(id="w-0", answer="B", text=content)


def test_text_is_encoded_as_it_is(tokenizer):
    # a-z are 6..31, A-Z 32..57, ?=# are 3, 4, 5 in the shipped tokenizer.
    assert encode_prompt(tokenizer, text("aD?z="), 5) == [6, 35, 3, 31, 4]


def test_messages_go_through_the_chat_template_up_to_the_assistants_turn(tokenizer):
    tokenizer.chat_template = TEMPLATE
    messages = ({"role": "system", "content": "A"}, {"role": "user", "content": "bC"})
    prompt = Prompt(id="w-0", answer="B", messages=messages)
    assert encode_prompt(tokenizer, prompt, 16) == tokenizer("s=A?u=bC?#").input_ids


def test_too_long_a_prompt_names_row_and_length(tokenizer):
    with pytest.raises(BadInput, match=r"row w-0 with 5 tokens.*1 to 4 tokens \(data.max_prompt_tokens\)"):
        encode_prompt(tokenizer, text("aD?z="), 4)


def test_an_empty_prompt_is_refused(tokenizer):
    with pytest.raises(BadInput, match="row w-0 with 0 tokens"):
        encode_prompt(tokenizer, text(""), 4)


def test_messages_without_a_template_are_refused(tokenizer):
    with pytest.raises(BadInput, match=r"no chat template.*data\.chat=false"):
        encode_prompt(tokenizer, Prompt(id="w-0", answer="B", messages=({"role": "user", "content": "a"},)), 9)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot load the tokenizer"):
        load_tokenizer(tmp_path)
