import json

import pytest

from rolloutpipe_core.config.models import DataConfig
from rolloutpipe_core.data.load import load_prompts
from rolloutpipe_core.errors import BadInput


@pytest.fixture
def write(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "gsm8k-train.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def load(path, **settings):
    return load_prompts(DataConfig(source="jsonl", path=path, **settings))


def refusal(path, **settings) -> str:
    with pytest.raises(BadInput) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


ROWS = '{"question": "2+2?", "answer": "4"}\n\n{"question": "Größe?", "answer": 7}\n{"question": "x", "answer": 0.5}\n'


def test_rows_become_prompts(write):
    prompts = load(write(ROWS))
    assert [prompt.id for prompt in prompts] == ["gsm8k-train-000000", "gsm8k-train-000001", "gsm8k-train-000002"]
    assert [prompt.text for prompt in prompts] == ["2+2?", "Größe?", "x"]
    assert [prompt.answer for prompt in prompts] == ["4", "7", "0.5"]
    assert all(prompt.messages is None for prompt in prompts)


def test_rows_takes_the_first(write):
    assert len(load(write(ROWS), rows=2)) == 2
    assert len(load(write(ROWS), rows=200)) == 3


def test_rows_past_the_last_taken_are_not_read(write):
    assert len(load(write(ROWS + "not json\n"), rows=3)) == 3


def test_the_fingerprint_is_that_of_the_rows_taken(write):
    whole = load(write(ROWS))
    assert load(write(ROWS)).fingerprint == whole.fingerprint
    assert load(write(ROWS.replace("\n\n", "\n"))).fingerprint == whole.fingerprint
    assert load(write(ROWS), rows=2).fingerprint != whole.fingerprint
    assert load(write(ROWS), chat=True).fingerprint != whole.fingerprint
    assert load(write(ROWS.replace("7", "8"))).fingerprint != whole.fingerprint


def test_other_fields(write):
    path = write('{"problem": "p", "solution": "s", "question": "q", "answer": "a"}\n')
    (prompt,) = load(path, prompt_field="problem", answer_field="solution")
    assert (prompt.text, prompt.answer) == ("p", "s")


def test_chat_makes_messages(write):
    (prompt, *_) = load(write(ROWS), chat=True)
    assert prompt.text is None
    assert prompt.messages == ({"role": "user", "content": "2+2?"},)
    (prompt, *_) = load(write(ROWS), chat=True, system_prompt="Be short.")
    assert prompt.messages == ({"role": "system", "content": "Be short."}, {"role": "user", "content": "2+2?"})


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("48/2 = <<48/2=24>>24\n#### 72", "72"),
        ("#### 1,234,567", "1234567"),
        ("#### -3 ", "-3"),
        ("#### 5\nno:\n#### 6", "6"),
    ],
)
def test_gsm8k_answers(write, solution, answer):
    path = write(json.dumps({"question": "q", "answer": solution}) + "\n")
    assert load(path, answer_format="gsm8k")[0].answer == answer
    assert load(path)[0].answer == solution


@pytest.mark.parametrize("solution", ["72", "72 ####", "72 #### \n"])
def test_a_gsm8k_answer_without_its_mark_is_refused(write, solution):
    message = refusal(write(json.dumps({"question": "q", "answer": solution})), answer_format="gsm8k")
    assert "####" in message
    assert "gsm8k-train.jsonl line 1" in message
    assert "data.answer_format=plain" in message


def test_a_missing_file_is_named(tmp_path):
    assert str(tmp_path / "absent.jsonl") in refusal(str(tmp_path / "absent.jsonl"))
    assert str(tmp_path) in refusal(str(tmp_path))


def test_no_path_names_the_key():
    assert "data.path" in refusal(None)


def test_a_bad_line_is_named_by_its_number(write):
    assert "line 5" in refusal(write(ROWS + "{]\n"))
    assert "line 3" in refusal(write('{"question": "q", "answer": "a"}\n\n{"question": \n'))


def test_a_row_that_is_no_object_is_refused(write):
    assert "line 1: a JSON list" in refusal(write('["question"]\n'))


def test_a_missing_field_names_the_fields_there_are(write):
    message = refusal(write('{"problem": "p", "answer": "a"}\n'))
    assert "'question'" in message
    assert "line 1 with the fields problem, answer" in message
    assert "data.prompt_field" in message
    assert "data.answer_field" in refusal(write('{"question": "p", "label": "a"}\n'))


@pytest.mark.parametrize("value", ["null", "true", '""', '"  "', "[1]", "{}"])
def test_a_field_without_text_is_refused(write, value):
    message = refusal(write(f'{{"question": "q", "answer": {value}}}\n'))
    assert "the field 'answer' holds no text" in message
    assert "line 1" in message


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_refused(write, text):
    assert "no rows" in refusal(write(text))


def test_bytes_that_are_no_text_are_refused(write):
    assert "cannot read the data file" in refusal(write(b"\xff\xfe\x00"))


def test_the_default_source_is_the_pointer_walk():
    assert len(load_prompts(DataConfig())) == 100_000
    prompts = load_prompts(DataConfig(seed=3, rows=12))
    assert len(prompts) == 12
    assert prompts[0].id == "pointer-walk-3-000000"
