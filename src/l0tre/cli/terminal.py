"""Printing: plain lines, and tables of rich; texts from files cannot steer the terminal, see ``plain``."""

import typer
from rich.console import Console
from rich.markup import escape

from l0tre.cli.plain import plain

__all__ = ["literal", "say", "screen"]


def literal(text: object) -> str:
    """A text for rich, without control characters and without markup."""
    return escape(plain(text))


def say(text: object, *, err: bool = False, end: bool = True) -> None:
    """Print a line without control characters.

    Args:
        text: What to print.
        err: On standard error.
        end: Whether the line ends here.
    """
    typer.echo(plain(text), err=err, nl=end)


def screen(*, stderr: bool = False) -> Console:
    """A console of rich that colours nothing by itself."""
    return Console(stderr=stderr, highlight=False)
