"""Options that several commands share, each written once.

A command lists what it adds, and takes what it shares as whole sets: a parameter whose type is one of the dataclasses
below stands for all options of that set. Nothing here loads torch, so that help comes at once.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from l0tre.defaults import LOAD_SECONDS
from l0tre.errors import ConfigError

__all__ = [
    "DATA",
    "DATA_HELP",
    "DOMAIN",
    "MODEL",
    "MODEL_HELP",
    "SEARCH",
    "Choices",
    "ColoursOption",
    "DataArgument",
    "DataDirOption",
    "DeviceOption",
    "EpsilonOption",
    "GroupsOption",
    "ImageSelection",
    "InputShapeOption",
    "JsonOption",
    "LoadTimeoutOption",
    "ModelArgument",
    "Output",
    "QuietOption",
    "ReportOption",
    "Search",
    "Several",
    "Spread",
    "check_budget",
    "with_sets",
]

DATA_HELP = (
    "Inputs: .npz, .npy, .csv (a table with --label-column), a picture, a folder of pictures, or a name: "
    "digits, mnist5k, mnist, fashion-mnist, cifar10."
)
MODEL_HELP = "Network: .onnx, .pt2, package.module:name, file.py:name, or a name of l0tre zoo list (sdnn)."
MODEL, DATA, DOMAIN, SEARCH, TABLE, CLUSTER = "Model", "Data", "What may change", "Search", "Tables", "Cluster"


def _columns(help_text: str) -> Any:
    """An option that names columns and can be given several times."""
    return typer.Option(metavar="COLUMN", help=f"{help_text} Several times.", rich_help_panel=TABLE)


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)]
InputShapeOption = Annotated[
    str | None,
    typer.Option(
        metavar="CxHxW",
        help="Shape of one input, where the model leaves it open; default the data's.",
        rich_help_panel=MODEL,
    ),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.", rich_help_panel=MODEL)]
LoadTimeoutOption = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Give up on a model that loads longer than this.", rich_help_panel=MODEL),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(envvar="L0TRE_DATA", help="Folder with mnist, fashion-mnist, cifar10 files.", rich_help_panel=DATA),
]
GroupsOption = Annotated[
    str,
    typer.Option(
        "--groups",
        "--unit",
        metavar="KIND|FILE.npy",
        help="What counts as one change: pixel, feature, auto (pixels for images), or group numbers in an array.",
        rich_help_panel=DOMAIN,
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(
        help="How far apart the values may be that a grid tries, in the units of the data.",
        show_default="0.25; 5 values where ranges are wider than 1",
        rich_help_panel=SEARCH,
    ),
]
ColoursOption = Annotated[
    str,
    typer.Option(
        help="Which colours a changed pixel may take on a grid: grid (all combinations of the channels' values) or "
        "corners (only each channel's smallest and largest value).",
        rich_help_panel=SEARCH,
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Write a page to look at: charts, every input, its changes."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How to load the network and the data, what may change in them, and with how much memory; as typed."""

    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for batches, such as 2G; default a quarter of what is free.",
            rich_help_panel=SEARCH,
        ),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(help="Mean inside the model: 0.1307, or one a channel: 0.49,0.48,0.45.", rich_help_panel=MODEL),
    ] = None
    std: Annotated[
        str | None, typer.Option(help="Standard deviation inside the model, likewise.", rich_help_panel=MODEL)
    ] = None
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Weights for file.py:Class: .safetensors, or .pth with a state_dict (only tensors are read).",
            rich_help_panel=MODEL,
        ),
    ] = None
    input_shape: InputShapeOption = None
    device: DeviceOption = "auto"
    load_timeout: LoadTimeoutOption = LOAD_SECONDS
    data_dir: DataDirOption = None
    split: Annotated[str, typer.Option(help="test or train, for data that has both.", rich_help_panel=DATA)] = "test"
    scale: Annotated[
        float | None,
        typer.Option(help="Divide values by this; default 255 for 8-bit data, 1 for floats.", rich_help_panel=DATA),
    ] = None
    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NUMBER",
            help="For a .csv table with a header: the column with the class, none for no labels.",
            rich_help_panel=TABLE,
        ),
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Names of the classes in the network's order, for labels that are words.",
            show_default="alphabetical",
            rich_help_panel=TABLE,
        ),
    ] = None
    row_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column that names the rows.", rich_help_panel=TABLE)
    ] = None
    drop: Annotated[list[str] | None, _columns("Column that is left out.")] = None
    fixed: Annotated[list[str] | None, _columns("Column that never changes.")] = None
    integer: Annotated[
        list[str] | None, _columns("Column of whole numbers; auto for all whose values are whole numbers.")
    ] = None
    categorical: Annotated[list[str] | None, _columns("Column that takes only the values found in the data.")] = None
    one_hot: Annotated[
        list[str] | None, _columns("One-hot columns, which change as one: a pattern (job_*), or a+b+c.")
    ] = None
    upwards: Annotated[list[str] | None, _columns("Column whose value may only rise.")] = None
    downwards: Annotated[list[str] | None, _columns("Column whose value may only fall.")] = None
    resize: Annotated[
        bool, typer.Option("--resize", help="Resize images to the network's height and width.", rich_help_panel=DATA)
    ] = False
    groups: GroupsOption = "auto"
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="True where values may change (input's shape, or H x W).", rich_help_panel=DOMAIN
        ),
    ] = None
    low: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|data|FILE.npy",
            help="Smallest value, before normalisation; data for each column's smallest in the data.",
            rich_help_panel=DOMAIN,
        ),
    ] = "0"
    high: Annotated[
        str,
        typer.Option(metavar="NUMBER|data|FILE.npy", help="Largest value, likewise.", rich_help_panel=DOMAIN),
    ] = "1"
    value_range: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="data|data:SHARE|LOW,HIGH",
            help="Both ends at once: data (what a table with --label-column begins with), data:0.01 (without the "
            "lowest and highest 1 % of each column), or two numbers.",
            show_default="0,1",
            rich_help_panel=DOMAIN,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Search:
    """What lower bounds hold for, and the grid."""

    guarantee: Annotated[
        str,
        typer.Option(
            help="What lower bounds hold for: certified (all real values), grid, lipschitz, "
            "auto (certified where the network allows it, else grid).",
            rich_help_panel=SEARCH,
        ),
    ] = "auto"
    epsilon: EpsilonOption = None
    points: Annotated[
        int | None,
        typer.Option(help="Instead of --epsilon: so many values for each column.", rich_help_panel=SEARCH),
    ] = None
    grid: Annotated[
        str, typer.Option(help="uniform, or paper (the published code's coarser grid).", rich_help_panel=SEARCH)
    ] = "uniform"
    colours: ColoursOption = "grid"


@dataclass(frozen=True, kw_only=True)
class ImageSelection:
    """Which images of the data."""

    limit: Annotated[int | None, typer.Option(help="Only so many inputs.", rich_help_panel=DATA)] = None
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="In random order (see --seed), before --limit.", rich_help_panel=DATA)
    ] = False
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.", rich_help_panel=DATA)] = 0


@dataclass(frozen=True, kw_only=True)
class Several(ImageSelection):
    """Which images of the data, also by their positions."""

    index: Annotated[
        list[int] | None,
        typer.Option(help="Only this input, from 0; can be given several times.", rich_help_panel=DATA),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """How much is printed, and how."""

    quiet: QuietOption = False
    as_json: JsonOption = False

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Who does the work."""

    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="local|ray://HOST:PORT|HOST:PORT",
            help="Spread the work with Ray over all cores and GPUs of this machine (local), or of a cluster.",
            rich_help_panel=CLUSTER,
        ),
    ] = None
    workers: Annotated[
        int,
        typer.Option(
            metavar="NUMBER",
            help="With --cluster: so many workers; 0 for one for each GPU, or core where there is none.",
            rich_help_panel=CLUSTER,
        ),
    ] = 0
    worker_gpus: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --cluster: GPUs of a worker, such as 0.5 for two on each.",
            show_default="1 where there are any",
            rich_help_panel=CLUSTER,
        ),
    ] = None

    @property
    def where(self) -> Any:
        """The cluster, none for this process."""
        if self.cluster is None:
            if self.workers or self.worker_gpus is not None:
                raise ConfigError("--workers and --worker-gpus are for --cluster: give that, too")
            return None
        from l0tre.scheduling.session import Cluster

        return Cluster(self.cluster, self.workers, self.worker_gpus)


def with_sets(command: Callable[..., None]) -> Callable[..., None]:
    """Let every parameter of a command that is a set of options stand for the options of that set.

    Args:
        command: The command; its sets are parameters whose types are dataclasses of options.

    Returns:
        The command as typer sees it: one parameter for each option, and no sets.
    """
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    sets: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @wraps(command)
    def spread(**given: Any) -> None:
        whole = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in sets.items()
        }
        command(**given, **whole)

    parameters = list(_parameters(inspect.signature(command), hints))
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _parameters(signature: inspect.Signature, hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, parameter in signature.parameters.items():
        if not is_dataclass(hints[name]):
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        inner = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=inner[field.name]
            )


def check_budget(seconds: float | None) -> None:
    """Refuse a time budget that is negative or not a number."""
    if seconds is not None and not seconds >= 0:
        raise ConfigError(f"--time-budget is {seconds}: give seconds, 0 for a single step, or leave it out")
