"""Linear bounds of differences from the image, carried forwards: one step of every kind, and whole maps.

A changed value is ``middle + half * u`` with ``u`` from -1 to 1. The difference of every value of the network from
that at the image lies between two linear forms of all ``u``, a lower and an upper one; column 0 is the constant. A
linear operation maps their middle by its weights and half of their distance by its absolute weights; any other turns
them by its two lines over the range that they leave.

Rounding: by induction over the operations, for the larger of both forms' absolute values in every column, the sum over
the columns never exceeds ``terms`` of ``margins`` (times the number of parts where parts are added): ranges are cut at
``limit``, so the lines' slopes and gaps are within what ``terms`` allows for. So ``slack`` times that number bounds the
errors here too.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.checker.forward import Forward
from l0tre.certify.checker.lines import Relaxation, make_lines
from l0tre.certify.checker.margins import LINEAR, curve_interval
from l0tre.model.graph import Operation, run_operation

__all__ = ["Ends", "Forms", "bend", "ends_of", "least_margins", "linear", "ranges_of", "through"]

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
    margins = values.low + forward.own - forward.slack(-1)
    finite = torch.isfinite(values.low).all(1) & torch.isfinite(values.high).all(1)
    return margins.amin(1).where(finite, math.nan)


def ends_of(lower: Tensor, upper: Tensor) -> Ends:
    """The least and the largest values of forms over the box."""
    return lower[:, 0] - lower[:, 1:].abs().sum(1), upper[:, 0] + upper[:, 1:].abs().sum(1)


def linear(sources: list[Ends], plain: Callable[..., Tensor], positive: Callable[..., Tensor]) -> Ends:
    """A linear operation: the middle by its weights, half of the distance by its absolute weights."""
    middle = plain(*((lower + upper) / 2 for lower, upper in sources))
    half = positive(*((upper - lower) / 2 for lower, upper in sources))
    return middle - half, middle + half


def ranges_of(ends: Ends, before: Tensor, most: Tensor, slack: Tensor) -> Ends:
    """The range of an operation's input, moved outwards by what rounding can cause."""
    low, high = before + ends[0] - slack, before + ends[1] + slack
    # NaN must not be replaced by a limit.
    return torch.where(low < -most, -most, low), torch.where(high > most, most, high)


def bend(lines: Relaxation, forms: Ends, before: Tensor, after: Tensor) -> Ends:
    """Forms after two lines; all but the columns are flattened."""
    lower, upper = (x.flatten(2) for x in forms)
    own = before.flatten(1).expand(len(lower), -1)
    if lines.index is not None:
        own = own.gather(1, lines.index)
        index = lines.index[:, None].expand(-1, lower.shape[1], -1)
        lower, upper = lower.gather(2, index), upper.gather(2, index)
    (below, shift_below), (above, shift_above) = lines.lower, lines.upper
    ends = []
    for slope, shift, (same, other) in ((below, shift_below, (lower, upper)), (above, shift_above, (upper, lower))):
        result = same * slope.clamp(min=0)[:, None]
        if bool((slope < 0).any()):
            result = result + other * slope.clamp(max=0)[:, None]
        result[:, 0] += slope * own + shift - after.flatten(1)
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

    plain, positive = runner(operation), runner(forward.positive[position])
    lower, upper = linear([(s.lower, s.upper) for s in sources], plain, positive)
    low, high = linear([(s.low[:, None], s.high[:, None]) for s in sources], plain, positive)
    least, most = ends_of(lower, upper)
    return Forms(lower, upper, torch.maximum(low[:, 0], least), torch.minimum(high[:, 0], most))


def _whole_bent(forward: Forward, operation: Operation, position: int, sources: list[Forms]) -> Forms:
    (source,), (forms,) = operation.inputs, sources
    shape = forward.plain[source].shape
    before, most, slack = (kind[:-1].view(1, *shape) for kind in forward.tables(source))
    after = forward.bounder.own[position][None]
    low, high = ranges_of((forms.low, forms.high), before, most, slack)
    lower, upper = bend(make_lines(operation, low, high), (forms.lower, forms.upper), before, after)
    first, last = curve_interval(operation, low, high)
    lower, upper = (x.view(*x.shape[:2], *operation.shape) for x in (lower, upper))
    room = forward.slack(position)
    least, most = ends_of(lower, upper)
    return Forms(lower, upper, torch.maximum(first - after - room, least), torch.minimum(last - after + room, most))
