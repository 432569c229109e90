"""The command that compares networks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import literal, say, screen
from l0tre.errors import ConfigError

if TYPE_CHECKING:
    from l0tre.evaluation.results import Snapshot
    from l0tre.report.blocks import Document

__all__ = ["compare"]


@app.command()
@opt.with_sets
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL MODEL... DATA",
            help=f"{opt.MODEL_HELP} Last the data: {opt.DATA_HELP}",
            show_default=False,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A folder, with a run folder for each network.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs in --out; give all else as the first time.")
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop each network after this time.")
    ] = None,
    max_t: Annotated[int, typer.Option(help="Most groups changed together.", rich_help_panel=opt.SEARCH)] = 2,
    report: opt.ReportOption = None,
    *,
    search: opt.Search,
    choices: opt.Choices,
    selection: opt.ImageSelection,
    spread: opt.Spread,
    output: opt.Output,
) -> None:
    """Which of several networks is more robust on the same inputs, and is that certain?

    Example: l0tre compare sdnn sdnn-unpadded mnist5k --resize --shuffle --limit 3 --max-t 1
    """
    from l0tre.api.compare import Entrant, compare_entrants, name_networks
    from l0tre.cli.live import follow
    from l0tre.cli.pages import about, check_page, write_page
    from l0tre.cli.render_comparison import show_comparison
    from l0tre.cli.setup import make_settings, prepare
    from l0tre.cli.signals import stop_on_signal
    from l0tre.data import select
    from l0tre.figures.canvas import cannot_draw
    from l0tre.memory import parse_size
    from l0tre.store import Inputs

    opt.check_budget(time_budget)
    check_page(report)
    if len(words) < 3:
        raise ConfigError(f"{len(words)} words were given: give at least two networks and then the data")
    *models, data = words
    console = screen(stderr=True)
    results: dict[str, Snapshot] = {}
    inputs: list[Inputs] = []
    asked: list[tuple[str, str]] = []

    def enter(name: str, model: str) -> Entrant:
        setup = prepare(model, data, choices, quiet=output.silent)
        chosen = select(setup.data, limit=selection.limit, shuffle=selection.shuffle, seed=selection.seed)
        inputs.append(Inputs(chosen.images, chosen.labels, chosen.indices, setup.domain))
        asked.extend(fact for fact in about(setup, chosen) if fact not in asked)
        return Entrant(name, setup.network, chosen, setup.domain)

    def watch(name: str, snapshots: "Iterator[Snapshot]") -> "Snapshot":
        if not output.silent:
            console.print(f"{literal(name)} ...")
        results[name] = follow(snapshots, console, quiet=output.silent)
        return results[name]

    def page() -> "Document":
        from l0tre.report.comparison import comparison_page, shared_inputs

        return comparison_page(comparison, results, shared_inputs(inputs))

    memory = 0 if choices.memory is None else parse_size(choices.memory)
    settings = make_settings(search, memory, max_t, seed=selection.seed)
    with stop_on_signal() as stop:
        comparison = compare_entrants(
            [enter(name, model) for name, model in zip(name_networks(models), models, strict=True)],
            settings,
            out=out,
            resume=resume,
            cluster=spread.where,
            time_budget=time_budget,
            stop=stop,
            watch=watch,
        )
        stopped = stop()
    if output.as_json:
        say(json.dumps(comparison.to_dict(), indent=1))
    elif not output.quiet:
        show_comparison(comparison, screen())
        if out is not None:
            missing = cannot_draw()
            say(
                f"written: {out / 'comparison.json'}, comparison.csv, comparison-pairs.csv, comparison-splits.csv",
                end=False,
            )
            say(f"; no figure: {missing}" if missing else ", comparison.png")
    write_page(report, page, asked=asked, silent=output.silent)
    if stopped:
        raise typer.Exit(130)
