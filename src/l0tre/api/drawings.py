"""A saliency map in the making: what it is of, and what is known so far."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from l0tre.api.inputs import fitting_threads
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError
from l0tre.grid import GridKind, make_grid
from l0tre.maps.draw import draw
from l0tre.maps.files import read_state, write_map
from l0tre.maps.observed import Observed, observe_class, observe_neuron
from l0tre.maps.perturber import Perturber
from l0tre.maps.saliency_map import SaliencyMap
from l0tre.maps.work import MapState, MapStep, empty_state, finished
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.threads import with_threads

__all__ = ["Drawing", "begin_map"]


@dataclass(frozen=True)
class Drawing:
    """A map in the making.

    Attributes:
        network: What the map is of.
        arguments: Of :func:`begin_map`, to begin it again elsewhere.
        perturber: Changes pixels and looks at the number.
        image: float32 ``input_shape``, on the CPU.
        state: What is known so far.
        about: What the map is of, for its file.
        threads: That small work is best done with, on the CPU.
    """

    network: Network
    arguments: Mapping[str, Any]
    perturber: Perturber
    image: Tensor
    state: MapState
    about: dict[str, Any]
    threads: int

    def steps(self, **choices: Any) -> Iterator[MapStep]:
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
        target: See :func:`l0tre.saliency`.
        neuron: See :func:`l0tre.saliency`.
        classes: Their names, for words; default those of the network.
        epsilon: See :func:`l0tre.saliency`.
        grid: See :func:`l0tre.saliency`.
        domain: See :func:`l0tre.saliency`.
        memory_bytes: See :func:`l0tre.saliency`.
        halves: See :func:`l0tre.saliency`.
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
    values = make_grid(where, 0.25 if epsilon is None else epsilon, grid, "corners" if epsilon is None else "grid")
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
    arguments = {
        "target": target,
        "neuron": neuron,
        "classes": tuple(classes),
        "epsilon": epsilon,
        "grid": grid,
        "domain": domain,
        "memory_bytes": memory_bytes,
        "halves": halves,
    }
    about = {**about, "name": network.name}
    return Drawing(network, arguments, perturber, image.cpu(), state, about, fitting_threads(network))


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
