"""Networks with known distances, and what every result of an attack must satisfy."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from l0tre.attacks.attacked import Attacked
from l0tre.domain import Domain, make_domain
from l0tre.model.network import Network
from tests.tools import plain_network

Shape = tuple[int, ...]
TIE = 1e-3  # margins nearer to zero than this leave open what is the exact distance


@dataclass(frozen=True)
class Linear:
    """A linear classifier with images that it decides, and what may change in them."""

    module: nn.Sequential
    network: Network
    images: Tensor
    labels: Tensor
    domain: Domain

    def distance(self, row: int) -> int:
        """Fewest groups that change the decision, for each other class the largest gains first; -1 if none do.

        Raises:
            Undecided: If a sum of gains is too near to the margin.
        """
        label = int(self.labels[row])
        found = [self._towards(row, label, rival) for rival in range(self.network.classes) if rival != label]
        return min((distance for distance in found if distance > 0), default=-1)

    def _towards(self, row: int, label: int, rival: int) -> int:
        weight, bias = (parameter.double() for parameter in self.module[1].parameters())
        x = self.images[row].flatten().double()
        slope = weight[rival] - weight[label]
        gap = float(-(slope @ x) - bias[rival] + bias[label])
        gains = []
        for members, size in zip(self.domain.members.tolist(), self.domain.sizes.tolist(), strict=True):
            ends = ((float(self.domain.low[p]), float(self.domain.high[p]), p) for p in members[:size])
            gains.append(sum(float(slope[p] * ((high if slope[p] > 0 else low) - x[p])) for low, high, p in ends))
        sums = list(itertools.accumulate(sorted(gains, reverse=True)))
        if min(abs(total - gap) for total in [0.0, *sums]) < TIE:
            raise Undecided
        return next((number for number, total in enumerate(sums, 1) if total > gap), -1)


class Undecided(Exception):  # noqa: N818
    """A drawn case is too near to a tie for an exact answer."""


SHAPES: tuple[Shape, ...] = ((7,), (3, 4), (1, 3, 3), (3, 2, 3), (6, 2, 3))
RANGES = ("unit", "wide", "each")
GROUPS = ("auto", "feature", "own")


def make_linear(
    seed: int,
    shape: Shape,
    classes: int,
    ranges: str = "unit",
    groups: str = "auto",
    masked: bool = False,
    count: int = 3,
) -> Linear:
    """A random linear classifier; everything follows from the arguments."""
    draw = np.random.default_rng(seed)
    values = math.prod(shape)
    layer = nn.Linear(values, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(draw.normal(size=(classes, values))))
        layer.bias.copy_(torch.from_numpy(draw.normal(size=classes)))
    module = nn.Sequential(nn.Flatten(), layer)
    low, high = {
        "unit": (np.zeros(shape), np.ones(shape)),
        "wide": (np.full(shape, -1.0), np.full(shape, 1.5)),
        "each": (draw.uniform(-1, 0, shape), draw.uniform(0.1, 2, shape)),
    }[ranges]
    # Group numbers are drawn, so that sizes are uneven and some values (those below zero) may never change.
    numbers = np.append(draw.integers(-1, max(2, values // 2), values - 1), 0).reshape(shape)
    mask = np.append(draw.random(values - 1) < 0.7, True).reshape(shape) if masked else np.ones(shape, dtype=bool)
    domain = make_domain(
        shape,
        groups=numbers if groups == "own" else "feature" if groups == "feature" else "auto",
        mask=mask,
        low=low,
        high=high,
    )
    share = draw.random((count, values))
    share[0] = share[0].round()  # the first image lies on the ends of its ranges
    flat = torch.from_numpy(share).float() * (domain.high - domain.low) + domain.low
    images = torch.minimum(torch.maximum(flat, domain.low), domain.high).reshape(-1, *shape)
    network = plain_network(module, shape, sample_bytes=2**10)
    return Linear(module, network, images, module(images).argmax(1), domain)


class Conjunction(nn.Module):
    """Decides for class 1 only where all chosen values are near chosen ends of [0, 1] at once, else for class 0.

    From 0.5, gradients show every chosen value if ``visible``; else they are zero until all of them are right.
    """

    def __init__(self, positions: Sequence[int], ends: Sequence[float], *, visible: bool = True) -> None:
        super().__init__()
        self.register_buffer("positions", torch.tensor(positions))
        self.register_buffer("signs", torch.tensor(ends) * 2 - 1)
        self.visible = visible

    def forward(self, x: Tensor) -> Tensor:
        away = 2 * self.get_buffer("signs") * (x.flatten(1)[:, self.get_buffer("positions")] - 0.5)
        least = away.amin(1) - 0.8
        if not self.visible:
            least = torch.relu(least) - 0.1
        return torch.stack([torch.zeros_like(least), least], 1)


class Gate(nn.Module):
    """Like :class:`Conjunction` for one value, but class 1 loses again as soon as anything else moves far."""

    def __init__(self, position: int, start: float) -> None:
        super().__init__()
        self.position, self.start = position, start

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        on = torch.relu(flat[:, self.position] - 0.9)
        others = (flat - self.start).abs().sum(1) - (flat[:, self.position] - self.start).abs()
        lead = on - 0.05 - torch.relu(others - 0.25)
        return torch.stack([torch.zeros_like(lead), lead.clamp(min=-0.05)], 1)


def count_changed(domain: Domain, before: Tensor, after: Tensor) -> int:
    """Groups that differ, one by one; a value outside all groups that differs is a failure."""
    different = set((before.flatten() != after.flatten()).nonzero()[:, 0].tolist())
    groups = [set(members) for members in domain.members.tolist()]
    assert different <= set().union(*groups), "a value that may not change was changed"
    return sum(bool(different & members) for members in groups)


def check_result(
    module: nn.Module, images: Tensor, result: Attacked, domain: Domain, *, targeted: bool = False
) -> None:
    """Every claim of a result, checked one image at a time on the module itself."""
    assert result.adversarial.shape == images.shape
    assert result.adversarial.dtype == torch.float32
    assert result.unit == domain.unit
    for row, (before, after) in enumerate(zip(images, result.adversarial, strict=True)):
        label, found, distance = int(result.labels[row]), bool(result.found[row]), int(result.distance[row])
        flat = after.flatten()
        assert bool(((flat >= domain.low) & (flat <= domain.high)).all()), "outside the domain"
        with torch.no_grad():
            scores = module(after[None])[0]
        rivals = torch.cat([scores[:label], scores[label + 1 :]])
        assert found == bool(scores[label] > rivals.max() if targeted else scores[label] < rivals.max())
        assert int(result.decisions[row]) == int(scores.argmax())
        changed = count_changed(domain, before, after)
        assert distance == (changed if found else -1)
        if not found:
            assert torch.equal(before, after)
        assert bool(result.methods[row]) == (distance > 0)
        assert not bool(result.optimal[row]) or found
        if distance in (0, 1):
            assert bool(result.optimal[row])


def with_forward(network: Network, module: nn.Module) -> Network:
    """The network with another way to compute scores; its source stays."""
    return replace(network, forward=module)
