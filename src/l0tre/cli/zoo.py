"""The commands about the paper's networks: list, train, export."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l0tre.cli import options as opt
from l0tre.cli.root import app
from l0tre.cli.terminal import say, screen

__all__ = ["export", "list_networks", "train", "zoo_app"]

zoo_app = typer.Typer(help="The paper's networks: list, train, export.\n\nExample: l0tre zoo export sdnn sdnn.onnx")
app.add_typer(zoo_app, name="zoo")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="One of those that l0tre zoo list shows.", show_default=False)
]
OWN = "the network's own"


@zoo_app.command("list")
def list_networks(as_json: opt.JsonOption = False) -> None:
    """List the networks: input, size, test accuracy, whether they are trained.

    Example: l0tre zoo list
    """
    from l0tre import zoo
    from l0tre.cli.render_zoo import facts, show_networks

    rows = [facts(name) for name in zoo.names()]
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    show_networks(rows, screen())


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
    as_json: opt.JsonOption = False,
) -> None:
    """Train a network by its recipe and keep it, so that its name can be used as a MODEL.

    Example: l0tre zoo train dnn-4 --device cuda
    """
    from l0tre import zoo
    from l0tre.cli.render_zoo import show_trained
    from l0tre.zoo import weights_store as store
    from l0tre.zoo.train import adjusted, make

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
        console = screen(stderr=True)
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
        say("stopped: nothing was stored", err=True)
        raise typer.Exit(130) from None
    if as_json:
        say(json.dumps(record, indent=1))
    elif not quiet:
        show_trained(name, record, folder)


@zoo_app.command()
def export(
    name: NameArgument,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Ends with .onnx or .pt2; replaced if it is there.", show_default=False),
    ],
    quiet: opt.QuietOption = False,
) -> None:
    """Write a trained network to a file for other programs, and check it against the network.

    Example: l0tre zoo export sdnn sdnn.onnx
    """
    from l0tre.zoo.export import export as write_file

    gap = write_file(name, file)
    if not quiet:
        say(f"{file}: written; its scores are those of {name} (largest difference {gap:.2g})")
