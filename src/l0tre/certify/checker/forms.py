"""Linear bounds of differences from the image, carried forwards: one step of every kind, and whole maps.

A changed value is ``middle + half * u`` with ``u`` from -1 to 1. The difference of every value of the network from
that at the image lies between two linear forms of all ``u``, a lower and an upper one; column 0 is the constant. A
linear operation maps their middle by its weights and half of their distance by its absolute weights; any other turns
them by its two lines over the range that they leave.

Rounding: what a step can be off by moves the constants of its forms outwards (``round_off``), so that in real
arithmetic the forms that were computed enclose. The image's own values, where a line begins, are off by their drift.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.checker.forward import Forward
from l0tre.certify.checker.lines import make_lines
from l0tre.certify.checker.margins import LINEAR, curve_interval
from l0tre.certify.checker.round_off import ELEMENT, TINY, mass
from l0tre.model.graph import Operation, run_operation

__all__ = ["Ends", "Forms", "bend", "ends_of", "least_margins", "linear", "loosened", "ranges_of", "through"]

Ends = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Forms:
    """Bounds of differences from the image.

    Attributes:
        lower: float64 ``[batch, 1 + variables, *shape]``.
        upper: Likewise.
        low: float64 ``[batch, *shape]``, a number that the difference is nowhere below, maybe better than the forms.
        high: Likewise above.
    """

    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor


def least_margins(forward: Forward, found: Mapping[int, Forms]) -> Tensor:
    """The least margins ``[batch]`` from forms of the margins' changes, round-off taken off; NaN stays."""
    values = found[len(forward.plain) - 1]
    margins = values.low + forward.own_least - ELEMENT * (values.low.abs() + forward.own.abs())
    finite = torch.isfinite(values.low).all(1) & torch.isfinite(values.high).all(1)
    return margins.amin(1).where(finite, math.nan)


def ends_of(lower: Tensor, upper: Tensor) -> Ends:
    """The least and the largest values of forms over the box, moved outwards by the rounding of their sums."""
    least, most = lower[:, 0] - lower[:, 1:].abs().sum(1), upper[:, 0] + upper[:, 1:].abs().sum(1)
    room = ELEMENT * mass(lower, upper)[:, 0]
    return least - room, most + room


def loosened(lower: Tensor, upper: Tensor) -> Ends:
    """Forms with room for the rounding of a few additions of them."""
    return _moved(lower, upper, ELEMENT * mass(lower, upper)[:, 0])


def _moved(lower: Tensor, upper: Tensor, room: Tensor) -> Ends:
    lower, upper = lower.clone(), upper.clone()
    lower[:, 0] -= room
    upper[:, 0] += room
    return lower, upper


def linear(sources: list[Ends], plain: Callable[..., Tensor], positive: Callable[..., Tensor], unit: float) -> Ends:
    """A linear operation: the middle by its weights, half of the distance by its absolute weights.

    Args:
        sources: Forms of its inputs.
        plain: The operation.
        positive: With absolute weights.
        unit: See ``product_unit``; sums of absolute products go through as one more column.
    """
    middle = plain(*((lower + upper) / 2 for lower, upper in sources))
    half = positive(*(torch.cat([(upper - lower) / 2, mass(lower, upper)], 1) for lower, upper in sources))
    half, products = half[:, :-1], half[:, -1]
    return _moved(middle - half, middle + half, unit * products + TINY) if unit else (middle - half, middle + half)


def ranges_of(ends: Ends, before: Tensor, most: Tensor, drift: Tensor) -> Ends:
    """The range of an operation's input, moved outwards by what rounding can cause."""
    # Minus infinity pads a max pool, and has no rounding.
    size = torch.maximum(ends[0].abs(), ends[1].abs()) + before.abs().where(before.isfinite(), 0.0)
    room = drift + ELEMENT * size
    low, high = before + ends[0] - room, before + ends[1] + room
    # NaN must not be replaced by a limit.
    return torch.where(low < -most, -most, low), torch.where(high > most, most, high)


@dataclass(frozen=True)
class Bend:
    """An operation that is not linear, in a batch.

    Attributes:
        low: The least values of its input, ``[batch, *shape]``.
        high: The largest.
        before: The image's own values of its input, likewise or for the whole batch.
        drift: How far these can be off.
        after: The image's own values of its output.
        moved: How far these can be off.
    """

    low: Tensor
    high: Tensor
    before: Tensor
    drift: Tensor
    after: Tensor
    moved: Tensor


def bend(operation: Operation, at: Bend, forms: Ends) -> Ends:
    """Forms after the two lines of an operation; all but the columns are flattened."""
    lines = make_lines(operation, at.low, at.high)
    lower, upper = (x.flatten(2) for x in forms)
    largest = torch.maximum(at.low.abs(), at.high.abs())
    own, drift, largest = (x.flatten(1).expand(len(lower), -1) for x in (at.before, at.drift, largest))
    if lines.index is not None:
        own, drift, largest = (x.gather(1, lines.index) for x in (own, drift, largest))
        index = lines.index[:, None].expand(-1, lower.shape[1], -1)
        lower, upper = lower.gather(2, index), upper.gather(2, index)
    (below, shift_below), (above, shift_above) = lines.lower, lines.upper
    after, moved = at.after.flatten(1), at.moved.flatten(1)
    steep, size = below.abs() + above.abs(), shift_below.abs() + shift_above.abs() + after.abs()
    size = size + steep * (mass(lower, upper)[:, 0] + own.abs() + largest)
    room = steep * drift + moved + ELEMENT * size
    ends = []
    for slope, shift, side, (same, other) in (
        (below, shift_below, -1, (lower, upper)),
        (above, shift_above, 1, (upper, lower)),
    ):
        result = same * slope.clamp(min=0)[:, None]
        if bool((slope < 0).any()):
            result = result + other * slope.clamp(max=0)[:, None]
        result[:, 0] += slope * own + shift - after + side * room
        ends.append(result)
    return ends[0], ends[1]


def through(forward: Forward, values: dict[int, Forms], wanted: Collection[int] = ()) -> dict[int, Forms]:
    """Carry forms of whole maps on.

    Args:
        forward: The network and the image.
        values: What is known so far, by position; used up.
        wanted: Where to; the margins for none.

    Returns:
        By position.
    """
    operations = forward.plain
    targets = set(wanted) or {len(operations) - 1}
    needed = set(targets)
    for position in range(len(operations) - 1, 0, -1):
        if position in needed and position not in values:
            needed.update(operations[position].inputs)
    for position in sorted(needed - set(values)):
        operation = operations[position]
        if position in forward.local.reach:
            continue
        sources = [values[source] for source in operation.inputs]
        kind = _whole_linear if operation.kind in LINEAR else _whole_bent
        values[position] = kind(forward, operation, position, sources)
        later = {s for p in needed if p > position for s in operations[p].inputs} | targets
        for source in set(values) - later:
            del values[source]
    return {position: values[position] for position in targets}


def _whole_linear(forward: Forward, operation: Operation, position: int, sources: list[Forms]) -> Forms:
    def runner(kind: Operation) -> Callable[..., Tensor]:
        def run(*inputs: Tensor) -> Tensor:
            found = run_operation(kind, *(x.flatten(0, 1) for x in inputs))
            return found.view(*inputs[0].shape[:2], *found.shape[1:])

        return run

    plain, positive, unit = runner(operation), runner(forward.positive[position]), forward.units[position]
    lower, upper = linear([(s.lower, s.upper) for s in sources], plain, positive, unit)
    low, high = linear([(s.low[:, None], s.high[:, None]) for s in sources], plain, positive, unit)
    least, most = ends_of(lower, upper)
    return Forms(lower, upper, torch.maximum(low[:, 0], least), torch.minimum(high[:, 0], most))


def _whole_bent(forward: Forward, operation: Operation, position: int, sources: list[Forms]) -> Forms:
    (source,), (forms,) = operation.inputs, sources
    shape = forward.plain[source].shape
    before, most, drift = (kind[:-1].view(1, *shape) for kind in forward.tables(source))
    after, moved = forward.bounder.own[position][None], forward.drift[position][None]
    low, high = ranges_of((forms.low, forms.high), before, most, drift)
    lower, upper = bend(operation, Bend(low, high, before, drift, after, moved), (forms.lower, forms.upper))
    first, last = curve_interval(operation, low, high)
    lower, upper = (x.view(*x.shape[:2], *operation.shape) for x in (lower, upper))
    size = first.abs() + last.abs() + after.abs()
    if operation.kind != "max_pool":
        size = size + torch.maximum(low.abs(), high.abs())
    room = moved + ELEMENT * size
    least, most = ends_of(lower, upper)
    return Forms(lower, upper, torch.maximum(first - after - room, least), torch.minimum(last - after + room, most))
