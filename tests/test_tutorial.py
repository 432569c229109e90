"""Code in documents runs as written: tutorial and README block by block; commands elsewhere have options that exist."""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import typer

from l0tre.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the block of output that follows it, if one does."""

    language: str
    text: str
    output: str


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    found = re.findall(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [Block(*parts) for parts in found if parts[0] != "text"]


def commands(text: str) -> Iterator[str]:
    """The commands of a block that are ours or Python's, without comments."""
    text = text.replace("\\\n", " ")
    text = re.sub(r"^for .*?; do (.*); done", r"\1", text, flags=re.MULTILINE)
    # A program between quotes goes over several lines.
    for match in re.finditer(r"^(?:\S*/)?(l0tre [^\n]*|python -c '[^']*'[^\n]*)", text, re.MULTILINE):
        yield re.sub(r"\s+# .*", "", match.group(1)) if match.group(1).startswith("l0tre") else match.group(1)


def call(program: str, words: list[str]) -> int:
    """Run a command in this process; its exit code."""
    try:
        if program == "python":
            exec(compile(words[1], "<python -c>", "exec"), {})
        else:
            with mock.patch.object(sys, "argv", ["l0tre", *words]):
                main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def run_shell(block: Block) -> None:
    """Run a block's commands, and compare the exit codes that it shows."""
    shown = []
    for command in commands(block.text):
        line, _, echo = command.partition("; echo ")
        line, _, target = line.partition(" > ")
        program, *words = shlex.split(line.partition(" | ")[0])
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = call(program, words)
        if target:
            Path(target).write_text(out.getvalue())
        if echo:
            shown.append(f"exit code {code}")
        else:
            assert code == 0, (command, out.getvalue())
    assert shown == re.findall(r"^exit code \d+$", block.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("document", "shell"),
    [
        ("docs/tutorial.md", True),
        # Their commands take half a minute; the tests of the command line are about the same ones.
        ("README.md", False),
        ("docs/attacks.md", False),
    ],
)
def test_blocks_run_in_order(document: str, shell: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        for block in blocks(ROOT / document):
            if block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block.text, document, "exec"), names)
            elif block.language == "sh" and shell:
                run_shell(block)


def shell_commands() -> list[str]:
    found = [command for path in DOCUMENTS for block in blocks(path) for command in commands(block.text)]
    return sorted({command.partition(";")[0] for command in found if command.startswith("l0tre")})


@pytest.mark.parametrize("command", shell_commands())
def test_commands_have_options_that_exist(command: str) -> None:
    from l0tre.cli.app import app

    line = re.split(r" [|>] ", command)[0]
    words = shlex.split(line)[1:]
    group: Any = typer.main.get_command(app)
    context = group.make_context("l0tre", words[:1], resilient_parsing=True)
    while hasattr(group, "get_command"):
        name, *words = words
        found = group.get_command(context, name)
        assert found is not None, name
        group = found
    group.make_context(name, words)
