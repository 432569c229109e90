"""Help, version, and words that the command line does not know."""

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import l0tre as package
from l0tre.cli.app import app
from l0tre.cli.options import Choices, Output, with_sets
from tests.cli.running import Files, check_error, l0tre

COMMON = [
    "--time-budget",
    "--epsilon",
    "--grid",
    "--colours",
    "--memory",
    "--mean",
    "--std",
    "--input-shape",
    "--device",
    "--data-dir",
    "--split",
    "--scale",
    "--resize",
    "--groups",
    "--mask",
    "--low",
    "--high",
    "--quiet",
    "--json",
]
OPTIONS = {
    "evaluate": [*COMMON, "--out", "--resume", "--max-t", "--limit", "--shuffle", "--seed", "--live"],
    "verify": [*COMMON, "--radius", "--index", "--timeout"],
    "show": ["--json", "--all"],
    "report": ["--format", "--open", "--out"],
    "serve": ["--host", "--port", "--token", "--open"],
}


@pytest.mark.parametrize("command", OPTIONS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_a_command_explains_every_option(command: str, flag: str) -> None:
    result = CliRunner().invoke(app, [command, flag], terminal_width=200, env={"COLUMNS": "200"})
    assert result.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    for option in OPTIONS[command]:
        assert re.search(rf"{option}\b", text), option
    assert "Usage" in text


def every_command(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = getattr(command, "commands", {})
    return [words, *(found for name, part in inner.items() for found in every_command(part, (*words, name)))]


@pytest.mark.parametrize("words", every_command(typer.main.get_command(app)), ids=" ".join)
def test_every_help_has_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], terminal_width=200, env={"COLUMNS": "200"})
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    assert " ".join(["Example: l0tre", *words, ""]) in text.replace("\n", " ")


def test_no_words_give_the_help() -> None:
    bare = l0tre()
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == l0tre("--help").out
    for command in OPTIONS:
        assert command in bare.out


def test_version() -> None:
    result = l0tre("--version")
    assert (result.code, result.out, result.err) == (0, f"l0tre {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["frobnicate"], "frobnicate"),
        (["evaluate"], "MODEL"),
        (["evaluate", "MODEL"], "no data were given"),
        (["evaluate", "MODEL", "DATA", "more"], "more"),
        (["evaluate", "MODEL", "DATA", "--frob"], "--frob"),
        (["evaluate", "MODEL", "DATA", "--out"], "--out"),
        (["evaluate", "MODEL", "DATA", "--epsilon", "wide"], "--epsilon"),
        (["evaluate", "MODEL", "DATA", "--max-t", "1.5"], "--max-t"),
        (["evaluate", "MODEL", "DATA", "--limit", "few"], "--limit"),
        (["verify", "MODEL", "DATA"], "--radius"),
        (["show"], "RUN"),
        (["report", "a", "b"], "b"),
    ],
)
def test_words_that_are_not_understood_give_one_line(files: Files, words: list[str], expected: str) -> None:
    known = {"MODEL": files.model, "DATA": files.data}
    check_error(l0tre(*(known.get(word, word) for word in words)), expected)


@pytest.mark.parametrize("command", ["evaluate", "verify", "check", "attack", "compare", "compare-attacks"])
def test_options_that_commands_share_are_the_same_everywhere(command: str) -> None:
    shared = [field.name for field in fields(Choices)]
    parameters = {parameter.name: parameter for parameter in typer.main.get_command(app).commands[command].params}  # type: ignore[attr-defined]
    known = {parameter.name: parameter for parameter in typer.main.get_command(app).commands["evaluate"].params}  # type: ignore[attr-defined]
    for name in shared:
        own, other = parameters[name], known[name]
        assert (own.opts, own.default, own.help) == (other.opts, other.default, other.help)


def test_a_set_of_options_stands_for_its_options() -> None:
    @with_sets
    def command(first: str, last: int = 3, *, output: Output) -> None:
        seen.append((first, last, output))

    seen: list[tuple[str, int, Output]] = []
    assert list(inspect.signature(command).parameters) == ["first", "last", "quiet", "as_json"]
    command(first="a", last=3, quiet=True, as_json=False)
    assert seen == [("a", 3, Output(quiet=True))]
    assert seen[0][2].silent
