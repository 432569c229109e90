"""The command serve: a live page for run folders."""

from pathlib import Path
from typing import Annotated

import typer

from l0tre.cli.root import app
from l0tre.cli.terminal import say
from l0tre.errors import ConfigError

__all__ = ["serve"]


@app.command()
def serve(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="A folder with run folders.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.", min=0, max=65535)] = 8765,
    token: Annotated[
        str, typer.Option(envvar="L0TRE_TOKEN", help="Token that requests need; made up for other addresses.")
    ] = "",
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show all runs of a folder in a browser, those at work too: browse, compare, stop.

    Example: l0tre serve runs
    """
    import webbrowser

    from l0tre.serve import Address, Runs
    from l0tre.serve import serve as run_server

    if not runs.is_dir():
        raise ConfigError(f"{runs} is not a folder: give a folder with run folders, such as runs")

    def tell(address: Address) -> None:
        say(f"{address.page()}  (Ctrl-C ends it)")
        if show_it:
            webbrowser.open(address.page())

    run_server(Runs(runs), host=host, port=port, token=token, tell=tell)
