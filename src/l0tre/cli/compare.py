"""The command that compares networks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from l0tre.api.compare import Entrant, compare_entrants, name_networks
from l0tre.cli import options as opt
from l0tre.cli.live import follow, stop_on_signal
from l0tre.cli.root import MODEL_HELP, JsonOption, app
from l0tre.cli.setup import Choices, prepare
from l0tre.data import select
from l0tre.errors import ConfigError
from l0tre.evaluation.results import Snapshot
from l0tre.evaluation.standings import Comparison, Pair
from l0tre.figures.canvas import cannot_draw

__all__ = ["compare"]


@app.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL MODEL... DATA", help=f"{MODEL_HELP} Last the images: {opt.DATA_HELP}", show_default=False
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
    guarantee: opt.GuaranteeOption = "auto",
    epsilon: opt.EpsilonOption = 0.25,
    grid: opt.GridOption = "uniform",
    colours: opt.ColoursOption = "grid",
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
    limit: Annotated[int | None, typer.Option(help="Only so many images.", rich_help_panel=opt.DATA)] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="In random order (see --seed), before --limit.", rich_help_panel=opt.DATA)
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of --shuffle.", rich_help_panel=opt.DATA)] = 0,
    data_dir: opt.DataDirOption = None,
    split: opt.SplitOption = "test",
    scale: opt.ScaleOption = None,
    resize: opt.ResizeOption = False,
    groups: opt.GroupsOption = "auto",
    mask: opt.MaskOption = None,
    low: opt.LowOption = "0",
    high: opt.HighOption = "1",
    quiet: opt.QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Which of several networks is more robust on the same images, and is that certain?"""
    opt.check_budget(time_budget)
    if len(words) < 3:
        raise ConfigError(f"{len(words)} words were given: give at least two networks and then the images")
    *models, data = words
    silent = quiet or as_json
    console = Console(stderr=True)

    def enter(name: str, model: str) -> tuple[Entrant, dict[str, Any]]:
        choices = Choices(
            model, data, mean, std, input_shape, device, data_dir, split, scale, resize, groups, mask, low, high, memory
        )
        network, images, setup = prepare(choices)
        chosen = select(images, limit=limit, shuffle=shuffle, seed=seed)
        return Entrant(name, network, chosen, setup["domain"]), setup

    def watch(name: str, snapshots: Iterator[Snapshot]) -> Snapshot:
        if not silent:
            console.print(f"{name} ...", highlight=False)
        return follow(snapshots, console, quiet=silent)

    with stop_on_signal() as stop:
        entered = [enter(name, model) for name, model in zip(name_networks(models), models, strict=True)]
        comparison = compare_entrants(
            [entrant for entrant, _ in entered],
            out=out,
            resume=resume,
            time_budget=time_budget,
            stop=stop,
            watch=watch,
            max_t=max_t,
            epsilon=epsilon,
            grid=grid,
            colours=colours,
            guarantee=guarantee,
            memory=entered[0][1]["memory"],
        )
        stopped = stop()
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=1))
    elif not quiet:
        show_comparison(comparison, Console(highlight=False))
        if out is not None:
            missing = cannot_draw()
            typer.echo(
                f"written: {out / 'comparison.json'}, comparison.csv, comparison-pairs.csv, comparison-splits.csv",
                nl=False,
            )
            typer.echo(f"; no figure: {missing}" if missing else ", comparison.png")
    if stopped:
        raise typer.Exit(130)


def show_comparison(comparison: Comparison, console: Console) -> None:
    """Print what is known of each network, and of every two.

    Args:
        comparison: What to show.
        console: Where to.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for name in ("network", "accuracy", "lower", "upper", "estimate", "exact", "guarantee", "search"):
        left = name in ("network", "guarantee", "search")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for standing in comparison.standings:
        table.add_row(
            escape(standing.network),
            f"{standing.accuracy:.1%}",
            f"{standing.lower:.3f}",
            f"{standing.upper:.3f}",
            f"{standing.estimate:.3f}",
            f"{standing.exact:.1%}",
            standing.guarantee,
            f"t <= {standing.max_t}" if standing.finished else "stopped",
        )
    console.print(table)
    for standing in comparison.standings:
        if standing.misclassified:
            shown = ", ".join(map(str, standing.misclassified[:10]))
            more = f", ... ({len(standing.misclassified)} in all)" if len(standing.misclassified) > 10 else ""
            console.print(f"misclassified by {escape(standing.network)}: {shown}{more}", soft_wrap=True)
    unit = comparison.standings[0].unit if comparison.standings else "group"
    if not comparison.same_groups:
        sizes = ", ".join(f"{s.groups} for {escape(s.network)}" for s in comparison.standings)
        console.print(
            f"[bold]note[/bold]: an image has different numbers of {unit}s ({sizes}): one {unit} is a different part "
            "of the image for each, so the radii do not count the same thing",
            soft_wrap=True,
        )
    if comparison.pairs:
        console.print(f"\nMean safe radius, in {unit}s, on the images that both classify correctly:")
    for pair in comparison.pairs:
        _show_pair(pair, unit, console)
    for name in comparison.missing:
        console.print(f"not begun: {escape(name)}")


def _show_pair(pair: Pair, unit: str, console: Console) -> None:
    console.print(f"[bold]{escape(pair.words)}[/bold]", soft_wrap=True)
    if not pair.common:
        console.print("  no image is classified correctly by both")
        return
    for name, radius in ((pair.first, pair.first_radius), (pair.second, pair.second_radius)):
        console.print(f"  {escape(name)}: {radius[0]:.3f} to {radius[1]:.3f}", soft_wrap=True)
    low, high = pair.difference
    images = "1 image" if pair.common == 1 else f"{pair.common} images"
    console.print(f"  difference: {low:.3f} to {high:.3f} on {images}")
    if pair.order == "open":
        console.print(f"  they overlap by {pair.overlap:.3f}; to settle it: {escape(pair.settle)}", soft_wrap=True)
    elif pair.scope == "the grid":
        console.print("  the lower bounds behind it hold for values of the grid only")
    for split in pair.splits:
        console.print(f"  {escape(split.words(pair.first, pair.second, unit))}", soft_wrap=True)
