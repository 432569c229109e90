"""What must not change: the decision for a label, its lead over one class, the value of a neuron.

An objective says it for people; a :class:`Specification` says it for engines, as a claim about each image: one score
stays above the scores of its rivals. The value of a neuron becomes such a claim about a view of the network whose two
scores are the neuron's value and the threshold, so every engine works for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from l0tre.errors import ConfigError
from l0tre.model.graph import Graph, GraphBuilder, Operation, run
from l0tre.model.network import Network, margins

__all__ = [
    "AllRivals",
    "LabelMargin",
    "NeuronValue",
    "Objective",
    "OneRival",
    "Specification",
    "TargetMargin",
    "specify",
]


@dataclass(frozen=True)
class LabelMargin:
    """The label's score stays above the scores of all other classes."""


@dataclass(frozen=True)
class TargetMargin:
    """The label's score stays above that of one class.

    Attributes:
        target: The class.
    """

    target: int


@dataclass(frozen=True)
class NeuronValue:
    """A neuron's value stays on its side of a threshold.

    Attributes:
        position: Of the operation in ``Network.exact``.
        neuron: Number in the operation's flattened output.
        threshold: In the units of the neuron's value.
        side: Where the value must stay, ``above`` or ``below`` the threshold.
    """

    position: int
    neuron: int
    threshold: float
    side: Literal["above", "below"]


Objective = LabelMargin | TargetMargin | NeuronValue


@dataclass(frozen=True)
class AllRivals:
    """The score of each image's label exceeds all others.

    Attributes:
        labels: int64 ``[images]``.
    """

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, rows: Tensor | slice | list[int]) -> "AllRivals":
        """The claims about some images."""
        return AllRivals(self.labels[rows])

    def repeat(self, times: int) -> "AllRivals":
        """Every claim so many times, one after the other."""
        return AllRivals(self.labels.repeat_interleave(times))

    def to(self, device: torch.device) -> "AllRivals":
        """The same claims on another device."""
        return AllRivals(self.labels.to(device))

    def margins(self, scores: Tensor) -> Tensor:
        """How far the label's score is above its best rival's, ``[rows]`` from ``[rows, classes]``; NaN for NaN."""
        return margins(scores, self.labels)

    def rival_scores(self, scores: Tensor) -> Tensor:
        """Scores ``[rows, classes]`` of the rivals; minus infinity for all other classes."""
        return scores.scatter(1, self.labels[:, None], float("-inf"))

    def rivals(self, classes: int) -> Tensor:
        """The rivals of each label, int64 ``[images, classes - 1]``."""
        numbers = torch.arange(classes, device=self.labels.device).expand(len(self.labels), -1)
        return numbers[numbers != self.labels[:, None]].view(len(self.labels), classes - 1)


@dataclass(frozen=True)
class OneRival:
    """The score of each image's label exceeds that of one other class.

    Attributes:
        labels: int64 ``[images]``.
        others: int64 ``[images]``, the rival of each.
    """

    labels: Tensor
    others: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, rows: Tensor | slice | list[int]) -> "OneRival":
        """The claims about some images."""
        return OneRival(self.labels[rows], self.others[rows])

    def repeat(self, times: int) -> "OneRival":
        """Every claim so many times, one after the other."""
        return OneRival(self.labels.repeat_interleave(times), self.others.repeat_interleave(times))

    def to(self, device: torch.device) -> "OneRival":
        """The same claims on another device."""
        return OneRival(self.labels.to(device), self.others.to(device))

    def margins(self, scores: Tensor) -> Tensor:
        """How far the label's score is above its rival's, ``[rows]`` from ``[rows, classes]``; NaN for NaN."""
        own, other = (scores.gather(1, which[:, None]) for which in (self.labels, self.others))
        return (own - other)[:, 0]

    def rival_scores(self, scores: Tensor) -> Tensor:
        """Scores ``[rows, classes]`` of the rivals; minus infinity for all other classes."""
        other = self.others[:, None]
        return torch.full_like(scores, float("-inf")).scatter_(1, other, scores.gather(1, other))

    def rivals(self, classes: int) -> Tensor:  # noqa: ARG002  # as AllRivals has it
        """The rival of each label, int64 ``[images, 1]``."""
        return self.others[:, None]


Specification = AllRivals | OneRival


def specify(network: Network, objective: Objective, labels: Tensor) -> tuple[Network, Specification]:
    """The claims that an objective makes about images, and the network that they are about.

    Args:
        network: The classifier.
        objective: What must not change.
        labels: int64 ``[images]``, the classes of the images; not used for a neuron's value.

    Returns:
        The network, or for a neuron a view of it; and the specification, on the network's device.

    Raises:
        ConfigError: If there is no such class or neuron, or the target is an image's own label.
    """
    labels = labels.to(network.device)
    if isinstance(objective, LabelMargin):
        return network, AllRivals(labels)
    if isinstance(objective, TargetMargin):
        if not 0 <= objective.target < network.classes:
            raise ConfigError(f"the target is class {objective.target}: give one of 0 to {network.classes - 1}")
        if bool((labels == objective.target).any()):
            raise ConfigError(f"class {objective.target} is the label of an input: give another target for it")
        return network, OneRival(labels, torch.full_like(labels, objective.target))
    return _observe(network, objective), AllRivals(torch.zeros_like(labels))


def _observe(network: Network, objective: NeuronValue) -> Network:
    """The network cut off at a neuron: score 0 is the side where its value must stay, score 1 the other one."""
    if network.exact is None:
        raise ConfigError(f"{network.name} has no graph, so none of its neurons is known: {network.note}")
    last = len(network.exact.operations) - 1
    if not 0 < objective.position <= last:
        raise ConfigError(f"the network has operations 1 to {last}, not {objective.position}: give one of them")
    exact = _cut(network.exact, objective)
    ready, reference = exact.to(network.device), exact.to("cpu")
    wide = network.exact

    def scores(graph: Graph) -> Callable[[Tensor], Tensor]:
        return lambda x: run(graph, x)

    return replace(
        network,
        forward=scores(ready),
        reference=scores(reference),
        classes=2,
        graph=ready,
        exact=exact,
        literal=exact,
        # The graph as a whole was compared with the source in float64; a part of it is compared with that part.
        double=scores(_cut(wide, objective)),
        dropped="",
        name=f"{network.name}, neuron {objective.neuron} of operation {objective.position}",
    )


def _cut(graph: Graph, objective: NeuronValue) -> Graph:
    """The operations up to a neuron, and its value and the threshold as two scores."""
    nodes = list(graph.operations[: objective.position + 1])
    shape = nodes[-1].shape
    size = torch.Size(shape).numel()
    if not 0 <= objective.neuron < size:
        raise ConfigError(f"operation {objective.position} has neurons 0 to {size - 1}, not {objective.neuron}")
    weight, bias = torch.zeros(2, size, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    value, threshold = (0, 1) if objective.side == "above" else (1, 0)
    weight[value, objective.neuron] = 1.0
    bias[threshold] = objective.threshold
    nodes.append(Operation("reshape", (len(nodes) - 1,), (size,), attributes={"shape": (size,)}))
    nodes.append(Operation("linear", (len(nodes) - 1,), (2,), {"weight": weight, "bias": bias}))
    builder = GraphBuilder(graph.input_shape)
    builder.operations = nodes
    return builder.build(len(nodes) - 1)  # without operations that the neuron does not need
