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

from l0tre.certify.boxes.margin_errors import ERRORS
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear, plain
from l0tre.model.graph import Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Selection

__all__ = ["Forms", "Forward", "add", "bend", "carry", "item_bytes", "known", "make_forward", "ranges", "select"]

# Forms may be larger than the values that they enclose: up to so many times what the plan reckons with, for each group
# and one more. A box with larger ones is not proved.
LARGEST = 8.0


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
        return self.linear[:, 1:].abs().sum(1) + self.error

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
        pace: Seconds that the last first pass of each level took for an image.
    """

    plan: Plan
    plain: tuple[Operation, ...]
    positive: tuple[Operation, ...]
    last_use: tuple[int, ...]
    pace: dict[int, float] = field(default_factory=dict, repr=False)


def make_forward(plan: Plan) -> Forward:
    """Prepare a network."""
    operations = plan.graph.operations
    return Forward(
        plan,
        tuple(plain(operation) for operation in operations),
        tuple(absolute(operation) for operation in operations),
        plan.graph.last_use(),
    )


def add(parts: Sequence[Forms]) -> Forms:
    """The sum of forms of different variables, in order."""
    constant = torch.stack([part.linear[:, 0] for part in parts]).sum(0)[:, None]
    linear = torch.cat([constant, *(part.linear[:, 1:] for part in parts)], 1)
    return Forms(linear, torch.stack([part.error for part in parts]).sum(0))


def ranges(forms: Forms, before: Tensor, slack: Tensor | float) -> Interval:
    """Smallest and largest values ``[batch, *shape]``.

    Args:
        forms: Differences.
        before: The image's own values ``[batch, *shape]``.
        slack: The largest error that rounding can cause.
    """
    centre, radius = before + forms.linear[:, 0], forms.radius() + slack
    return centre - radius, centre + radius


def bend(operation: Operation, forms: Forms, before: Tensor, after: Tensor, slack: Tensor | float) -> Forms:
    """Go through an elementwise operation, between two parallel lines.

    Args:
        operation: One that ``supported.curve_bounds`` knows.
        forms: Its input.
        before: The image's own inputs ``[batch, *shape]``.
        after: The image's own outputs.
        slack: The largest error that rounding can cause in the inputs.

    Returns:
        Its output.
    """
    curve = curve_bounds(operation)
    assert curve is not None
    slope, below, above = curve.parallel(operation, *ranges(forms, before, slack))
    linear = forms.linear * slope[:, None]
    linear[:, 0] += slope * before + (below + above) / 2 - after
    return Forms(linear, forms.error * slope.abs() + (above - below) / 2)


def select(operation: Operation, forms: Forms, before: Tensor, after: Tensor, slack: Tensor | float) -> Forms:
    """Go through a max pool: the form of the input that is the largest for the most part, and what others exceed it by.

    Args:
        operation: One whose outputs are one of their inputs each.
        forms: See :func:`bend`.
        before: Likewise, ``[batch, C, H, W]``.
        after: Likewise.
        slack: Likewise.
    """
    kind = KINDS[operation.kind]
    assert isinstance(kind, Selection)
    places = kind.places(operation, before.shape[2], before.shape[3], before.device)
    missing, index = places < 0, places.clamp(min=0)

    def tiles(maps: Tensor) -> Tensor:
        return maps.flatten(-2)[..., index]  # [..., kernel, outputs]

    centre, slopes = tiles(before + forms.linear[:, 0]), tiles(forms.linear[:, 1:])
    error = tiles(forms.error + slack)
    lowest = (centre - slopes.abs().sum(1) - error).masked_fill_(missing, -math.inf)
    best = lowest.argmax(2, keepdim=True)
    own, spread = centre.gather(2, best), error.gather(2, best)
    own_slopes = slopes.gather(3, best[:, None].expand(-1, slopes.shape[1], -1, -1, -1))
    over = (centre - own) + (slopes - own_slopes).abs_().sum(1) + error
    over = over.masked_fill_(missing, -math.inf).scatter_(2, best, spread).amax(2)
    spread = spread[:, :, 0]
    shape = forms.linear.shape[:2]
    constant = own[:, :, 0] - after.flatten(2) + (over - spread) / 2
    linear = torch.cat([constant[:, None], own_slopes[:, :, :, 0]], 1)
    size = operation.shape
    return Forms(linear.reshape(*shape, *size), ((over + spread) / 2).reshape(shape[0], *size))


def carry(
    forward: Forward, instance: Instance, image: Tensor, start: int, forms: Forms, keep: Set[int], t: int
) -> dict[int, Forms]:
    """Carry forms from one operation to others behind it.

    Args:
        forward: The network.
        instance: The images.
        image: int64 ``[batch]``, the image of each entry.
        start: Where the forms are known; the only connection between what is before and behind it.
        forms: There.
        keep: Operations whose forms are wanted.
        t: Number of groups that change together.

    Returns:
        The forms by operation.
    """
    operations, plan = forward.plan.graph.operations, forward.plan
    values, found = {start: forms}, {}
    if start in keep:
        found[start] = forms
    for place in range(start + 1, max(keep) + 1):
        operation = operations[place]
        sources = [values[source] for source in operation.inputs if source in values]
        if len(sources) < len(operation.inputs):
            continue  # it does not lie behind
        values[place] = (
            _through(forward, instance, image, place, sources[0], t)
            if is_nonlinear(operation)
            else Forms(
                _run(forward.plain[place], [part.linear.flatten(0, 1) for part in sources], sources[0].linear),
                run_operation(forward.positive[place], *(part.error for part in sources)),
            )
        )
        if place in keep:
            found[place] = values[place]
        for source in {*operation.inputs, place}:
            if forward.last_use[source] <= place and source in values and place < len(plan.graph.operations) - 1:
                del values[source]
        instance.pulse()
    return found


def _run(operation: Operation, inputs: Sequence[Tensor], like: Tensor) -> Tensor:
    result = run_operation(operation, *inputs)
    return result.view(*like.shape[:2], *result.shape[1:])


def _through(forward: Forward, instance: Instance, image: Tensor, place: int, forms: Forms, t: int) -> Forms:
    """One operation that is not linear."""
    plan = forward.plan
    operation = plan.graph.operations[place]
    source = operation.inputs[0]
    before, after = instance.base[source][image], instance.base[place][image]
    slack = ERRORS * (t + 1) * plan.slack[source]
    enclose = bend if curve_bounds(operation) is not None else select
    return known(enclose(operation, forms, before, after, slack), plan.magnitudes[place], t)


def known(forms: Forms, magnitudes: Tensor, t: int) -> Forms:
    """Forms whose rounding errors are known: those are reckoned from the sizes of values.

    Args:
        forms: Any.
        magnitudes: See ``Plan.magnitudes``, broadcast against the forms' errors.
        t: Number of groups that change together.

    Returns:
        The same, with an error without an end where they are too large, or no number.
    """
    within = forms.linear[:, 0].abs() + forms.radius() <= LARGEST * (t + 1) * magnitudes
    return Forms(forms.linear, torch.where(within, forms.error, math.inf))


def item_bytes(forward: Forward, columns: int, first: int, last: int) -> int:
    """Memory that one entry takes on its way between two operations, about."""
    shapes: Mapping[int, int] = {
        place: math.prod(forward.plan.graph.operations[place].shape) for place in range(first, last + 1)
    }
    return 8 * max(shapes.values()) * (5 * columns + 10)
