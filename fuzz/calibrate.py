"""Move a network's bias so that a known input lies just beyond the decision's boundary."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.exact_ops import real_arithmetic
from fuzz.net import Net, biased
from fuzz.sources import as_module, normalised
from fuzz.subjects import Subject
from fuzz.truth import ENDS, Truth
from l0tre.grid import make_grid

__all__ = ["Flip", "Grid", "Target", "calibrate", "draw_grid", "groups_of"]

Floats = NDArray[np.float64]

SETS = 120  # of groups that are searched
POINTS = 24  # of each
ROUNDS = 20  # of smaller and smaller steps around the best inputs
FLIPS = 48  # that are kept
# How far beyond the boundary, relative to the scores; the smallest gives as little as the biases can.
DEPTHS = (1e-3, 1e-6, 1e-9, 1e-12, 1e-30, 1e-30, 1e-30, 1e-30)
GRID_DEPTHS = (1e-2, 1e-3, 1e-5, 1e-6, 1e-7)
GRID_POINTS = 20_000  # of all sets of groups
TRIES = 4


@dataclass(frozen=True)
class Flip:
    """An input with another decision.

    Attributes:
        x: float64 ``[values]``.
        groups: The groups (rows of ``Domain.members``) that differ from the image.
        margin: The label's, below zero.
    """

    x: Floats
    groups: tuple[int, ...]
    margin: float


@dataclass(frozen=True)
class Target:
    """A calibrated network.

    Attributes:
        net: The network.
        label: The decision at the image.
        flips: Inputs with another one, for certain; for a grid those that are expected to have another one.
    """

    net: Net
    label: int
    flips: tuple[Flip, ...]


@dataclass(frozen=True)
class Grid:
    """Options of a grid, as ``l0tre.evaluate`` takes them."""

    epsilon: float
    grid: str
    colours: str


def draw_grid(subject: Subject) -> Grid:
    """A grid of a few points for each value, fewer where there are many values."""
    domain, numbers = subject.domain, subject.numbers
    wide = float((domain.high - domain.low).max())
    single = domain.members.shape[1] == 1
    most = 5 if single and subject.t < 3 else 3
    if subject.guarantee == "lipschitz" and single:
        most = 60 if subject.t == 1 else 16
    steps = int(numbers.integers(1, most))
    if subject.guarantee == "lipschitz" and subject.hints:
        steps = int(numbers.choice(sorted(range(1, most), key=lambda steps: _distance(subject, steps))[-5:]))
    colours = "corners" if domain.members.shape[1] > 3 or numbers.random() < 0.2 else "grid"
    kind = "paper" if wide == 1 and steps > 1 and numbers.random() < 0.15 else "uniform"
    return Grid(wide / steps * 1.000001, kind, colours)


def _distance(subject: Subject, steps: int) -> float:
    """How far the hints are from the points of a grid of so many steps, in steps: half a step at the most."""
    low, high = (end.double().numpy() for end in (subject.domain.low, subject.domain.high))
    shares = [
        (value - low[place]) / max(high[place] - low[place], 1e-30) * steps
        for hint in subject.hints
        for place, value in hint.items()
    ]
    return float(min(abs(share - round(share)) for share in shares))


def groups_of(subject: Subject, x: Floats) -> tuple[int, ...]:
    """The groups in which an input differs from the image."""
    domain = subject.domain
    changed = x != subject.image.flatten().double().numpy()
    members = domain.members.numpy()
    return tuple(int(group) for group in np.flatnonzero(changed[members].any(1)))


def _flip(subject: Subject, x: Floats, margin: float) -> Flip:
    """A flip, after a look whether it is an input that a proof speaks of."""
    domain, changed = subject.domain, x != subject.image.flatten().double().numpy()
    inside = (domain.low.double().numpy() <= x) & (x <= domain.high.double().numpy())
    assert inside.all()
    assert set(np.flatnonzero(changed)) <= set(domain.members.flatten().tolist())
    return Flip(x, groups_of(subject, x), margin)


def calibrate(subject: Subject, grid: Grid) -> Target | None:
    """A network that is just wrong somewhere within ``t`` groups of the image, where it is right.

    Args:
        subject: The network as drawn.
        grid: Where it must be wrong, if the guarantee is ``grid``.

    Returns:
        The target; none if the scores hardly depend on the groups.
    """
    if subject.guarantee == "grid":
        return _on_grid(subject, grid)
    return _anywhere(subject)


Scores = Callable[[Floats], Floats]


def _scores(subject: Subject, net: Net, dtype: torch.dtype) -> Scores:
    """Scores ``[rows, classes]`` of inputs ``[rows, values]``, by the module in some precision, without a softmax."""
    short = Net(net.ops[:-1], net.head, net.fine) if net.ops[-1].kind in ENDS else net
    module = as_module(short).to(dtype)

    def scores(x: Floats) -> Floats:
        with torch.inference_mode():
            batch = torch.from_numpy(x).to(dtype).reshape(-1, *subject.domain.shape)
            return np.asarray(module(normalised(subject.normalisation, batch)).double().numpy())

    return scores


def _margins(scores: Floats, label: int) -> Floats:
    with np.errstate(invalid="ignore"):
        found: Floats = scores[:, label] - np.delete(scores, label, 1).max(1)
    return np.nan_to_num(found, nan=math.inf)


def _sets(subject: Subject) -> list[tuple[int, ...]]:
    """Some sets of ``t`` groups, all of them if there are few."""
    every = list(itertools.combinations(range(subject.domain.groups), subject.t))
    if len(every) <= SETS:
        return every
    return [every[number] for number in subject.numbers.choice(len(every), SETS, replace=False)]


def _spread(subject: Subject, sets: list[tuple[int, ...]]) -> Floats:
    """Inputs that differ from the image in sets of groups: at ends of ranges, anywhere, and in between."""
    domain, numbers = subject.domain, subject.numbers
    low, high, image = (v.flatten().double().numpy() for v in (domain.low, domain.high, subject.image))
    rows = []
    for groups in sets:
        places = np.unique(domain.members.numpy()[list(groups)])
        shares = numbers.random((POINTS, len(places)))
        ends = np.arange(POINTS)[:, None] < 2 * POINTS // 3
        shares = np.where(ends, shares.round(), shares)
        x = np.repeat(image[None], POINTS, 0)
        x[:, places] = np.clip(low[places] + shares * (high - low)[places], low[places], high[places])
        keep = numbers.random(shares.shape) < 0.1
        x[:, places] = np.where(keep, image[places], x[:, places])
        rows.append(x)
    rows += [x[None] for x in _hinted(subject, image) if 0 < len(groups_of(subject, x)) <= subject.t]
    return np.concatenate(rows)


def _hinted(subject: Subject, image: Floats) -> Iterator[Floats]:
    """The inputs that the hints name, as far as the domain allows."""
    low, high = (end.double().numpy() for end in (subject.domain.low, subject.domain.high))
    free = set(subject.domain.members.flatten().tolist())
    for hint in subject.hints:
        if free.issuperset(hint):
            x = image.copy()
            for place, value in hint.items():
                x[place] = np.clip(value, low[place], high[place])
            yield x


def _refined(subject: Subject, scores: Scores, x: Floats, label: int) -> Floats:
    """Inputs of smaller margins near the best ones, their groups unchanged."""
    low, high = (v.double().numpy() for v in (subject.domain.low, subject.domain.high))
    image = subject.image.flatten().double().numpy()
    best = x[_margins(scores(x), label).argsort()[:4]]
    found = [best]
    radius = 0.5
    for _ in range(ROUNDS):
        steps = subject.numbers.uniform(-1, 1, (len(best), 16, len(low))) * radius * (high - low)
        near = np.clip(best[:, None] + np.where(best[:, None] != image, steps, 0.0), low, high)
        near = np.concatenate([best, near.reshape(-1, len(low))])
        best = near[_margins(scores(near), label).argsort()[:4]]
        found.append(best)
        radius *= 0.6
    return np.concatenate(found)


def _pick_label(subject: Subject, scores: Scores, x: Floats) -> int | None:
    """A class whose margin falls somewhere below that at the image; any can be made the decision there."""
    image = subject.image.flatten().double().numpy()[None]
    at_image, elsewhere = scores(image), scores(x)
    size = float(np.abs(at_image).max()) + 1e-30
    drops = [
        float(_margins(at_image, label)[0] - _margins(elsewhere, label).min()) for label in range(at_image.shape[1])
    ]
    fits = [label for label, drop in enumerate(drops) if math.isfinite(drop) and drop > 1e-6 * size]
    return int(subject.numbers.choice(fits)) if fits else None


def _anywhere(subject: Subject) -> Target | None:
    scores = _scores(subject, subject.net, torch.float64)
    x = _spread(subject, _sets(subject))
    label = _pick_label(subject, scores, x)
    if label is None:
        return None
    x = np.concatenate([x, _refined(subject, scores, x, label)])
    x = np.array([row for row in np.unique(x, axis=0) if groups_of(subject, row)])
    margins = _margins(scores(x), label)
    order = margins.argsort()
    # Mostly the worst input is the only one that is wrong, sometimes many are.
    place = 0 if subject.numbers.random() < 0.7 else int(subject.numbers.integers(1 + len(order) // 20))
    truth = Truth(subject.net, subject.normalisation)
    with real_arithmetic():
        at, margin = truth.scores(x[order[place]]), truth.margin(x[order[place]], label)
        room = truth.margin(subject.image.flatten().double().numpy(), label) - margin
        depth = Decimal(subject.numbers.choice(DEPTHS)) * max(abs(value) for value in at)
        net = biased(subject.net, label, -margin - min(depth, room / 3))
    truth = Truth(net, subject.normalisation)
    if not truth.margin(subject.image.flatten().double().numpy(), label) > 0:
        return None
    flips = []
    for row in x[order[: max(2 * FLIPS, place + 1)]]:
        margin = truth.margin(row, label)
        if margin < 0:
            flips.append(_flip(subject, row, float(margin)))
    if len(flips) > FLIPS:
        chosen = subject.numbers.choice(len(flips), FLIPS, replace=False)
        flips = [flips[number] for number in sorted(chosen)]
    return Target(net, label, tuple(flips)) if flips else None


def _grid_points(subject: Subject, grid: Grid) -> Floats:
    """Inputs on the grid with ``t`` changed groups, all of them or some."""
    kind, colours = grid.grid, grid.colours
    points = make_grid(subject.domain, grid.epsilon, kind, colours).double().numpy()  # type: ignore[arg-type]
    members, image = subject.domain.members.numpy(), subject.image.flatten().double().numpy()
    sets = _sets(subject)
    each = max(1, min(points.shape[1] ** subject.t, GRID_POINTS // len(sets)))
    rows = []
    for groups in sets:
        every = points.shape[1] ** subject.t
        chosen = np.arange(every) if every <= each else subject.numbers.integers(0, every, each)
        x = np.repeat(image[None], len(chosen), 0)
        for number, group in enumerate(groups):
            digit = chosen // points.shape[1] ** number % points.shape[1]
            x[:, members[group]] = points[group, digit]
        rows.append(x)
    return np.concatenate(rows)


def _on_grid(subject: Subject, grid: Grid) -> Target | None:
    scores = _scores(subject, subject.net, torch.float32)
    x = _grid_points(subject, grid)
    label = _pick_label(subject, scores, x)
    if label is None:
        return None
    margins = _margins(scores(x), label)
    worst = x[int(margins.argmin())]
    at = scores(worst[None])
    room = float(_margins(scores(subject.image.flatten().double().numpy()[None]), label)[0] - margins.min())
    depth = Decimal(min(subject.numbers.choice(GRID_DEPTHS) * float(np.abs(at).max()), room / 3))
    net = subject.net
    with real_arithmetic():
        for _ in range(TRIES):  # other biases are rounded otherwise
            margin = float(_margins(_scores(subject, net, torch.float32)(worst[None]), label)[0])
            if margin < 0 and net is not subject.net:
                break
            net = biased(net, label, -Decimal(margin) - depth)
    after = _scores(subject, net, torch.float32)
    margins = _margins(after(x), label)
    size = float(np.abs(after(worst[None])).max())
    near = [number for number in margins.argsort()[:FLIPS] if margins[number] < 1e-4 * size]
    flips = [_flip(subject, x[n], float(margins[n])) for n in near if groups_of(subject, x[n])]
    return Target(net, label, tuple(flips)) if flips else None
