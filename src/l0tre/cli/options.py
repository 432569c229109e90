"""Options that several commands share, and how their texts are read."""

from pathlib import Path
from typing import Annotated, cast
from zipfile import BadZipFile

import numpy as np
import typer

from l0tre.domain import Groups, Range
from l0tre.errors import ConfigError

__all__ = [
    "ColoursOption",
    "DataArgument",
    "DataDirOption",
    "DeviceOption",
    "EpsilonOption",
    "GridOption",
    "GroupsOption",
    "GuaranteeOption",
    "HighOption",
    "InputShapeOption",
    "LowOption",
    "MaskOption",
    "MeanOption",
    "MemoryOption",
    "QuietOption",
    "ResizeOption",
    "ScaleOption",
    "SplitOption",
    "StdOption",
    "check_budget",
    "parse_array",
    "parse_groups",
    "parse_numbers",
    "parse_range",
    "parse_shape",
]

DATA_HELP = (
    "Images: .npz, .npy, ERAN-style .csv, a folder of pictures, or a name: "
    "digits, mnist5k, mnist, fashion-mnist, cifar10."
)
MODEL, DATA, DOMAIN, SEARCH = "Model", "Data", "What may change", "Search"

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)]
MeanOption = Annotated[
    str | None,
    typer.Option(help="Mean inside the model: 0.1307, or one a channel: 0.49,0.48,0.45.", rich_help_panel=MODEL),
]
StdOption = Annotated[
    str | None, typer.Option(help="Standard deviation inside the model, likewise.", rich_help_panel=MODEL)
]
InputShapeOption = Annotated[
    str | None,
    typer.Option(
        metavar="CxHxW", help="Shape of one input, for Python references; default the data's.", rich_help_panel=MODEL
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.", rich_help_panel=MODEL)]
DataDirOption = Annotated[
    Path | None,
    typer.Option(envvar="L0TRE_DATA", help="Folder with mnist, fashion-mnist, cifar10 files.", rich_help_panel=DATA),
]
SplitOption = Annotated[str, typer.Option(help="test or train, for data that has both.", rich_help_panel=DATA)]
ScaleOption = Annotated[
    float | None,
    typer.Option(help="Divide values by this; default 255 for 8-bit data, 1 for floats.", rich_help_panel=DATA),
]
ResizeOption = Annotated[
    bool, typer.Option("--resize", help="Resize images to the network's height and width.", rich_help_panel=DATA)
]
GroupsOption = Annotated[
    str,
    typer.Option(
        metavar="KIND|FILE.npy",
        help="What counts as one change: pixel, feature, auto (pixels for images), or group numbers in an array.",
        rich_help_panel=DOMAIN,
    ),
]
MaskOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npy", help="True where values may change (input's shape, or H x W).", rich_help_panel=DOMAIN
    ),
]
LowOption = Annotated[
    str, typer.Option(metavar="NUMBER|FILE.npy", help="Smallest value, before normalisation.", rich_help_panel=DOMAIN)
]
HighOption = Annotated[
    str, typer.Option(metavar="NUMBER|FILE.npy", help="Largest value, before normalisation.", rich_help_panel=DOMAIN)
]
GuaranteeOption = Annotated[
    str,
    typer.Option(
        help="What lower bounds hold for: certified (all real values), grid, lipschitz, "
        "auto (certified where the network allows it, else grid).",
        rich_help_panel=SEARCH,
    ),
]
EpsilonOption = Annotated[float, typer.Option(help="Largest spacing of the grid of values.", rich_help_panel=SEARCH)]
GridOption = Annotated[
    str, typer.Option(help="uniform, or paper (the published code's coarser grid).", rich_help_panel=SEARCH)
]
ColoursOption = Annotated[
    str,
    typer.Option(
        help="Values of a pixel with several channels: grid (all combinations) or corners (end points).",
        rich_help_panel=SEARCH,
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for batches, such as 2G; default a quarter of what is free.",
        rich_help_panel=SEARCH,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")]


def parse_numbers(text: str | None, option: str) -> list[float] | None:
    """Numbers separated by commas, or ``None``."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a list of numbers: give 0.5 or 0.49,0.48,0.45") from error


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """A shape such as ``1x28x28`` or ``30``, or ``None``."""
    if text is None:
        return None
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape {text!r} is not a shape: give 1x28x28 for images or 30 for vectors")
    return tuple(int(part) for part in parts)


def parse_array(path: Path, option: str) -> np.ndarray:
    """An array from a ``.npy`` file."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(f"{option} {path} cannot be read as a .npy array: {error}") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ConfigError(f"{option} {path} is an .npz archive: give a .npy file, which holds one array")
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{option} {path} holds values of type {array.dtype}: give an array of numbers")
    return array


def parse_range(text: str, option: str) -> Range:
    """A number, or an array from a ``.npy`` file."""
    try:
        return float(text)
    except ValueError as error:
        if not text.endswith(".npy"):
            raise ConfigError(f"{option} {text!r} is neither a number nor a .npy file") from error
        return parse_array(Path(text), option)


def check_budget(seconds: float | None) -> None:
    """Refuse a time budget that is negative or not a number."""
    if seconds is not None and not seconds >= 0:
        raise ConfigError(f"--time-budget is {seconds}: give seconds, 0 for a single step, or leave it out")


def parse_groups(text: str) -> Groups | np.ndarray:
    """A kind of groups, or group numbers from a ``.npy`` file."""
    return parse_array(Path(text), "--groups") if text.endswith(".npy") else cast("Groups", text)
