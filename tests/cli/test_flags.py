"""The library names Python arguments, the command line its options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import l0tre as package
from l0tre.cli.app import app
from l0tre.cli.flags import ARGUMENT, in_flags
from l0tre.errors import L0treError
from tests.cli.running import Files, check_error, l0tre

ROOT = Path(package.__file__).parent


def messages() -> Iterator[tuple[str, str]]:
    """Every text in the library that is raised as an error, with its file."""
    for file in sorted(ROOT.rglob("*.py")):
        if file.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                parts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
                yield from ((file.name, part) for part in parts if isinstance(part, str))


def options() -> set[str]:
    """Every option of every command."""
    found: set[str] = set()
    waiting = [typer.main.get_command(app)]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        found.update(option for parameter in command.params for option in parameter.opts)
    return found


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("widen the domain (`low`, `high`)", "widen the domain (--low, --high)"),
        ("`max_t` is 0: give 1 or more", "--max-t is 0: give 1 or more"),
        ("give `resize=True`, or another `out`", "give --resize, or another --out"),
        ("use `colours='corners'` or `device='cpu'`", "use --colours corners or --device cpu"),
        ("`memory_bytes`, `sample_ms`, `attack_queries`", "--memory, --sample, --attack"),
        ("nothing to say", "nothing to say"),
        ("a file named `Odd Name`", "a file named `Odd Name`"),
    ],
)
def test_arguments_become_options(message: str, expected: str) -> None:
    assert in_flags(message) == expected


def test_the_library_names_no_options() -> None:
    assert [(file, text) for file, text in messages() if re.search(r"(?<!\S)\(?--[a-z]", text)] == []


@pytest.mark.slow
def test_every_argument_that_the_library_names_has_an_option() -> None:
    known, named = options(), [in_flags(f"`{m[1]}`") for _, text in messages() for m in ARGUMENT.finditer(text)]
    assert len(named) > 20
    assert set(named) <= known


def test_one_error_in_python_and_on_the_command_line(files: Files, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=files.images * 3, y=files.labels)
    network = package.load(files.model, device="cpu")
    with pytest.raises(L0treError) as caught:
        package.evaluate(network, torch.from_numpy(files.images * 3), files.labels)
    assert "(`scale`)" in str(caught.value)
    assert "`low`, `high`" in str(caught.value)
    assert "--" not in str(caught.value)
    check_error(l0tre("evaluate", files.model, tmp_path / "wide.npz"), "(--scale)", "--low, --high", "--mean, --std")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-t", "0"], "--max-t is 0"),
        (["--attack", "-1"], "--attack is -1"),
        (["--sample", "1e13"], "--sample is"),
        (["--epsilon", "0"], "--epsilon is 0"),
        (["--grid", "fine"], "--grid 'fine' is unknown: give uniform or paper"),
        (["--guarantee", "sure"], "--guarantee 'sure' is unknown"),
    ],
)
def test_settings_are_called_as_they_were_typed(files: Files, words: list[str], expected: str) -> None:
    result = l0tre("evaluate", files.model, files.data, *words)
    check_error(result, expected)
    assert "`" not in result.err


def test_a_radius_is_called_as_it_was_typed(files: Files) -> None:
    check_error(l0tre("verify", files.model, files.data, "--radius", "99"), "--radius is 99", "give at most 16")
    check_error(l0tre("verify", files.model, files.data, "--radius", "0"), "--radius is 0")


def test_a_folder_with_a_run_is_named_with_the_options_that_help(files: Files, tmp_path: Path) -> None:
    words = ["evaluate", files.model, files.data, "--limit", "1", "--max-t", "1", "--out", str(tmp_path / "run"), "-q"]
    assert l0tre(*words).code == 0
    check_error(l0tre(*words), "holds a run already", "--resume", "--out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "--guarantee", "sure"), "--guarantee 'sure' is unknown"),
        (("evaluate", "--max-t", "0"), "--max-t is 0"),
        (("evaluate", "--out", "."), "is not empty"),
        (("verify", "--radius", "1", "--epsilon", "0"), "--epsilon is 0"),
        (("attack", "--method", "magic"), "--method 'magic' is unknown"),
    ],
)
def test_wrong_words_are_refused_before_a_model_is_loaded(words: tuple[str, ...], said: str) -> None:
    command, *options = words
    check_error(l0tre(command, "there-is-no.onnx", "there-is-no.npz", *options), said)
