"""Saliency maps for users: how far each pixel alone can move a score or a neuron."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.api.inputs import Image, Images, fitting_threads, load_inputs, load_one
from l0tre.data import Dataset
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError
from l0tre.grid import GridKind, make_grid
from l0tre.maps.draw import draw
from l0tre.maps.files import read_state, write_map
from l0tre.maps.observed import Observed, observe_class, observe_neuron
from l0tre.maps.perturber import Perturber
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.work import MapState, Step, empty_state, finished
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.model.sources import Source
from l0tre.threads import using_threads, with_threads

__all__ = ["Drawing", "begin_map", "saliency", "saliency_map"]

Told = Callable[[Step], None]


@dataclass(frozen=True)
class Drawing:
    """A map in the making.

    Attributes:
        perturber: Changes pixels and looks at the number.
        image: float32 ``input_shape``, on the CPU.
        state: What is known so far.
        about: What the map is of, for its file.
        threads: That small work is best done with, on the CPU.
    """

    perturber: Perturber
    image: Tensor
    state: MapState
    about: dict[str, Any]
    threads: int

    def steps(self, **choices: Any) -> Iterator[Step]:
        """Go on; for the arguments see :func:`l0tre.maps.draw.draw`."""
        return with_threads(draw(self.perturber, self.state, **choices), self.threads)

    def now(self) -> SaliencyMap:
        """The map as it is known now."""
        return finished(self.perturber, self.state)

    def write(self, path: Path) -> Path:
        """Write what is known now to an ``.npz`` file, from which ``resume`` can go on."""
        return write_map(path, self.now(), self.state, self.image, self.about)


def begin_map(
    network: Network,
    image: Tensor,
    *,
    target: int | None = None,
    neuron: str | None = None,
    classes: Sequence[str] = (),
    epsilon: float | None = None,
    grid: GridKind = "uniform",
    domain: Domain | None = None,
    memory_bytes: int = 0,
    halves: bool = True,
    resume: Path | None = None,
) -> Drawing:
    """Get ready to draw a map of one image.

    Args:
        network: A loaded network.
        image: float32 ``input_shape``.
        target: See :func:`saliency`.
        neuron: See :func:`saliency`.
        classes: Their names, for words; default those of the network.
        epsilon: See :func:`saliency`.
        grid: See :func:`saliency`.
        domain: See :func:`saliency`.
        memory_bytes: See :func:`saliency`.
        halves: See :func:`saliency`.
        resume: A file that :meth:`Drawing.write` wrote, to go on with.

    Returns:
        What is needed to go on, with nothing measured yet unless it resumes.

    Raises:
        L0treError: If anything given cannot be used.
    """
    if target is not None and neuron is not None:
        raise ConfigError("a map is of a class's score (`target`) or of a neuron (`neuron`): give one of them")
    observed = _observe(network, image, target, neuron, classes)
    where = domain or make_domain(network.input_shape)
    where.check(image[None], (0,))
    values = make_grid(where, epsilon or 0.25, grid, "corners" if epsilon is None else "grid")
    perturber = Perturber(observed, where, values, image, memory_bytes or default_budget(network.device), halves=halves)
    about = {
        "network": network.fingerprint,
        "target": observed.words,
        "pixels": _digest(image),
        "grid": _digest(where.members, where.low, where.high, values),
    }
    state = empty_state(where.groups, values.shape[1])
    if resume is not None:
        state = read_state(resume, where.groups, values.shape[1], about)
    return Drawing(perturber, image.cpu(), state, {**about, "name": network.name}, fitting_threads(network))


def _observe(
    network: Network, image: Tensor, target: int | None, neuron: str | None, classes: Sequence[str]
) -> Observed:
    if neuron is not None:
        return observe_neuron(network, neuron)
    wanted = int(network.scores(image[None]).argmax()) if target is None else target
    return observe_class(network, wanted, classes)


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


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
    epsilon: float | None = None,
    grid: GridKind = "uniform",
    domain: Domain | None = None,
    halves: bool = True,
    seed: int = 0,
    time_budget: float | None = None,
    memory_bytes: int = 0,
    device: str = "auto",
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

    Returns:
        float32, in the shape of ``images`` and on their device; all values of a pixel have the pixel's number.

    Raises:
        L0treError: If anything given cannot be used.
    """
    batch, alone = _as_batch(network, images)
    net, data = load_inputs(network, batch, None, device, domain)
    targets = _targets(target, len(data.images))
    found = torch.stack(
        [
            saliency_map(
                net,
                _one(data, place),
                targets[place],
                neuron=neuron,
                signed=signed,
                coarse=coarse,
                strongest=strongest,
                epsilon=epsilon,
                grid=grid,
                domain=domain,
                halves=halves,
                seed=seed,
                time_budget=time_budget,
                memory_bytes=memory_bytes,
            ).attribution(signed=signed)
            for place in range(len(data.images))
        ]
    )
    found = found[0] if alone else found
    if isinstance(images, Tensor | np.ndarray):
        found = found.reshape(tuple(images.shape))
    return found.to(images.device) if isinstance(images, Tensor) else found


def _one(data: Dataset, place: int) -> Tensor:
    return data.images[place][None]


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
        raise ConfigError(f"{len(found)} targets for {count} images: give one for all, or one for each")
    return [int(value) for value in (found * count if len(found) == 1 else found)]
