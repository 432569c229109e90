"""Sensitivity maps for the images of a run."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from l0tre.api.resume import network_of
from l0tre.api.saliency import saliency_map
from l0tre.figures.pictures import is_picture, plane
from l0tre.model.sources import Source
from l0tre.store import read_config, read_inputs, read_maps, read_snapshot, write_maps

__all__ = ["add_maps"]


def add_maps(
    folder: Path,
    count: int,
    network: Source | None = None,
    *,
    device: str = "auto",
    trust_run: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Draw maps of the images that are easiest to change, and keep them in the run folder.

    Args:
        folder: The run folder.
        count: So many images have a map afterwards, if the run has as many.
        network: The run's network, if it cannot be loaded from what the run names.
        device: Where to compute.
        trust_run: Import the Python code that the run names.
        progress: Is told how many are drawn.

    Returns:
        How many have one.

    Raises:
        L0treError: If the network cannot be had, or is another one.
    """
    snapshot, inputs = read_snapshot(folder), read_inputs(folder)
    shape = tuple(inputs.images.shape[1:])
    maps: dict[int, Tensor] = dict(read_maps(folder))
    places = {index: row for row, index in enumerate(inputs.indices)}
    order = sorted(snapshot.images, key=lambda image: (image.upper, image.lower, image.index))
    wanted = [image for image in order[:count] if image.index not in maps]
    if wanted:
        net = network_of(folder, read_config(folder), shape, network, device, trust_run=trust_run)
        for number, image in enumerate(wanted, 1):
            found = saliency_map(net, inputs.images[places[image.index]], image.label, domain=inputs.domain)
            drop = found.attribution()
            maps[image.index] = plane(drop).amax(2) if is_picture(shape) else drop.flatten()
            progress(number)
        write_maps(folder, maps)
    return len(maps)
