"""README and docs cannot rot: links and anchors resolve, named commands exist, generated pages are current."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import typer

from rolloutpipe_core.cli.main import app
from rolloutpipe_core.config.reference import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
CODE = re.compile(r"^(```|~~~)[^\n]*\n(?P<block>.*?)^\1|`(?P<span>[^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ |.*[ /])?rolloutpipe((?: [a-z-]+)+)", re.MULTILINE)


def anchor(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    kept = [c for c in text if c in "-_ " or unicodedata.category(c)[0] in "LNM"]
    return "".join(kept).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        name = anchor(heading)
        repeats = sum(one == name or re.fullmatch(rf"{re.escape(name)}-\d+", one) is not None for one in found)
        found.append(f"{name}-{repeats}" if repeats else name)
    return set(found)


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue  # another site
        path, _, fragment = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (fragment and (target.suffix != ".md" or fragment not in anchors(target))):
            broken.append(link)
    return broken


def commands(page: Path) -> list[str]:
    """The words after `rolloutpipe` in every line of code, up to the first that is no plain word."""
    code = (match["block"] or match["span"] or "" for match in CODE.finditer(page.read_text()))
    return [words.strip() for text in code for words in COMMAND.findall(text)]


def resolve(words: list[str]) -> str | None:
    """The first word that is no command where one must stand, or None."""
    commands: dict[str, Any] | None = {"rolloutpipe": typer.main.get_command(app)}
    for word in ["rolloutpipe", *words]:
        if commands is None:
            return None  # a command's own argument
        if word not in commands:
            return word
        commands = getattr(commands[word], "commands", None)
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_and_anchors_resolve(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_exist(page: Path) -> None:
    wrong = {line: bad for line in commands(page) if (bad := resolve(line.split())) is not None}
    assert wrong == {}


def test_configuration_page_is_generated() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == reference(), "run: rolloutpipe config reference > docs/configuration.md"


def test_the_reading_finds_what_is_wrong(tmp_path: Path) -> None:
    """The tests above stand on this reading."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n# Same\n# Same\n[a](#one-two-three) [b](#same-1) [c](gone.md) [d](#no)\n")
    assert broken_links(page) == ["gone.md", "#no"]
    assert resolve(["config", "check"]) is None
    assert resolve(["config", "chekc"]) == "chekc"
    assert resolve(["frobnicate"]) == "frobnicate"
    fenced = "```\n$ rolloutpipe up\nexec .venv/bin/rolloutpipe run a.yaml\n```\n"
    page.write_text(f"Run `rolloutpipe config check X`\nrolloutpipe says\n{fenced}")
    assert commands(page) == ["config check", "up", "run a"]
