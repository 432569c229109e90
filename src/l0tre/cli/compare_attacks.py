"""The command compare-attacks: our attack beside those of other libraries."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen
from l0tre.defaults import PEER_BUDGET
from l0tre.errors import ConfigError

__all__ = ["compare_attacks"]


@app.command()
@opt.with_sets
def compare_attacks(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=opt.MODEL_HELP, show_default=False)] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=opt.DATA_HELP, show_default=False)] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Attacks to compare with.", show_default="all that can be imported"),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the attacks, their libraries, and whether they can be imported.")
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            metavar="N[,N,...]",
            help="Queries (forward and backward passes) for each input; several for curves (curves.csv, curves.png). "
            "Tables and files are about the last one.",
        ),
    ] = str(PEER_BUDGET),
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write compare.csv, compare.json, compare.png, ATTACK.npz.")
    ] = None,
    report: opt.ReportOption = None,
    *,
    choices: opt.Choices,
    selection: opt.Several,
    output: opt.Output,
) -> None:
    """Run our attack and those of other libraries on the same images with one budget; every result is replayed.

    Example: l0tre compare-attacks sdnn mnist5k --resize --shuffle --limit 5 --peers sparse-rs,l0tre-paper
    """
    from l0tre.adapters.attack_curves import curve_rows, write_curves
    from l0tre.adapters.attack_summary import to_dict
    from l0tre.adapters.compare_attacks import AttackComparison, compare
    from l0tre.adapters.peers import PEERS
    from l0tre.cli.pages import about, check_page, write_page
    from l0tre.cli.render_peers import list_peers, show_peers, why_not, write_peers
    from l0tre.cli.setup import prepare
    from l0tre.cli.signals import stop_on_signal
    from l0tre.data import select

    if listing:
        list_peers(as_json=output.as_json)
        return
    check_page(report)
    if model is None or data is None:
        raise ConfigError("give a model and data: l0tre compare-attacks MODEL DATA (or --list)")
    budgets = _numbers(budget)
    names = list(PEERS) if peers is None else [name.strip() for name in peers.split(",") if name.strip()]
    if peers is None:
        names = [name for name in names if not why_not(name)]
    with stop_on_signal() as stop:
        setup = prepare(model, data, choices, quiet=output.silent)
        chosen = select(
            setup.data,
            indices=selection.index,
            limit=selection.limit,
            shuffle=selection.shuffle,
            seed=selection.seed,
        )
        console = screen(stderr=True)
        with Progress(console=console, transient=True, disable=output.silent or not console.is_terminal) as bar:
            tasks = {name: bar.add_task(name, total=1.0, start=False) for name in ("l0tre", *names)}
            results: list[AttackComparison] = []

            def progress(name: str, share: float) -> None:
                bar.start_task(tasks[name])
                bar.update(tasks[name], completed=(len(results) + share) / len(budgets))

            for passes in budgets:
                if results and stop():
                    break
                results.append(
                    compare(
                        setup.network,
                        chosen,
                        peers=names,
                        budget=passes,
                        seed=selection.seed,
                        domain=setup.domain,
                        memory_bytes=setup.memory_bytes,
                        progress=progress,
                        stop=stop,
                    )
                )
        stopped = stop()
    result = results[-1]
    files = [] if out is None else write_peers(result, out, setup.domain)
    if out is not None and len(results) > 1:
        files += [str(file) for file in write_curves(results, out / "curves")]
    if output.as_json:
        say(json.dumps(to_dict(result) | ({"curves": curve_rows(results)} if len(results) > 1 else {}), indent=1))
    elif not output.quiet:
        for one in results:
            show_peers(one, screen())
        for line in files:
            say(line)
    if report is not None:
        from l0tre.cli.peers_page import compared_page

        low, high = float(setup.domain.low.min()), float(setup.domain.high.max())
        write_page(
            report,
            lambda: compared_page(results, chosen.names, low, high),
            asked=about(setup, chosen),
            silent=output.silent,
        )
    if stopped:
        raise typer.Exit(130)


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.replace("_", "").split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"the budget is {text}: give queries for each input, such as 2000, or 200,500,2000")
    return numbers
