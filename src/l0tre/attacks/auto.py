"""Methods by their names, and the schedule that runs them one after the other under one budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from l0tre.attacks.greedy import exact, greedy
from l0tre.attacks.local_search import local
from l0tre.attacks.meter import Meter
from l0tre.attacks.random_search import search
from l0tre.attacks.revalue import shrink
from l0tre.attacks.saliency import saliency
from l0tre.attacks.task import Task

__all__ = ["METHODS", "Method", "Stage", "schedule"]

Run = Callable[[Meter, Task, Tensor, Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Method:
    """One way to find smaller adversarial inputs.

    Attributes:
        run: From meter, task, best inputs so far, queries at which each image stops, and chance to better inputs.
        gradients: Whether the network must be differentiable.
        between: Whether it also gives values between the ends of their ranges.
        description: One line for people.
    """

    run: Run
    gradients: bool
    between: bool
    description: str


@dataclass(frozen=True)
class Stage:
    """A method in its turn.

    Attributes:
        method: A key of :data:`METHODS`.
        share: Of what is left of an image's budget, from 0 to 1.
        least: Queries below which the method is of little use; it may take them, up to half of what is left.
        floor: Images with so many changed groups or fewer are left to later stages.
        ceiling: Images with more changed groups are left alone; 0 for no such limit. Where no adversarial input is
            known, gradients have failed, and methods without them try all the same.
    """

    method: str
    share: float
    least: int = 0
    floor: int = 0
    ceiling: int = 0


def _plain(run: Callable[[Meter, Task, Tensor, Tensor], Tensor]) -> Run:
    return lambda meter, task, best, limit, _: run(meter, task, best, limit)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "greedy": Method(_plain(greedy), False, False, "the paper's: rank singles and pairs, accumulate, tighten"),
        "saliency": Method(_plain(saliency), True, True, "descent on a smooth count of changes (sigma-zero's idea)"),
        "local": Method(local, True, False, "add, swap and drop groups towards every near class, led by gradients"),
        "values": Method(_plain(shrink), True, True, "fewer groups with other values, also between the ends"),
        "search": Method(search, False, False, "random exchanges without gradients (Sparse-RS's idea)"),
        "exact": Method(_plain(exact), False, False, "all single groups, then all pairs, at the ends of their ranges"),
    }
)

# What auto runs. A quarter goes to other ideas than the local search: where gradients mislead, only they help. Trying
# all single groups is a safer way from two changed groups to one than looking for the right one.
WITH_GRADIENTS = (
    Stage("saliency", 0.1, least=200),
    Stage("local", 0.85, floor=2),
    Stage("exact", 0.9, ceiling=3),
    Stage("local", 0.85, ceiling=2),
    Stage("values", 0.4),
    Stage("search", 1.0),
)
WITHOUT_GRADIENTS = (Stage("search", 0.3), Stage("greedy", 0.8), Stage("search", 0.9), Stage("exact", 1.0))


def schedule(method: str, gradients: bool, *, ends_only: bool = False) -> tuple[Stage, ...]:
    """The stages behind a method's name.

    Args:
        method: A key of :data:`METHODS`, or ``auto``.
        gradients: Whether the network is differentiable.
        ends_only: Leave out methods that give values between the ends of their ranges.

    Returns:
        Stages, in order; none if the method needs gradients and there are none.
    """
    stages = (WITH_GRADIENTS if gradients else WITHOUT_GRADIENTS) if method == "auto" else (Stage(method, 1.0),)
    methods = [METHODS[stage.method] for stage in stages]
    usable = [(gradients or not m.gradients) and not (ends_only and m.between) for m in methods]
    return tuple(stage for stage, can in zip(stages, usable, strict=True) if can)
