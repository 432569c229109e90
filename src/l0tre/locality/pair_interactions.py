"""The interaction of two groups, carried by itself from one operation to the next.

Beside what either group does alone, the two together leave a rest, which is not zero only where their windows meet. A
linear operation maps rests to rests. After any other one the rest is ``f(x + a + b + r) - f(x + a) - f(x + b) +
f(x)``, with ``a`` and ``b`` what each does alone. So nothing outside the common window is ever computed.

:func:`carry_rest` is this for everybody. What stands for a rest differs: its value at grid points
(:func:`carry_interactions`), affine forms of it over a box of values (``certify/boxes/pair_forms.py``), or only its
largest size (``certify/boxes/interaction_sizes.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from l0tre.locality.local_part import LocalPlan, bends_in_place, need, overlap, selects, spans
from l0tre.locality.windows import Base, Box, Sites, carry_linear, inside, patches, shifted, window_values
from l0tre.model.graph import Operation, run_operation

__all__ = ["Alone", "carry_interactions", "carry_rest", "is_chain", "meeting_sites", "reaches"]

Rest = TypeVar("Rest")


@dataclass(frozen=True)
class Alone:
    """What each of two groups does alone.

    Attributes:
        kept: Operations where that is known: the start, and every linear one that another kind reads.
        fetch: Gives it for a group (0 or 1), one of these operations and a box there,
            ``[images, sites, points, C, rows, columns]``; zero outside the group's window.
    """

    kept: frozenset[int]
    fetch: Callable[[int, int, Box], Tensor]


def is_chain(plan: LocalPlan) -> bool:
    """Whether every operation up to the cut reads the one before it, so that there is one rest at a time."""
    return all(operation.inputs == (place,) for place, operation in enumerate(plan.graph.operations[1 : plan.cut + 1]))


def reaches(plan: LocalPlan, start: int, box: Box) -> tuple[Box, ...]:
    """What a box at an operation reaches at this operation and every later one up to the cut."""
    rows, columns = (spans(plan.graph, plan.cut, span, axis, start) for axis, span in enumerate(box))
    return tuple(zip(rows, columns, strict=True))


def meeting_sites(plan: LocalPlan, start: int, boxes: tuple[Box, Box], steps: Tensor) -> Sites:
    """Where the windows of two groups meet from an operation on."""
    first, second = (reaches(plan, start, box) for box in boxes)
    rows, columns = (
        {start + place: overlap(a[axis], b[axis]) for place, (a, b) in enumerate(zip(first, second, strict=True))}
        for axis in (0, 1)
    )
    return Sites(steps, rows, columns)


def carry_rest(
    plan: LocalPlan,
    meets: Callable[[int], Box],
    start: int,
    linear: Callable[[int, Rest], Rest],
    bend: Callable[[int, Rest | None], Rest],
) -> Rest | None:
    """Carry what two changes leave beside what either does alone, in whatever stands for it.

    Args:
        plan: The local part, a chain.
        meets: Where the windows of both meet at an operation.
        start: An operation at which the two changes still add up.
        linear: The rest after a linear operation, from the one before it.
        bend: The rest after any other operation, from the one before it if there is one.

    Returns:
        The rest at the cut; ``None`` if there is none.
    """
    rest: Rest | None = None
    for place in range(start + 1, plan.cut + 1):
        if not all(span.size for span in meets(place)):
            rest = None
        elif bends_in_place(plan.graph.operations[place]):
            rest = bend(place, rest)
        elif rest is not None:
            rest = linear(place, rest)
    return rest


def carry_interactions(plan: LocalPlan, base: Base, sites: Sites, start: int, alone: Alone) -> Tensor | None:
    """Carry the rests of pairs to the cut, at all points of a grid.

    Args:
        plan: The local part, a chain.
        base: The unchanged images.
        sites: Where the pairs are, and where their windows meet from ``start`` on.
        start: An operation at which the two changes still add up.
        alone: What each of the two does alone, see :class:`Alone`.

    Returns:
        The rest at the cut, ``[images, sites, points ** 2, C, rows, columns]``, the first group's points varying
        slowest; ``None`` if there is none.
    """

    def linear(place: int, rest: Tensor) -> Tensor:
        return carry_linear(plan, sites, place, plan.graph.operations[place], rest)

    def bend(place: int, rest: Tensor | None) -> Tensor:
        if rest is not None:
            base.rests.see(plan.bends[place], rest)
        return _bend(plan, base.maps, sites, place, alone, rest)

    return carry_rest(plan, sites.box, start, linear, bend)


def _bend(
    plan: LocalPlan, maps: Sequence[Tensor], sites: Sites, place: int, alone: Alone, rest: Tensor | None
) -> Tensor:
    """The rest after an operation that is not linear."""
    operation = plan.graph.operations[place]
    wanted, before = _before(plan, maps, sites, place, sites.box(place))
    first, second = (_alone(plan, maps, sites, place - 1, alone, side, wanted) for side in (0, 1))
    own = before[:, :, None]
    both = first[:, :, :, None] + (second + own)[:, :, None]
    if rest is not None:
        both += shifted(rest, sites.box(place - 1), wanted).view(both.shape)
    total = _apply(operation, both.flatten(2, 3))
    shape = total.shape
    total = total.view(*both.shape[:4], *shape[3:])
    total -= _apply(operation, first + own)[:, :, :, None]
    total -= (_apply(operation, second + own) - _apply(operation, own))[:, :, None]
    # Where a whole patch lies outside the map, infinity minus infinity.
    return inside(total.view(shape), plan, sites, place)


def _alone(
    plan: LocalPlan, maps: Sequence[Tensor], sites: Sites, place: int, alone: Alone, side: int, box: Box
) -> Tensor:
    """What one of the two does alone, also at operations where that is not kept: from the operation before."""
    if place in alone.kept:
        return alone.fetch(side, place, box)
    operation = plan.graph.operations[place]
    wanted, before = _before(plan, maps, sites, place, box)
    own = before[:, :, None]
    change = _alone(plan, maps, sites, place - 1, alone, side, wanted)
    return inside(_apply(operation, change + own) - _apply(operation, own), plan, sites, place, box)


def _before(plan: LocalPlan, maps: Sequence[Tensor], sites: Sites, place: int, box: Box) -> tuple[Box, Tensor]:
    """What an operation reads for a box of its output: where, and the images' own values there."""
    operation = plan.graph.operations[place]
    wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
    fill = float("-inf") if selects(operation) else 0.0
    return wanted, window_values(maps[place - 1], plan, sites, place - 1, wanted, fill)


def _apply(operation: Operation, value: Tensor) -> Tensor:
    return patches(operation, value) if selects(operation) else run_operation(operation, value)
