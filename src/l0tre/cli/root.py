"""The command line's root, to which the commands are added."""

from typing import Annotated, Any

import typer

from l0tre import __version__

__all__ = ["Abort", "UsageError", "app"]

# typer brings its own copy of click's exceptions or imports click, depending on its version; this base is in both.
UsageError: Any = typer.BadParameter.__mro__[1]
Abort: Any = typer.Abort

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How many pixels or features must change before a classifier's decision can change? "
    "A proved lower bound and a witnessed upper bound.\n\n"
    "Example: l0tre evaluate sdnn mnist5k --resize --shuffle --limit 5 --max-t 1",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"l0tre {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
