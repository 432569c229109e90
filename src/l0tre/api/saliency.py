"""Saliency maps for users: how far each pixel alone can move a score or a neuron."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from l0tre.api.clusters import ClusterChoice, shared_session
from l0tre.api.drawings import Drawing, begin_map
from l0tre.api.inputs import Image, Images, load_inputs, load_one
from l0tre.api.spread_maps import draw_all
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.grid import GridKind
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.together import lower_together, ranked
from l0tre.maps.work import MapStep
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.threads import using_threads

__all__ = ["saliency", "saliency_map"]

Told = Callable[[MapStep], None]
TOGETHER = 64  # maps that a cluster is given at a time: what is known of each takes memory here


def saliency_map(
    network: Source,
    image: Image,
    target: int | None = None,
    *,
    neuron: str | None = None,
    coarse: bool = False,
    strongest: int = 100,
    signed: bool = False,
    epsilon: float | None = None,
    grid: GridKind = "uniform",
    domain: Domain | None = None,
    halves: bool = True,
    seed: int = 0,
    time_budget: float | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
    progress: Told = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> SaliencyMap:
    """How far each pixel of one image can move a score or a neuron, with all that is known about it.

    Args:
        network: As for :func:`l0tre.evaluate`.
        image: One input.
        target: See :func:`saliency`, as all that follows.
        neuron: Likewise.
        coarse: Likewise.
        strongest: Likewise.
        signed: Whether rises are wanted as certainly as drops.
        epsilon: Likewise.
        grid: Likewise.
        domain: Likewise.
        halves: Likewise.
        seed: Likewise.
        time_budget: Likewise.
        memory_bytes: Likewise.
        device: Likewise.
        progress: Told of every step.
        stop: Asked before every batch; ends early with the map so far.

    Returns:
        The map.

    Raises:
        L0treError: If anything given cannot be used.
    """
    net, data = load_one(network, image, None, device, domain)
    drawing = begin_map(
        net,
        data.images[0],
        target=target,
        neuron=neuron,
        epsilon=epsilon,
        grid=grid,
        domain=domain,
        memory_bytes=memory_bytes,
        halves=halves,
    )
    with using_threads(drawing.threads):
        for step in drawing.steps(
            coarse=coarse, strongest=strongest, both=signed, seed=seed, time_budget=time_budget, stop=stop
        ):
            progress(step)
    return drawing.now()


def saliency(
    network: Source,
    images: Images,
    target: int | Sequence[int] | np.ndarray | Tensor | None = None,
    *,
    neuron: str | None = None,
    signed: bool = False,
    coarse: bool = False,
    strongest: int = 100,
    together: int = 0,
    epsilon: float | None = None,
    grid: GridKind = "uniform",
    domain: Domain | None = None,
    halves: bool = True,
    seed: int = 0,
    time_budget: float | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
    cluster: ClusterChoice = None,
) -> Tensor:
    """How far each pixel alone can lower a score: the paper's ``S(x, 1)`` as an attribution.

    For every pixel the number for the image less the smallest one over all values that the pixel can take, all other
    pixels as they are. Measured, not estimated, unless ``coarse`` or a time budget ends it before all pixels were.

    Args:
        network: As for :func:`l0tre.evaluate`.
        images: One input, or a batch of them.
        target: The class whose score is looked at, one for all or one for each image; default the decision of the
            network.
        neuron: Instead of a class a hidden neuron: ``layer:channel`` for the mean of a channel's map,
            ``layer:channel:row:column`` for one of its positions, ``layer:number`` in a layer without a map.
        signed: Negative, how far the number can rise, for pixels that can raise it more than lower it.
        coarse: Stop once the strongest pixels are found; the others are then predictions.
        strongest: How many that are.
        together: So many pixels are chosen one after the other, each for what it adds to those before it. They come
            first: their numbers are above the largest of the map, by 1 each. A map says what each pixel does alone, and
            its strongest ones often stand for each other.
        epsilon: Try a grid of colours, at most so far apart; default only the corners of the range (8 colours of a
            pixel with three channels).
        grid: As for :func:`l0tre.evaluate`.
        domain: As for :func:`l0tre.evaluate`.
        halves: Whether colours may be ranked in half precision on a GPU; those that decide are computed in float32
            anyway.
        seed: Of the pixels that are drawn to check predictions.
        time_budget: Seconds for each image.
        memory_bytes: As for :func:`l0tre.evaluate`.
        device: As for :func:`l0tre.evaluate`.
        cluster: As for :func:`l0tre.evaluate`: each worker draws whole maps.

    Returns:
        float32, in the shape of ``images`` and on their device; all values of a pixel have the pixel's number.

    Raises:
        L0treError: If anything given cannot be used.
    """
    batch, alone = _as_batch(network, images)
    if together < 0:
        raise ConfigError(
            f"together is {together}: give a number of {'pixels' if domain is None else domain.unit + 's'}"
        )
    net, data = load_inputs(network, batch, None, device, domain)
    targets = _targets(target, len(data.images))
    maps, size = list[Tensor](), 1 if cluster is None else TOGETHER
    with shared_session(cluster):
        for some in range(0, len(targets), size):
            drawings = [
                begin_map(
                    net,
                    data.images[place],
                    target=targets[place],
                    neuron=neuron,
                    epsilon=epsilon,
                    grid=grid,
                    domain=domain,
                    memory_bytes=memory_bytes,
                    halves=halves,
                )
                for place in range(some, min(some + size, len(targets)))
            ]
            steps = draw_all(
                drawings, cluster, coarse=coarse, strongest=strongest, both=signed, seed=seed, time_budget=time_budget
            )
            deque(steps, maxlen=0)
            maps += [_attribution(drawing, together, signed=signed) for drawing in drawings]
    found = torch.stack(maps)
    found = found[0] if alone else found
    if isinstance(images, Tensor | np.ndarray):
        found = found.reshape(tuple(images.shape))
    return found.to(images.device) if isinstance(images, Tensor) else found


def _attribution(drawing: Drawing, together: int, *, signed: bool) -> Tensor:
    """A map in the shape of its input."""
    found = drawing.now()
    if not together:
        return found.attribution(signed=signed)
    with using_threads(drawing.threads):
        return ranked(found, lower_together(drawing.perturber, drawing.state, together), signed=signed)


def _as_batch(network: Source, images: Images) -> tuple[Images, bool]:
    """Images as a batch, and whether it was one image without the axis of a batch."""
    if not isinstance(images, Tensor | np.ndarray):
        return images, False
    axes = len(network.input_shape) if isinstance(network, Network) else 1 if images.ndim == 1 else 3
    return (images[None], True) if images.ndim == axes else (images, False)


def _targets(target: int | Sequence[int] | np.ndarray | Tensor | None, count: int) -> list[int | None]:
    if target is None:
        return [None] * count
    found = np.asarray(target).reshape(-1).tolist()
    if len(found) not in (1, count):
        raise ConfigError(f"{len(found)} targets for {count} inputs: give one for all, or one for each")
    return [int(value) for value in (found * count if len(found) == 1 else found)]
