"""What a case is about: a random network, a domain, an input in it, and which guarantee is put to the test."""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuzz.ideas import IDEAS
from fuzz.net import Draft, Net, Shape
from fuzz.truth import Normalisation
from l0tre.domain import Domain, make_domain
from l0tre.layout import channel_axis

__all__ = ["GUARANTEES", "SOURCES", "Subject", "make_subject"]

SOURCES = ("module", "onnx", "onnx_export", "pt2", "pt2_core")
SHARES = (4, 5, 3, 3, 2)  # of the cases; core operators take long to get
GUARANTEES = ("certified", "grid", "lipschitz")
IMAGES: tuple[Shape, ...] = ((1, 4, 4), (2, 3, 3), (1, 3, 3), (3, 2, 2), (1, 2, 5), (1, 5, 5))
PICTURES: tuple[Shape, ...] = ((1, 5, 5), (1, 6, 6), (1, 4, 5), (2, 4, 4))
LAYOUTS: tuple[Shape, ...] = ((3, 4), (2, 3), (5, 2, 1), (5, 2, 3))
RANGES = ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (-1.0, 1.5), (-50.0, 50.0), (900.0, 1100.0), (0.499, 0.501))
MOST_VALUES = 64  # of a layer that another idea follows
MOST_SETS = 1000  # of groups that change together
TRIES = 5


@dataclass(frozen=True)
class Subject:
    """A case before its calibration.

    Attributes:
        seed: Decides everything.
        ideas: Keys of ``IDEAS``, in the order of the network.
        source: One of ``SOURCES``.
        guarantee: One of ``GUARANTEES``.
        net: The network, without normalisation.
        normalisation: What comes before it, given to ``l0tre.load``.
        domain: What may change.
        image: float32 ``domain.shape``, in the domain.
        t: Number of groups that change in the flip.
        hints: Inputs to look at, as positions and values.
        numbers: Further chance.
    """

    seed: int
    ideas: tuple[str, ...]
    source: str
    guarantee: str
    net: Net
    normalisation: Normalisation | None
    domain: Domain
    image: Tensor
    t: int
    hints: tuple[dict[int, float], ...]
    numbers: np.random.Generator


def make_subject(seed: int, only: Collection[str] = ()) -> Subject:
    """The subject of a seed.

    Args:
        seed: Consecutive ones go through all ideas.
        only: An idea, a kind of source, a guarantee that are wanted; any where none is given.

    Returns:
        The subject.
    """
    draw = random.Random(seed)
    numbers = np.random.default_rng(draw.getrandbits(64))
    first = _wanted(only, IDEAS, list(IDEAS)[seed % len(IDEAS)])
    source = _wanted(only, SOURCES, draw.choices(SOURCES, SHARES)[0])
    guarantee = draw.choices(GUARANTEES, (6, 3, 2))[0]
    if not IDEAS[first].bounded and draw.random() < 0.6:
        guarantee = "grid"
    guarantee = _wanted(only, GUARANTEES, guarantee)
    if guarantee == "lipschitz" and draw.random() < 0.3:
        first = _wanted(only, IDEAS, "spot")  # where margins are smallest between the points of a grid
    shape, (low, high) = _shape(draw, first), draw.choice(RANGES)
    domain = _domain(draw, numbers, shape, low, high)
    normalisation = None if first == "spot" else _normalisation(draw, shape, low, high)
    inner = (low, high) if normalisation is None else (0.0, 1.0)
    room = {place: (float(domain.low[place]), float(domain.high[place])) for place in domain.members.flatten().tolist()}
    draft = Draft(shape, draw, *inner, room, onnx=source.startswith("onnx"))
    ideas = _write_body(draft, first)
    net = _finish(draft)
    fits = [t for t in (1, 2, 3, 4) if t <= domain.groups and math.comb(domain.groups, t) <= MOST_SETS]
    most = 2 if guarantee == "lipschitz" else 4
    t = min(draw.choices(fits, (6, 6, 2, 1)[: len(fits)])[0], most)
    for hint in draft.hints:
        t = max(t, min(len(hint), fits[-1], most))
    image = _inside(draw, numbers, domain)
    return Subject(seed, ideas, source, guarantee, net, normalisation, domain, image, t, tuple(draft.hints), numbers)


def _wanted(only: Collection[str], names: Collection[str], own: str) -> str:
    """The one of some names that was asked for, else the one drawn."""
    return next((name for name in only if name in names), own)


def _shape(draw: random.Random, first: str) -> Shape:
    if first in ("layout", "picture", "deep_picture"):
        return draw.choice(LAYOUTS if first == "layout" else PICTURES)
    needs = IDEAS[first].needs
    if needs == "image" or (needs == "any" and draw.random() < 0.5):
        return draw.choice(IMAGES)
    return (draw.randint(1 if draw.random() < 0.3 else 3, 8),)


def _write_body(draft: Draft, first: str) -> tuple[str, ...]:
    """The first idea and up to two others, each as drawn until something of the input is left behind it."""
    ideas = [first]
    _write(draft, first)
    for _ in range(0 if IDEAS[first].alone else draft.draw.choice([0, 1, 1, 2])):
        form = "image" if len(draft.shape) == 3 else "vector" if len(draft.shape) == 1 else "any"
        fits = [name for name, idea in IDEAS.items() if idea.needs in (form, "any") and idea.bounded and not idea.first]
        if math.prod(draft.shape) > MOST_VALUES:
            break
        ideas.append(draft.draw.choice(fits))
        _write(draft, ideas[-1])
    return tuple(ideas)


def _write(draft: Draft, idea: str) -> None:
    mark = draft.mark()
    for _ in range(TRIES):
        draft.back(mark)
        IDEAS[idea].write(draft)
        if draft.alive():
            return


def _finish(draft: Draft) -> Net:
    """The dense layer that gives the scores, and sometimes a softmax."""
    draw, size = draft.draw, math.prod(draft.shape)
    if len(draft.shape) > 1:
        draft.add("reshape", how="flatten", shape=(size,))
    classes = draw.choice([2, 3, 3, 4])
    weight = draft.normal(classes, size, size=2 / math.sqrt(size))
    if draw.random() < 0.25:  # a few values decide, so that a sample of groups can miss them
        weight[:, draft.numbers.random(size) > 1.5 / size] = 0
    if not weight.any():
        weight[0, draw.randrange(size)] = 1
    constants = {"weight": weight, "bias": draft.normal(classes)}
    head = draft.add("linear", constants=constants, how="linear", alpha=1.0, beta=1.0)
    rest = {"value": np.zeros(classes, np.float32)}
    fine = tuple(draft.add("shift", constants=rest, alpha=1.0) for _ in range(draw.choice([0, 1, 2, 2])))
    end = draw.choice(["", "", "", "softmax", "log_softmax"])
    if end:
        draft.add(end, dim=0)
    return Net(tuple(draft.ops), head, fine)


def _normalisation(draw: random.Random, shape: Shape, low: float, high: float) -> Normalisation | None:
    if draw.random() < 0.6:
        return None
    axis = 0 if len(shape) == 1 else channel_axis(shape)
    count = 1 if axis is None or draw.random() < 0.5 else shape[axis]
    form = () if count == 1 else (-1, *[1] * (len(shape) - 1 - (axis or 0)))
    mean, std = (
        np.array([draw.uniform(*ends) for _ in range(count)], np.float32).reshape(form)
        for ends in ((low, high), (0.2 * (high - low), high - low))
    )
    return Normalisation(mean, std)


def _domain(draw: random.Random, numbers: np.random.Generator, shape: Shape, low: float, high: float) -> Domain:
    """Ranges, groups and a mask."""
    lows: float | Tensor = low
    highs: float | Tensor = high
    if draw.random() < 0.3:
        ends = torch.from_numpy(np.sort(numbers.uniform(low, high, (2, *shape)), 0)).float()
        lows, highs = ends[0], ends[1] + (high - low) * 0.1
    mask = torch.from_numpy(numbers.random(shape) < (0.7 if draw.random() < 0.2 else 2.0))
    mask.view(-1)[0] = True
    if draw.random() < 0.15:
        groups = torch.from_numpy(numbers.integers(-1, 4, shape))
        groups.view(-1)[0] = 0
        return make_domain(shape, groups=groups, mask=mask, low=lows, high=highs)
    if len(shape) > 1 and draw.random() < 0.15:
        return make_domain(shape, groups="feature", mask=mask, low=lows, high=highs)
    return make_domain(shape, mask=mask, low=lows, high=highs)


def _inside(draw: random.Random, numbers: np.random.Generator, domain: Domain) -> Tensor:
    """An input in the domain: anywhere, on its boundary, or partly so."""
    share = torch.from_numpy(numbers.random(len(domain.low))).float()
    ends = torch.from_numpy(numbers.random(len(domain.low)) < draw.choice([0.0, 0.0, 0.5, 1.0]))
    flat = domain.low + torch.where(ends, share.round(), share) * (domain.high - domain.low)
    return torch.minimum(torch.maximum(flat, domain.low), domain.high).reshape(domain.shape)
