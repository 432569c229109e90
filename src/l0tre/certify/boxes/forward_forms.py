"""Affine forms carried forwards through any graph: every value as a linear form of the few that change, and an error.

A changed value is ``middle + half * u`` with ``u`` from -1 to 1. The difference of a neuron to the image's own value is
``linear(u)``, give or take ``error``. A linear operation maps the forms by its weights and the errors by their absolute
values; any other one is enclosed between two parallel lines. So a box costs about as many forward passes as values
change, and two more, however deep the network is, and the error falls with the square of the box's sides.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.certify.boxes.rounding import ELEMENT, TINY, sum_unit, total
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear, plain
from l0tre.model.graph import Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Selection

__all__ = [
    "Forms",
    "Forward",
    "Own",
    "add",
    "bend",
    "carry",
    "item_bytes",
    "make_forward",
    "name_errors",
    "ranges",
    "rounded",
    "select",
]


@dataclass(frozen=True)
class Forms:
    """Enclosures of differences to the image's own values.

    Attributes:
        linear: float64 ``[batch, 1 + variables, *shape]``: the constants, then the coefficients of each ``u``.
        error: float64 ``[batch, *shape]``, at least 0.
    """

    linear: Tensor
    error: Tensor

    def radius(self) -> Tensor:
        """How far a value can be from its constant, ``[batch, *shape]``."""
        return total(self.linear[:, 1:], 1) + self.error

    def pick(self, rows: Tensor | slice) -> "Forms":
        """Some entries of the batch."""
        return Forms(self.linear[rows], self.error[rows])


@dataclass(frozen=True)
class Forward:
    """A network ready for forms.

    Attributes:
        plan: The network.
        plain: Its operations on differences, without constants.
        positive: Its operations with the absolute values of their weights.
        last_use: The last operation that reads each one.
        units: What rounding adds to a linear operation's outputs, see ``rounding.sum_unit``; 0 for any other.
        pace: Seconds that the last first pass of each level took for an image.
    """

    plan: Plan
    plain: tuple[Operation, ...]
    positive: tuple[Operation, ...]
    last_use: tuple[int, ...]
    units: tuple[float, ...]
    pace: dict[int, float] = field(default_factory=dict, repr=False)


def make_forward(plan: Plan) -> Forward:
    """Prepare a network."""
    operations = plan.graph.operations
    return Forward(
        plan,
        tuple(plain(operation) for operation in operations),
        tuple(absolute(operation) for operation in operations),
        plan.graph.last_use(),
        tuple(
            0.0 if not place or is_nonlinear(operation) else sum_unit(plan, place)
            for place, operation in enumerate(operations)
        ),
    )


def add(parts: Sequence[Forms]) -> Forms:
    """The sum of forms of different variables, in order."""
    constants = torch.stack([part.linear[:, 0] for part in parts])
    linear = torch.cat([constants.sum(0)[:, None], *(part.linear[:, 1:] for part in parts)], 1)
    error = torch.stack([part.error for part in parts]).sum(0)
    return Forms(linear, error + ELEMENT * (error + constants.abs().sum(0)))


@dataclass(frozen=True)
class Own:
    """The image's own values around an operation that is not linear, ``[batch, *shape]`` each.

    Attributes:
        before: Its inputs, as computed.
        after: Its outputs, as computed.
        before_off: How far its inputs can be from the true ones, see ``rounding.drifts``.
        after_off: How far its outputs can be.
    """

    before: Tensor
    after: Tensor
    before_off: Tensor
    after_off: Tensor


def rounded(forms: Forms, unit: float) -> Tensor:
    """The error of forms with what a linear operation's sums can be off by: its absolute weights carry both on."""
    return forms.error + _rounding(forms, unit)


def _rounding(forms: Forms, unit: float) -> Tensor:
    return unit * (forms.linear.abs().sum(1) + forms.error)


def ranges(forms: Forms, before: Tensor, off: Tensor) -> Interval:
    """Smallest and largest values ``[batch, *shape]``, rounding included.

    Args:
        forms: Differences.
        before: The image's own values ``[batch, *shape]``, finite.
        off: How far they can be from the true ones.
    """
    centre, radius = before + forms.linear[:, 0], forms.radius() + off
    radius = radius + ELEMENT * (before.abs() + forms.linear[:, 0].abs() + radius)
    return centre - radius, centre + radius


def bend(operation: Operation, forms: Forms, own: Own) -> Forms:
    """Go through an elementwise operation, between two parallel lines.

    Args:
        operation: One that ``supported.curve_bounds`` knows.
        forms: Its input.
        own: The image's own values.

    Returns:
        Its output.
    """
    curve = curve_bounds(operation)
    assert curve is not None
    low, high = ranges(forms, own.before, own.before_off)
    slope, below, above = curve.parallel(operation, low, high)
    gap, steep = (above - below) / 2, slope.abs()
    # Where errors are large, a constant encloses the curve more closely than any line: they need not be carried on.
    least, most = curve.interval(operation, low, high)
    flat = (most - least) / 2 < gap + forms.error * steep
    slope, steep = slope.masked_fill(flat, 0.0), steep.masked_fill(flat, 0.0)
    middle, gap = torch.where(flat, (least + most) / 2, (below + above) / 2), torch.where(flat, (most - least) / 2, gap)
    linear = forms.linear * slope[:, None]
    linear[:, 0] += slope * own.before + middle - own.after
    furthest = torch.maximum(low.abs(), high.abs())
    sizes = curve.magnitude(operation, furthest) + steep * furthest + own.after.abs()
    error = (forms.error + own.before_off) * steep + gap + own.after_off + ELEMENT * sizes
    return Forms(linear, error + ELEMENT * (error + linear[:, 0].abs()))


def select(operation: Operation, forms: Forms, own: Own) -> Forms:
    """Go through a max pool: a form between the inputs that are the largest, and what any input exceeds it by.

    Args:
        operation: One whose outputs are one of their inputs each.
        forms: See :func:`bend`.
        own: Likewise, of maps; inputs outside of a map are minus infinity.
    """
    kind = KINDS[operation.kind]
    assert isinstance(kind, Selection)
    places = kind.places(operation, own.before.shape[2], own.before.shape[3], own.before.device)
    missing, index = places < 0, places.clamp(min=0)

    def tiles(maps: Tensor) -> Tensor:
        return maps.flatten(-2)[..., index]  # [..., kernel, outputs]

    shift, inner = forms.linear[:, 0], own.before.masked_fill(own.before.isinf(), 0.0).abs()
    centre, slopes = tiles(own.before + shift), tiles(forms.linear[:, 1:])
    error = forms.error + own.before_off
    error = tiles(error + ELEMENT * (inner + shift.abs() + forms.linear[:, 1:].abs().sum(1) + error))
    lowest = (centre - slopes.abs().sum(1) - error).masked_fill_(missing, -math.inf)
    best = lowest.argmax(2, keepdim=True)

    def over(line: Tensor, line_slopes: Tensor) -> Tensor:
        """By how much each input can exceed a line."""
        more = (centre - line) + (slopes - line_slopes).abs_().sum(1) + error
        return more.masked_fill_(missing, -math.inf)

    def pick(which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        index = which[:, None].expand(-1, slopes.shape[1], -1, -1, -1)
        return centre.gather(2, which), slopes.gather(3, index), error.gather(2, which)

    chosen, own_slopes, spread = pick(best)
    # The larger one of two is a ReLU of their difference: the line lies between the chosen input and its strongest
    # rival, and what any input exceeds it by is the error.
    most, rival = over(chosen, own_slopes).scatter_(2, best, -math.inf).max(2, keepdim=True)
    other, other_slopes, other_spread = pick(rival)
    apart, reach = other - chosen, (other_slopes - own_slopes).abs().sum(1) + spread + other_spread
    share = ((apart + reach) / (2 * reach)).clamp(0.0, 1.0)
    met = (most > 0) & torch.isfinite(apart) & torch.isfinite(reach)  # else there is none, or it is never the larger
    share, apart = torch.where(met, share, 0.0), torch.where(met, apart, 0.0)
    line, line_slopes = chosen + share * apart, own_slopes + share[:, None] * (other_slopes - own_slopes)
    spread = (spread + share * (other_spread - spread))[:, :, 0]
    above = over(line, line_slopes).amax(2)
    shape = forms.linear.shape[:2]
    after, own_slopes = own.after.flatten(2), line_slopes[:, :, :, 0]
    constant = line[:, :, 0] - after + (above - spread) / 2
    error = (above + spread) / 2 + own.after_off.flatten(2)
    error = error + ELEMENT * (error + constant.abs() + after.abs() + own_slopes.abs().sum(1))
    linear = torch.cat([constant[:, None], own_slopes], 1)
    size = operation.shape
    return Forms(linear.reshape(*shape, *size), error.reshape(shape[0], *size))


def carry(
    forward: Forward,
    instance: Instance,
    drift: Mapping[int, Tensor],
    image: Tensor,
    start: int,
    forms: Forms,
    keep: Set[int],
    named: Mapping[int, int] | None = None,
) -> dict[int, Forms]:
    """Carry forms from one operation to others after it.

    Args:
        forward: The network.
        instance: The images.
        drift: How far their own values are off, see ``rounding.drifts``.
        image: int64 ``[batch]``, the image of each entry.
        start: Where the forms are known; the only connection between what is before and after it.
        forms: There.
        keep: Operations whose forms are wanted.
        named: For some dense layers, how many errors of their inputs become variables, see :func:`name_errors`.

    Returns:
        The forms by operation; after a dense layer that names errors they have these as further variables.
    """
    operations, plan = forward.plan.graph.operations, forward.plan
    values, found = {start: forms}, {}
    if start in keep:
        found[start] = forms
    for place in range(start + 1, max(keep) + 1):
        operation = operations[place]
        sources = [values[source] for source in operation.inputs if source in values]
        if len(sources) < len(operation.inputs):
            continue  # it does not lie after it
        if is_nonlinear(operation):
            values[place] = _through(instance, drift, image, place, sources[0])
        elif named and place in named:
            values[place] = name_errors(forward, place, sources[0], named[place])
        else:
            values[place] = Forms(
                _run(forward.plain[place], [part.linear.flatten(0, 1) for part in sources], sources[0].linear),
                run_operation(forward.positive[place], *(rounded(part, forward.units[place]) for part in sources))
                + TINY,
            )
        if place in keep:
            found[place] = values[place]
        for source in {*operation.inputs, place}:
            if forward.last_use[source] <= place and source in values and place < len(plan.graph.operations) - 1:
                del values[source]
        instance.pulse()
    return found


def name_errors(forward: Forward, place: int, forms: Forms, count: int) -> Forms:
    """Go through a dense layer, the largest errors of its inputs as variables of their own.

    An error is some number from -1 to 1 times its size, which all neurons after it share: layers further on can then
    let it cancel. Its coefficients are a column of the weights, so this costs next to nothing here.

    Args:
        forward: The network.
        place: Position of the dense layer.
        forms: Its inputs.
        count: How many errors become variables, at the most.

    Returns:
        Its outputs, with so many variables more.
    """
    weight = forward.plan.graph.operations[place].tensors["weight"]
    largest = forms.error.topk(min(count, forms.error.shape[1]), 1)
    # What rounding adds stays an error, that of the named ones too.
    rest = forms.error.scatter(1, largest.indices, 0.0) + _rounding(forms, forward.units[place])
    columns = weight.T.contiguous()[largest.indices].mul_(largest.values[:, :, None])
    linear = _run(forward.plain[place], [forms.linear.flatten(0, 1)], forms.linear)
    return Forms(torch.cat([linear, columns], 1), run_operation(forward.positive[place], rest) + TINY)


def _run(operation: Operation, inputs: Sequence[Tensor], like: Tensor) -> Tensor:
    result = run_operation(operation, *inputs)
    return result.view(*like.shape[:2], *result.shape[1:])


def _through(instance: Instance, drift: Mapping[int, Tensor], image: Tensor, place: int, forms: Forms) -> Forms:
    """One operation that is not linear."""
    operation = instance.plan.graph.operations[place]
    source, base = operation.inputs[0], instance.base
    own = Own(base[source][image], base[place][image], drift[source][image], drift[place][image])
    return (bend if curve_bounds(operation) is not None else select)(operation, forms, own)


def item_bytes(forward: Forward, columns: int, first: int, last: int, named: Mapping[int, int] | None = None) -> int:
    """Memory that one entry takes on its way between two operations, about; for ``named`` see :func:`carry`."""
    most, counts = 0, named or {}
    for place in range(first, last + 1):
        columns += counts.get(place, 0)
        most = max(most, math.prod(forward.plan.graph.operations[place].shape) * (5 * columns + 10))
    return 8 * most
