"""The command compare-attacks: our attack beside those of other libraries."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from l0tre.adapters.attack_picture import write_picture
from l0tre.adapters.attack_summary import Row, common_images, make_rows, to_dict, write_files
from l0tre.adapters.compare_attacks import Comparison, compare
from l0tre.adapters.peers import PEERS
from l0tre.cli import options as opt
from l0tre.cli.live import stop_on_signal
from l0tre.cli.root import MODEL_HELP, JsonOption, app
from l0tre.cli.setup import Choices, prepare
from l0tre.data import select
from l0tre.errors import ConfigError, DataError, MissingExtraError

__all__ = ["compare_attacks"]


@app.command()
def compare_attacks(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help=opt.DATA_HELP, show_default=False)] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Attacks to compare with.", show_default="all that can be imported"),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the attacks, their libraries, and whether they can be imported.")
    ] = False,
    budget: Annotated[int, typer.Option(help="Forward + backward passes for each image.")] = 2000,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write compare.csv, compare.json, compare.png, ATTACK.npz.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only so many images.", rich_help_panel=opt.DATA)] = None,
    index: Annotated[
        list[int] | None,
        typer.Option(help="Only this image, from 0; can be given several times.", rich_help_panel=opt.DATA),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="In random order (see --seed), before --limit.", rich_help_panel=opt.DATA)
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks and of --shuffle.")] = 0,
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
    data_dir: opt.DataDirOption = None,
    split: opt.SplitOption = "test",
    scale: opt.ScaleOption = None,
    resize: opt.ResizeOption = False,
    groups: opt.GroupsOption = "auto",
    low: opt.LowOption = "0",
    high: opt.HighOption = "1",
    quiet: opt.QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run our attack and those of other libraries on the same images with one budget; every result is replayed."""
    if listing:
        _list(as_json=as_json)
        return
    if model is None or data is None:
        raise ConfigError("give a model and images: l0tre compare-attacks MODEL DATA (or --list)")
    names = list(PEERS) if peers is None else [name.strip() for name in peers.split(",") if name.strip()]
    if peers is None:
        names = [name for name in names if not _why_not(name)]
    choices = Choices(
        model, data, mean, std, input_shape, device, data_dir, split, scale, resize, groups, None, low, high, memory
    )
    with stop_on_signal() as stop:
        network, images, setup = prepare(choices)
        chosen = select(images, indices=index, limit=limit, shuffle=shuffle, seed=seed)
        screen = Console(stderr=True)
        with Progress(console=screen, transient=True, disable=quiet or as_json or not screen.is_terminal) as bar:
            tasks = {name: bar.add_task(name, total=1.0, start=False) for name in ("l0tre", *names)}

            def progress(name: str, share: float) -> None:
                bar.start_task(tasks[name])
                bar.update(tasks[name], completed=share)

            result = compare(
                network, chosen, peers=names, budget=budget, seed=seed, progress=progress, stop=stop, **setup
            )
        stopped = stop()
    files = [] if out is None else _write(result, out, setup["domain"].low.min(), setup["domain"].high.max())
    if as_json:
        typer.echo(json.dumps(to_dict(result), indent=1))
    elif not quiet:
        show_comparison(result, Console(highlight=False))
        for line in files:
            typer.echo(line)
    if stopped:
        raise typer.Exit(130)


def _write(result: Comparison, folder: Path, low: float, high: float) -> list[str]:
    files = [str(file) for file in write_files(result, folder)]
    try:
        files.append(str(write_picture(result, folder / "compare.png", float(low), float(high))))
    except (MissingExtraError, DataError) as error:
        files.append(f"no compare.png was written: {error}")
    return files


def _why_not(name: str) -> str:
    try:
        PEERS[name].load()
    except MissingExtraError as error:
        return str(error)
    return ""


def _list(*, as_json: bool) -> None:
    reasons = {name: _why_not(name) for name in PEERS}
    if as_json:
        facts = {
            name: {
                "library": peer.package,
                "unit": peer.unit,
                "gradients": peer.gradients,
                "budget": peer.budget,
                "about": peer.about,
                "missing": reasons[name],
            }
            for name, peer in PEERS.items()
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    console = Console(highlight=False)
    table = _table("attack", "library", "unit", "needs", "here", "what it is")
    for name, peer in PEERS.items():
        needs = "gradients" if peer.gradients else "scores"
        table.add_row(name, peer.package, peer.unit, needs, "no" if reasons[name] else "yes", peer.about)
    console.print(table)
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason):
        console.print(escape(reason), soft_wrap=True)


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold underline")
    for name in names:
        table.add_column(name)
    return table


def show_comparison(result: Comparison, console: Console) -> None:
    """Print one row for each attack, and what the columns mean."""
    table = _table("attack", "library", "found", "mean", "median", "feat.", "fwd", "bwd", "s/img", "l0tre<=")
    for column in table.columns[2:]:
        column.justify = "right"
    rows = make_rows(result)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    shared, unit = int(common_images(result).sum()), result.unit
    for row in rows:
        if row.error:
            console.print(f"{row.name}: {escape(row.error)}", soft_wrap=True)
    console.print(
        f"\n{len(result.images)} images, {len(result.excluded)} left out as misclassified; "
        f"budget {result.budget} passes an image\n"
        f"mean, median: changed pixels, feat.: changed values (mean), over the {shared} images that all attacks found "
        "(without those that found none)\n"
        "fwd, bwd: forward and backward passes an image; s/img: seconds an image\n"
        f"l0tre<=: share of images on which l0tre changes at most as many {unit}s",
        soft_wrap=True,
    )


def _cells(row: Row) -> list[str]:
    means = (row.mean_pixels, row.median_pixels, row.mean_features)
    return [
        row.name,
        row.package,
        f"{row.success:.0%}",
        *("-" if value is None else f"{value:.2f}" for value in means),
        f"{row.forwards:,.0f}",
        f"{row.backwards:,.0f}",
        f"{row.seconds:.3g}",
        "-" if row.at_least_as_good is None else f"{row.at_least_as_good:.0%}",
    ]
