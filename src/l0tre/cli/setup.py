"""From options to a network, data and a domain."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0tre.api.load import load
from l0tre.cli.options import parse_array, parse_groups, parse_numbers, parse_range, parse_shape
from l0tre.data import Dataset, load_data
from l0tre.domain import Domain, make_domain
from l0tre.memory import parse_size
from l0tre.model.load import knows_its_shape
from l0tre.model.network import Network

__all__ = ["Choices", "prepare"]


@dataclass(frozen=True)
class Choices:
    """What the user chose, as typed."""

    model: str
    data: str
    mean: str | None
    std: str | None
    input_shape: str | None
    device: str
    data_dir: Path | None
    split: str
    scale: float | None
    resize: bool
    groups: str
    mask: Path | None
    low: str
    high: str
    memory: str | None


def prepare(choices: Choices) -> tuple[Network, Dataset, dict[str, Any]]:
    """Load everything.

    Args:
        choices: What the user typed.

    Returns:
        The network, the data fitted to it, and the options ``domain`` and ``memory`` for ``l0tre.anytime``.
    """
    shape = parse_shape(choices.input_shape)
    mean, std = parse_numbers(choices.mean, "--mean"), parse_numbers(choices.std, "--std")

    def read(shape: tuple[int, ...] | None) -> Dataset:
        return load_data(
            choices.data,
            input_shape=shape,
            data_dir=choices.data_dir,
            scale=choices.scale,
            split=choices.split,
            resize=choices.resize,
        )

    if knows_its_shape(choices.model) or shape is not None:
        network = load(choices.model, mean=mean, std=std, input_shape=shape, device=choices.device)
        data = read(network.input_shape)
    else:
        data = read(None)
        network = load(
            choices.model, mean=mean, std=std, input_shape=tuple(data.images.shape[1:]), device=choices.device
        )
    memory = 0 if choices.memory is None else parse_size(choices.memory)
    return network, data, {"domain": _domain(choices, network.input_shape), "memory": memory}


def _domain(choices: Choices, shape: tuple[int, ...]) -> Domain:
    return make_domain(
        shape,
        groups=parse_groups(choices.groups),
        mask=None if choices.mask is None else parse_array(choices.mask, "--mask"),
        low=parse_range(choices.low, "--low"),
        high=parse_range(choices.high, "--high"),
    )
