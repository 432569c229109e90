"""The command attack: adversarial inputs with as few changed pixels as can be found."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from l0tre.api.attack import BUDGET, attack_details
from l0tre.attacks.attacked import Attacked
from l0tre.attacks.auto import METHODS
from l0tre.attacks.task import LEVELS
from l0tre.cli import options as opt
from l0tre.cli.live import stop_on_signal
from l0tre.cli.root import MODEL_HELP, JsonOption, app
from l0tre.cli.setup import Choices, prepare
from l0tre.data import Dataset, select
from l0tre.domain import Domain
from l0tre.errors import ConfigError, require
from l0tre.layout import channel_axis
from l0tre.model.network import Network
from l0tre.store import read_inputs, read_snapshot

__all__ = ["attack"]

ROWS = 25  # images listed on a terminal; the file has them all
ATTACK = "Attack"


@app.command()
def attack(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    data: opt.DataArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write adversarial inputs, distances and decisions here.")
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write them as PNG files too; needs --round 8bit.")
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"auto (a schedule of several), {', '.join(METHODS)}.", rich_help_panel=ATTACK)
    ] = "auto",
    budget: Annotated[
        int, typer.Option(help="Forward + backward passes for each image.", rich_help_panel=ATTACK)
    ] = BUDGET,
    time_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop after this time.", rich_help_panel=ATTACK)
    ] = None,
    targeted: Annotated[
        int | None, typer.Option(metavar="CLASS", help="Reach this class, not just any other.", rich_help_panel=ATTACK)
    ] = None,
    rounding: Annotated[
        str,
        typer.Option(
            "--round", help="none, or 8bit: changed values survive storage as an image file.", rich_help_panel=ATTACK
        ),
    ] = "none",
    lower: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="A run of l0tre evaluate for this network and data: an image is done one above its certified bound.",
            rich_help_panel=ATTACK,
        ),
    ] = None,
    memory: opt.MemoryOption = None,
    mean: opt.MeanOption = None,
    std: opt.StdOption = None,
    input_shape: opt.InputShapeOption = None,
    device: opt.DeviceOption = "auto",
    limit: Annotated[int | None, typer.Option(help="Only so many images.", rich_help_panel=opt.DATA)] = None,
    index: Annotated[
        list[int] | None,
        typer.Option(help="Only this image, from 0; can be given several times.", rich_help_panel=opt.DATA),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="In random order (see --seed), before --limit.", rich_help_panel=opt.DATA)
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attack and of --shuffle.", rich_help_panel=opt.DATA)] = 0,
    data_dir: opt.DataDirOption = None,
    split: opt.SplitOption = "test",
    scale: opt.ScaleOption = None,
    resize: opt.ResizeOption = False,
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            "--groups",
            metavar="KIND|FILE.npy",
            help="What counts as one change: pixel, feature, auto (pixels for images), or group numbers in an array.",
            rich_help_panel=opt.DOMAIN,
        ),
    ] = "auto",
    mask: opt.MaskOption = None,
    low: opt.LowOption = "0",
    high: opt.HighOption = "1",
    quiet: opt.QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Change as few pixels as possible so that the decision changes; every input found is replayed."""
    opt.check_budget(time_budget)
    if pictures is not None and rounding != "8bit":
        raise ConfigError("--pictures stores 8-bit images, which round the values: give --round 8bit as well")
    if out is not None:
        _check_file(out)
    choices = Choices(
        model, data, mean, std, input_shape, device, data_dir, split, scale, resize, unit, mask, low, high, memory
    )
    with stop_on_signal() as stop:
        network, images, setup = prepare(choices)
        if targeted is not None and not 0 <= targeted < network.classes:
            raise ConfigError(f"--targeted is {targeted}: the network has classes 0 to {network.classes - 1}")
        if pictures is not None:
            _check_pictures(pictures, network.input_shape)
        chosen = select(images, indices=index, limit=limit, shuffle=shuffle, seed=seed)
        labels = chosen.labels if targeted is None else [targeted] * len(chosen.images)
        screen = Console(stderr=True)
        with Progress(console=screen, transient=True, disable=quiet or as_json or not screen.is_terminal) as bar:
            line = bar.add_task("attack", total=1.0)

            def progress(stage: str, share: float, mean: float) -> None:
                so_far = "" if mean != mean else f", mean distance {mean:.2f} before it"
                bar.update(line, completed=share, description=f"{stage}{so_far}")

            result = attack_details(
                network,
                chosen.images,
                labels,
                targeted=targeted is not None,
                method=method,
                rounding=rounding,  # type: ignore[arg-type]
                budget=budget,
                time_budget=time_budget,
                lower=None if lower is None else _lower_bounds(lower, chosen, network, setup["domain"]),
                seed=seed,
                progress=progress,
                stop=stop,
                **setup,
            )
        stopped = stop()
    if out is not None:
        _write(out, result, chosen, rounding)
    written = 0 if pictures is None else _write_pictures(pictures, result, chosen)
    if as_json:
        typer.echo(json.dumps(_to_dict(result, chosen), indent=1))
    elif not quiet:
        _show(result, chosen, Console(highlight=False), targeted)
        if out is not None:
            typer.echo(f"adversarial inputs: {out}")
        if pictures is not None:
            typer.echo(f"{written} pictures in {pictures}")
    if stopped:
        raise typer.Exit(130)


def _lower_bounds(run: Path, data: Dataset, network: Network, domain: Domain) -> list[int]:
    """Bounds for all real values from a run; 0 for images that it does not hold.

    Raises:
        ConfigError: If the run is about another network, other images or other changes: its bounds would prove nothing.
    """
    snapshot, inputs = read_snapshot(run), read_inputs(run)
    if snapshot.config["model"]["fingerprint"] != network.fingerprint:
        raise ConfigError(f"--lower {run} is a run of another network: evaluate this one")
    same = [torch.equal(getattr(inputs.domain, name), getattr(domain, name)) for name in ("members", "low", "high")]
    if not all(same):
        raise ConfigError(f"--lower {run} lets other values change: give both the same unit, mask, low and high")
    images = dict(zip(inputs.indices, inputs.images, strict=True))
    for index, image in zip(data.indices, data.images, strict=True):
        if index in images and not torch.equal(images[index], image):
            raise ConfigError(f"--lower {run} has another image {index}: evaluate the images of {data.name}")
    known = {image.index: image.lower for image in snapshot.images if image.guarantee in ("certified", "lipschitz")}
    if not known:
        raise ConfigError(f"{run} holds no bounds for all real values: evaluate with --guarantee certified")
    return [known.get(index, 0) for index in data.indices]


def _check_file(path: Path) -> None:
    """Refuse a file that cannot be written, before any work."""
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder: give a file, such as {path / 'adversarial.npz'}")


def _check_pictures(folder: Path, shape: tuple[int, ...]) -> None:
    """Refuse a folder or inputs that cannot become pictures, before any work."""
    require("PIL.Image", "report")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--pictures {folder} is a file: give a folder")
    axis = channel_axis(shape)
    if len(shape) not in (2, 3) or (axis is not None and shape[axis] not in (1, 3)):
        raise ConfigError(f"inputs of shape {shape} are no pictures (grey or of three colours): leave --pictures out")


def _write(path: Path, result: Attacked, data: Dataset, rounding: str) -> None:
    images: np.ndarray = result.adversarial.numpy()
    if rounding == "8bit":
        images = (images * LEVELS).round().astype(np.uint8)
    with path.open("wb") as file:  # numpy would add a suffix to a name
        np.savez_compressed(
            file,
            images=images,
            labels=result.labels.numpy(),
            originals=data.images.numpy(),
            decisions=result.decisions.numpy(),
            found=result.found.numpy(),
            distance=result.distance.numpy(),
            optimal=result.optimal.numpy(),
            indices=np.array(data.indices),
            forwards=result.forwards.numpy(),
            backwards=result.backwards.numpy(),
            unit=np.array(result.unit),
        )


def _write_pictures(folder: Path, result: Attacked, data: Dataset) -> int:
    image_module = require("PIL.Image", "report")
    folder.mkdir(parents=True, exist_ok=True)
    rows = result.changed.nonzero()[:, 0].tolist()
    for row in rows:
        name = f"{data.indices[row]}_to_{int(result.decisions[row])}.png"
        image_module.fromarray(_pixels(result.adversarial[row])).save(folder / name)
    return len(rows)


def _pixels(image: Tensor) -> np.ndarray:
    """An image as 8-bit ``[height, width]`` or ``[height, width, 3]``."""
    if channel_axis(tuple(image.shape)) == 0:
        image = image.permute(1, 2, 0)
    pixels: np.ndarray = (image * LEVELS).round().numpy().astype(np.uint8)
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _to_dict(result: Attacked, data: Dataset) -> dict[str, Any]:
    return {
        "unit": result.unit,
        "images": len(data.images),
        "found": int(result.changed.sum()),
        "mean": None if result.mean != result.mean else result.mean,
        "median": None if result.median != result.median else result.median,
        "seconds": round(result.seconds, 3),
        "notes": list(result.notes),
        "each": [
            {
                "index": index,
                "label": int(result.labels[row]),
                "decision": int(result.decisions[row]),
                "found": bool(result.found[row]),
                "distance": int(result.distance[row]),
                "optimal": bool(result.optimal[row]),
                "method": result.methods[row],
                "forwards": int(result.forwards[row]),
                "backwards": int(result.backwards[row]),
            }
            for row, index in enumerate(data.indices)
        ],
    }


def _show(result: Attacked, data: Dataset, console: Console, targeted: int | None) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    wanted = "label" if targeted is None else "target"
    for name in ("image", wanted, "becomes", f"{result.unit}s", "optimal", "method", "forwards", "backwards"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row, index in enumerate(data.indices[:ROWS]):
        changed = bool(result.changed[row])
        table.add_row(
            str(index),
            str(int(result.labels[row])),
            str(int(result.decisions[row])) if result.found[row] else "-",
            str(int(result.distance[row])) if result.found[row] else "none",
            "yes" if changed and result.optimal[row] else "",
            result.methods[row] if changed else "as it is" if result.found[row] else "-",
            f"{int(result.forwards[row]):,}",
            f"{int(result.backwards[row]):,}",
        )
    console.print(table)
    total, already = len(data.images), int((result.found & (result.distance == 0)).sum())
    if total > ROWS:
        console.print(f"... and {total - ROWS} more (--out or --json has them all)")
    count = int(result.changed.sum())
    others = f" ({already} need no change)" if already else ""
    console.print(f"\nfound     {count} of {total - already} images{others}")
    if count:
        optimal = int((result.optimal & result.changed).sum())
        distance = f"mean {result.mean:.3f}, median {result.median:g} {result.unit}s"
        console.print(f"distance  {distance}; {optimal} proved optimal")
    console.print(f"time      {result.seconds:.1f} s, {result.seconds / total:.3f} s an image")
    for note in result.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
