"""Methods by their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from l0tre.attacks.greedy import exact, greedy
from l0tre.attacks.linear import linear
from l0tre.attacks.local_search import local
from l0tre.attacks.meter import Meter
from l0tre.attacks.random_search import search
from l0tre.attacks.rank import rank
from l0tre.attacks.revalue import shrink
from l0tre.attacks.saliency import saliency
from l0tre.attacks.task import AttackTask, Worker

__all__ = ["AUTO", "METHODS", "Method", "usable"]

Start = Callable[[Meter, AttackTask, torch.Generator], Worker]


@dataclass(frozen=True)
class Method:
    """One way to find smaller adversarial inputs.

    Attributes:
        start: From meter, task and chance to the method at work on its images.
        gradients: Whether the network must be differentiable.
        between: Whether it also gives values between the ends of their ranges.
        divisible: Whether a small part of a budget is as useful to it as the same part of a large one.
        description: One line for people.
    """

    start: Start
    gradients: bool
    between: bool
    divisible: bool
    description: str

    def run(self, meter: Meter, task: AttackTask, best: Tensor, limit: Tensor, generator: torch.Generator) -> Tensor:
        """Start and work once."""
        return self.start(meter, task, generator)(best, limit)


def _plain(run: Callable[[Meter, AttackTask, Tensor, Tensor], Tensor]) -> Start:
    """A method that begins anew each time and needs no chance."""
    return lambda meter, task, _: lambda best, limit: run(meter, task, best, limit)


def _random(run: Callable[[Meter, AttackTask, Tensor, Tensor, torch.Generator], Tensor]) -> Start:
    """A method that begins anew each time."""
    return lambda meter, task, generator: lambda best, limit: run(meter, task, best, limit, generator)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "greedy": Method(
            _plain(greedy), False, False, False, "the paper's: rank singles and pairs, accumulate, tighten"
        ),
        "linear": Method(
            _random(linear), True, False, False, "the fewest groups that linear models say suffice, averaged"
        ),
        "saliency": Method(
            _plain(saliency), True, True, True, "descent on a smooth count of changes (sigma-zero's idea)"
        ),
        "local": Method(
            local, True, False, True, "add, swap and drop groups towards every near class, led by gradients"
        ),
        "rank": Method(rank, False, False, False, "all single groups, from the original and for two others"),
        "values": Method(
            _plain(shrink), True, True, True, "fewer groups with other values, also between the ends of their ranges"
        ),
        "search": Method(_random(search), False, False, True, "random exchanges without gradients (Sparse-RS's idea)"),
        "exact": Method(_plain(exact), False, False, False, "all single groups, then all pairs, at the ends"),
    }
)
AUTO = ("local", "rank", "exact", "saliency", "values", "search")


def usable(method: str, gradients: bool, *, ends_only: bool = False) -> tuple[str, ...]:
    """The methods behind a name.

    Args:
        method: A key of :data:`METHODS`, or ``auto``.
        gradients: Whether the network is differentiable.
        ends_only: Leave out methods that give values between the ends of their ranges.

    Returns:
        Keys; none if the method needs gradients and there are none.
    """
    names = AUTO if method == "auto" else (method,)
    return tuple(
        name
        for name in names
        if (gradients or not METHODS[name].gradients) and not (ends_only and METHODS[name].between)
    )
