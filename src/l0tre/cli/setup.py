"""From options to a network, data and a domain."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from l0tre.api.inputs import agree, check_scale
from l0tre.api.load import load
from l0tre.api.tables import table_domain
from l0tre.arrays import read_array_or_archive
from l0tre.cli.flags import in_flags
from l0tre.cli.options import Choices, Search
from l0tre.cli.patience import loads_within
from l0tre.cli.signals import end_on_signal
from l0tre.cli.terminal import literal, screen
from l0tre.data import Dataset, from_arrays, load_data
from l0tre.data.load import divided
from l0tre.data.vnnlib import VnnlibProperty, read_vnnlib
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Domain, Groups, Range, make_domain
from l0tre.errors import ConfigError
from l0tre.evaluation.problem import GuaranteeWish, Settings, spacing
from l0tre.grid import Colours, GridKind
from l0tre.memory import parse_size
from l0tre.model.network import Network
from l0tre.names import Names

__all__ = [
    "Setup",
    "load_alone",
    "make_settings",
    "parse_class",
    "parse_groups",
    "parse_numbers",
    "parse_shape",
    "parse_size_or_none",
    "prepare",
    "read_class_names",
]


@dataclass(frozen=True)
class Setup:
    """Everything that a command computes with; ``memory_bytes`` is 0 where the user gave no size.

    With ``posed`` the data are the middle of a property's box: a box that is violated there is an answer, not bad data.
    """

    network: Network
    data: Dataset
    domain: Domain
    memory_bytes: int
    posed: bool = False


def load_alone(model: str, choices: Choices) -> Network:
    """Load a network for which there is no data."""
    with loads_within(choices.load_timeout, model):
        return load(
            model,
            mean=parse_numbers(choices.mean, "--mean"),
            std=parse_numbers(choices.std, "--std"),
            input_shape=parse_shape(choices.input_shape),
            device=choices.device,
            weights=choices.weights,
        )


def read_class_names(file: Path | None) -> tuple[str, ...]:
    """Names of classes, one a line from class 0 on; none without a file."""
    if file is None:
        return ()
    try:
        return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--names {file} cannot be read ({error}): give a text file with one name a line") from error


def prepare(model: str, data: str, choices: Choices, *, quiet: bool = True) -> Setup:
    """Load everything.

    Args:
        model: The network, as typed.
        data: The images, as typed.
        choices: What the user typed about both.
        quiet: Do not show that it takes its time.

    Returns:
        The network, the data fitted to it, what may change, and the memory.
    """
    posed = read_vnnlib(Path(data)) if data.endswith(".vnnlib") else None

    def read(shape: tuple[int, ...] | None) -> Dataset:
        if posed is not None:
            return _middle(posed, shape, data)
        return load_data(
            data,
            input_shape=shape,
            data_dir=choices.data_dir,
            scale=choices.scale,
            split=choices.split,
            resize=choices.resize,
            label_column=choices.label_column,
            classes=() if choices.classes is None else [name.strip() for name in choices.classes.split(",")],
            row_name=choices.row_name,
            drop=choices.drop or (),
        )

    # Nothing is known yet that could be kept, so that a request to stop ends all at once.
    with end_on_signal(), loads_within(choices.load_timeout, model, quiet=quiet):
        network, images = agree(
            model,
            read,
            device=choices.device,
            input_shape=parse_shape(choices.input_shape),
            mean=parse_numbers(choices.mean, "--mean"),
            std=parse_numbers(choices.std, "--std"),
            weights=choices.weights,
        )
    memory = parse_size_or_none(choices.memory)
    domain = _domain(network, images, choices) if posed is None else _box(network, posed, choices)
    check_scale(images, domain)
    if not quiet and images.assumed_scale != 1 and data.lower().endswith(".csv"):
        screen(stderr=True).print(literal(in_flags(divided(images.name, images.assumed_scale))), soft_wrap=True)
    return Setup(network, images, domain, memory, posed is not None)


def parse_size_or_none(text: str | None) -> int:
    """A size in bytes; 0 where none was given."""
    return 0 if text is None else parse_size(text)


def _middle(posed: VnnlibProperty, shape: tuple[int, ...] | None, name: str) -> Dataset:
    """The middle of a property's box, as a data set of one."""
    if shape is None or math.prod(shape) != len(posed.low):
        raise ConfigError(f"{name} is about {len(posed.low)} inputs, the network takes inputs of shape {shape}")
    middle = ((posed.low + posed.high) / 2).astype(np.float32).reshape(1, *shape)
    return from_arrays(middle, [posed.label], input_shape=shape, scale=1, name=name)


def _box(network: Network, posed: VnnlibProperty, choices: Choices) -> Domain:
    """A property's box as what may change, rounded outwards to float32: a proof covers all of it."""
    if posed.classes != network.classes:
        raise ConfigError(f"the property is about {posed.classes} scores, the network has {network.classes}")
    if (choices.low, choices.high, choices.value_range) != ("0", "1", None):
        raise ConfigError("a VNN-LIB property has its own ranges: leave --low, --high and --range out")
    low, high = posed.low.astype(np.float32), posed.high.astype(np.float32)
    low = np.where(low > posed.low, np.nextafter(low, np.float32(-np.inf)), low)
    high = np.where(high < posed.high, np.nextafter(high, np.float32(np.inf)), high)
    return make_domain(
        network.input_shape,
        groups=parse_groups(choices.groups),
        mask=None if choices.mask is None else parse_array(choices.mask, "--mask"),
        low=low.reshape(network.input_shape),
        high=high.reshape(network.input_shape),
    )


def _domain(network: Network, data: Dataset, choices: Choices) -> Domain:
    low, high = choices.low, choices.high
    if network.takes_bytes and (low, high, choices.value_range) == ("0", "1", None):
        high = "255"
    columns: dict[str, list[str]] = {
        name: getattr(choices, name) or []
        for name in ("fixed", "integer", "categorical", "one_hot", "upwards", "downwards")
    }
    tabular = choices.label_column is not None or any(columns.values())
    wish = choices.value_range or ("data" if choices.label_column is not None and (low, high) == ("0", "1") else None)
    quantile = 0.0
    if wish is not None and wish.startswith("data:"):
        shares = parse_numbers(wish.removeprefix("data:"), "--range") or []
        if len(shares) != 1:
            raise ConfigError(f"--range {wish!r} has several shares: give one, such as data:0.01")
        quantile, wish = shares[0], "data"
    if wish is not None:
        if wish != "data" and wish.count(",") != 1:
            raise ConfigError(f"--range {wish!r} is no range: give data, data:0.01, or two numbers, such as 0,100")
        low, _, high = wish.partition(",")
        high = low if low == "data" else high
    if low != "data" and high != "data" and not tabular:
        return make_domain(
            network.input_shape,
            groups=parse_groups(choices.groups),
            mask=None if choices.mask is None else parse_array(choices.mask, "--mask"),
            low=parse_range(low, "--low"),
            high=parse_range(high, "--high"),
        )
    if choices.mask is not None or choices.groups not in ("auto", "feature"):
        raise ConfigError("--mask and --groups go by position, tables by name: give --fixed and --one-hot instead")
    return table_domain(
        data,
        low=None if low == "data" else parse_range(low, "--low"),
        high=None if high == "data" else parse_range(high, "--high"),
        quantile=quantile,
        **columns,
    )


def make_settings(
    search: Search,
    memory_bytes: int,
    max_t: int,
    *,
    domain: Domain | None = None,
    attack_queries: int = ATTACK_QUERIES,
    sample_ms: float = 0.0,
    seed: int = 0,
) -> Settings:
    """How to search, from what the user typed; words that are not known are refused."""
    return Settings(
        max_t=max_t,
        **spacing(domain, search.epsilon, search.points),
        grid=cast("GridKind", search.grid),
        colours=cast("Colours", search.colours),
        memory_bytes=memory_bytes,
        sample_ms=sample_ms,
        seed=seed,
        guarantee=cast("GuaranteeWish", search.guarantee),
        attack_queries=attack_queries,
    )


def parse_class(text: str, classes: int, names: Names, option: str = "--targeted") -> int:
    """A class by its name or its number."""
    if text in names.classes:
        return names.classes.index(text)
    if text.isdecimal() and int(text) < classes:
        return int(text)
    named = f" ({', '.join(names.classes[:12])}{', ...' if len(names.classes) > 12 else ''})" if names.classes else ""
    raise ConfigError(f"{option} is {text}: the network has classes 0 to {classes - 1}{named}")


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
        with path.open("rb") as stream:
            array = read_array_or_archive(stream)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {path} cannot be read as a .npy array: {error}") from error
    if not isinstance(array, np.ndarray):
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


def parse_groups(text: str) -> Groups | np.ndarray:
    """A kind of groups, or group numbers from a ``.npy`` file."""
    return parse_array(Path(text), "--groups") if text.endswith(".npy") else cast("Groups", text)
