"""The commands about the paper's networks: list, train, export."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from l0tre import zoo
from l0tre.cli import options as opt
from l0tre.cli.root import JsonOption, app
from l0tre.zoo import weights_store as store
from l0tre.zoo.export import export as write_file
from l0tre.zoo.train import adjusted, make

__all__ = ["export", "list_networks", "train", "zoo_app"]

zoo_app = typer.Typer(help="The paper's networks: list, train, export.")
app.add_typer(zoo_app, name="zoo")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(zoo.names())}.", show_default=False)
]
OWN = "the network's own"


@zoo_app.command("list")
def list_networks(as_json: JsonOption = False) -> None:
    """List the networks: input, size, test accuracy, whether they are trained."""
    rows = [_facts(name) for name in zoo.names()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    words = {"missing": "not trained"}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for title in ("name", "input", "parameters", "paper", "ours", "state"):
        table.add_column(title, justify="left" if title in ("name", "state") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            "x".join(str(size) for size in row["input_shape"]),
            f"{row['parameters']:,}",
            f"{row['paper_accuracy']:.2%}",
            "-" if row["accuracy"] is None else f"{row['accuracy']:.2%}",
            words.get(row["state"], row["state"]),
        )
    console = Console(highlight=False)
    console.print(table)
    for line in (
        "\npaper, ours: share of the test images that are classified correctly",
        f"trained networks are kept in {store.user_folder()} (the variable L0TRE_ZOO names another folder)",
        "to train one: l0tre zoo train NAME",
    ):
        console.print(line, markup=False, soft_wrap=True)


@zoo_app.command()
def train(
    name: NameArgument,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help=f"{opt.DATA_HELP} With a train and a test split.", show_default=OWN),
    ] = None,
    data_dir: opt.DataDirOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for the weights.", show_default="$L0TRE_ZOO, or the user's"),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training images.", show_default=OWN)] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="X", help="First (one-cycle: highest) learning rate.", show_default=OWN)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="L2 penalty on all parameters.", show_default=OWN)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of first weights, order and dropout.", show_default=OWN)
    ] = None,
    device: opt.DeviceOption = "auto",
    quiet: opt.QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network by its recipe and keep it, so that its name can be used as a MODEL."""
    recipe = adjusted(
        zoo.entry(name).recipe, epochs=epochs, learning_rate=learning_rate, weight_decay=weight_decay, seed=seed
    )
    folder = store.user_folder() if out is None else out
    columns = (
        TextColumn("epoch {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    try:
        # The remaining time is guessed from the last epochs; by default those of the last 30 s, less than one on a CPU.
        console = Console(stderr=True)
        bar = Progress(
            *columns,
            console=console,
            transient=True,
            disable=quiet or as_json or not console.is_terminal,
            speed_estimate_period=24 * 3600,
        )
        with bar:
            task = bar.add_task("starting", total=recipe.epochs)

            def report(epoch: int, loss: float, correct: float) -> None:
                bar.update(task, completed=epoch, description=f"loss {loss:.4f}, training images {correct:.2%}")

            record = make(name, out=folder, recipe=recipe, data=data, data_dir=data_dir, device=device, progress=report)
    except KeyboardInterrupt:
        typer.echo("stopped: nothing was stored", err=True)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(record, indent=1))
    elif not quiet:
        _show_trained(name, record, folder)


@zoo_app.command()
def export(
    name: NameArgument,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Ends with .onnx or .pt2; replaced if it is there.", show_default=False),
    ],
    quiet: opt.QuietOption = False,
) -> None:
    """Write a trained network to a file for other programs, and check it against the network."""
    gap = write_file(name, file)
    if not quiet:
        typer.echo(f"{file}: written; its scores are those of {name} (largest difference {gap:.2g})")


def _facts(name: str) -> dict[str, Any]:
    """What the list says about a network; ``accuracy`` is a share from 0 to 1, or None."""
    entry = zoo.entry(name)
    status = store.status(name)
    return {
        "name": name,
        "input_shape": entry.input_shape,
        "parameters": zoo.parameters(name),
        "data": entry.data,
        "paper_accuracy": entry.paper_accuracy,
        "accuracy": status.accuracy,
        "state": status.state,
        "folder": None if status.folder is None else str(status.folder),
        "description": entry.description,
    }


def _show_trained(name: str, record: dict[str, Any], folder: Path) -> None:
    tested, learnt = f"{record['test_images']:,} test images", f"{record['training_images']:,} training images"
    typer.echo(
        f"{name}: {record['accuracy_test']:.2%} of {tested} correct (the paper: {zoo.entry(name).paper_accuracy:.2%}), "
        f"{record['accuracy_train']:.2%} of {learnt}; {record['seconds']:.0f} s"
    )
    typer.echo(f"stored as {record['weights']} in {folder}")
    used = store.find(name)
    if used == folder:
        typer.echo(f"next: l0tre evaluate {name} {record['data']}")
    elif used == store.bundled_folder():
        typer.echo(f"the name {name} still means the bundled weights; l0tre.zoo.load(name, folder) gives these")
    else:
        typer.echo(f"to use it by its name: L0TRE_ZOO={folder}")
