"""The function that measures coverage: measure_coverage."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from l0tre.api.inputs import Images, load_inputs
from l0tre.api.suite_files import TESTS, read_ranges, read_tests
from l0tre.coverage.criteria import CoverageFigure
from l0tre.coverage.measure import RANGED, Coverage, measure_ranges
from l0tre.coverage.ranges import Ranges
from l0tre.errors import DataError
from l0tre.model.network import Network
from l0tre.model.sources import Source

__all__ = ["is_suite", "measure_coverage"]


def is_suite(images: object) -> bool:
    """Whether something is the folder of a generated suite."""
    return isinstance(images, str | Path) and (Path(images) / TESTS).is_file()


def measure_coverage(
    network: Source,
    images: Images,
    *,
    criteria: Sequence[str] = ("neuron",),
    layers: Sequence[str] = (),
    threshold: float = 0.0,
    channel_threshold: float = 0.25,
    k: int = 2,
    sections: int = 1000,
    ranges: Images | None = None,
    device: str = "auto",
) -> dict[str, CoverageFigure]:
    """Measure how much of a network some inputs exercise.

    Args:
        network: What :func:`l0tre.load` gives or takes; it must have a graph.
        images: ``[inputs, *shape]``, a data set, or the folder of a suite, whose seeds count too.
        criteria: Some of ``neuron``, ``channel``, ``kmnc``, ``boundary``, ``strong``, ``top-k``, ``mcdc``.
        layers: Names of layers, such as ``relu2``; all if empty.
        threshold: Of ``neuron``, in the units of the neurons' values.
        channel_threshold: Of ``channel``, at least 0, less than 1.
        k: Of ``top-k``.
        sections: Of ``kmnc``.
        ranges: Training inputs for ``kmnc``, ``boundary`` and ``strong``; default those that a suite was generated
            with, else its seeds.
        device: Where to compute, if ``network`` is not loaded yet.

    Returns:
        For each criterion its figure, which says what was counted.

    Raises:
        L0treError: If anything given cannot be used.
    """
    held: Ranges | None = None
    base = None
    if is_suite(images):
        folder = Path(str(images))
        tests, seeds = read_tests(folder)
        held, base, images = read_ranges(folder), seeds, torch.cat([seeds, tests])
    net, data = load_inputs(network, images, None, device)
    if not len(data.images):
        raise DataError("there are no inputs to measure coverage with: give at least one")
    if any(name in RANGED for name in criteria):
        held = _ranges(net, ranges, held, base, layers)
    metric = Coverage(
        net,
        criteria,
        layers=layers,
        threshold=threshold,
        channel_threshold=channel_threshold,
        k=k,
        sections=sections,
        ranges=held,
    )
    metric.update(data.images)
    return metric.compute()


def _ranges(
    network: Network, given: Images | None, held: Ranges | None, seeds: torch.Tensor | None, layers: Sequence[str]
) -> Ranges | None:
    """The ranges to go by: those of inputs that were given, else those that a suite has, else its seeds'."""
    if given is not None:
        data = load_inputs(network, given, None, "auto")[1]
        return measure_ranges(network, data.images, f"inputs of {data.name}", layers)
    if held is not None:
        return replace(held, low=held.low.to(network.device), high=held.high.to(network.device))
    return None if seeds is None else measure_ranges(network, seeds, "seeds of the suite", layers)
