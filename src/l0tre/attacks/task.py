"""What is attacked: inputs, the class that each must leave, and what may change."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.exhaustive.accumulate import changed_groups
from l0tre.model.network import Network
from l0tre.objective import Specification

__all__ = ["LEVELS", "AttackTask", "Worker", "keep_smaller", "levels_of", "rounded", "towards"]

# A method at work: from the best inputs so far ``[images, values]``, and the passes at which each image stops, int64
# ``[images]``, to inputs that are no larger. It may keep what it knows from one call to the next.
Worker = Callable[[Tensor, Tensor], Tensor]

LEVELS = 255  # of an 8-bit image whose values are from 0 to 1


@dataclass(frozen=True)
class AttackTask:
    """Inputs to attack, all on the network's device.

    Attributes:
        images: float32 ``[images, values]``, the originals.
        specification: What an attack must violate: the class that each image must leave.
        domain: The groups that may change, and their ranges.
        enough: int64 ``[images]``, a number of changed groups that no input can undercut: the search stops there.
        levels: Changed values must be multiples of one in so many: ``LEVELS``, or 1 for whole numbers; 0 for any value.
    """

    images: Tensor
    specification: Specification
    domain: Domain
    enough: Tensor
    levels: int = 0

    def part(self, rows: Tensor) -> "AttackTask":
        """The task for some of the images."""
        return replace(
            self, images=self.images[rows], specification=self.specification.pick(rows), enough=self.enough[rows]
        )

    def sizes(self, inputs: Tensor) -> Tensor:
        """Changed groups of each input ``[images, values]``, int64; ``groups + 1`` where nothing is changed."""
        count = changed_groups(self.domain, self.images, inputs).sum(1)
        return torch.where(count > 0, count, self.domain.groups + 1)

    def values_of(self, groups: Tensor) -> Tensor:
        """The values that belong to some groups: ``[rows, values]`` from ``[rows, groups]``; zero for all others."""
        if self.domain.planes:
            return groups if self.domain.planes == 1 else groups.repeat(1, self.domain.planes)
        values = torch.zeros(len(groups), self.images.shape[1], dtype=groups.dtype, device=groups.device)
        values[:, self.domain.members.flatten()] = groups.repeat_interleave(self.domain.members.shape[1], 1)
        return values

    def snap(self, values: Tensor) -> Tensor:
        """Values of any shape as they may be used: rounded if the task asks for it."""
        return rounded(values, self.levels) if self.levels else values


def rounded(values: Tensor, levels: int = LEVELS) -> Tensor:
    """The nearest multiples of one in ``levels``, bit for bit what reading an 8-bit image gives."""
    return (values * levels).round() / levels


def levels_of(domain: Domain, images: Tensor) -> int:
    """How many 8-bit values a unit holds: ``LEVELS`` for values of 0 to 1, 1 for whole numbers of 0 to 255."""
    return 1 if float(domain.high.max()) >= LEVELS or float(images.max()) >= 2 else LEVELS


def keep_smaller(task: AttackTask, old: Tensor, new: Tensor) -> Tensor:
    """For each image the input with fewer changed groups, the old one on a tie; all ``[images, values]``."""
    return torch.where((task.sizes(new) < task.sizes(old))[:, None], new, old)


def towards(network: Network, target: int) -> Network:
    """A network of two scores: the best class other than ``target``, and ``target``.

    Leaving class 0 of this network is reaching ``target`` in the given one, so every method can be aimed.
    """

    def view(scores: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def two(x: Tensor) -> Tensor:
            every = scores(x)
            others = torch.cat([every[:, :target], every[:, target + 1 :]], 1)
            return torch.stack([others.amax(1), every[:, target]], 1)

        return two

    return replace(
        network,
        forward=view(network.forward),
        reference=view(network.reference),
        classes=2,
        graph=None,
        exact=None,
        note="it is aimed at one class",
    )
