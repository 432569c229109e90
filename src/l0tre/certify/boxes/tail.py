"""Margins from forms: rows carried back through the last layers, over the ranges that the forms give them (CROWN).

Forwards, errors grow by the absolute weights of every layer. Backwards, one row goes through the product of the layers,
where much cancels. So the margins' rows are carried back to where that is still cheap, and meet the forms there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forms, Forward, ranges
from l0tre.certify.boxes.grouped_products import in_groups
from l0tre.certify.boxes.joints import only_connections
from l0tre.certify.boxes.margin_errors import ERRORS, margin_errors
from l0tre.certify.relax.crown import carry
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.relaxation import Relaxation, relax
from l0tre.certify.relax.supported import is_nonlinear
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Linear

__all__ = ["Tail", "lower_margins", "make_tail", "products"]

SHARE = 0.5  # of the cost of the forms that the way back may have
COLUMNS = 3  # of forms, at least
CURVE_PRODUCTS = 32  # take as long as what is done for one output of an operation that is not linear


@dataclass(frozen=True)
class Tail:
    """The last layers of a network.

    Attributes:
        start: The operation where rows meet forms.
        end: The operation whose values the margins' rows read: the last one, or if that is linear what it reads.
        needed: Operations whose forms are needed: both, and what operations in between read that are not linear.
    """

    start: int
    end: int
    needed: frozenset[int]


def make_tail(plan: Plan, rivals: int) -> Tail:
    """Choose how far back rows are carried.

    Args:
        plan: The network.
        rivals: Number of rows for each box, at the most.
    """
    operations = plan.graph.operations
    last = len(operations) - 1
    end = operations[last].inputs[0] if operations[last].kind == "linear" else last
    costs = [0.0] + [products(plan, place) for place in range(1, last + 1)]
    start, most = end, SHARE * COLUMNS * sum(costs)
    first = max(plan.receptive_fields, default=0)  # where neurons see windows, forms can stay in windows too
    for place in reversed(only_connections(plan)):
        if first <= place <= end and rivals * sum(costs[place + 1 : end + 1]) <= most:
            start = place
    between = range(start + 1, end + 1)
    needed = {source for place in between if is_nonlinear(operations[place]) for source in operations[place].inputs}
    return Tail(start, end, frozenset({start, end, *needed}))


def products(plan: Plan, place: int) -> float:
    """How many products an operation sums up, or what takes as long."""
    operation = plan.graph.operations[place]
    kind, size = KINDS[operation.kind], math.prod(operation.shape)
    shapes = [plan.graph.operations[source].shape for source in operation.inputs]
    return size * (kind.terms(operation, shapes) if isinstance(kind, Linear) else CURVE_PRODUCTS)


def margin_rows(instance: Instance) -> Tensor:
    """The margins as rows of what the tail ends with, ``[images, rivals, values]``."""
    last = instance.plan.graph.operations[-1]
    return instance.rows @ last.tensors["weight"] if last.kind == "linear" else instance.rows


def lower_margins(
    forward: Forward, instance: Instance, tail: Tail, image: Tensor, forms: Mapping[int, Forms], t: int
) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins of boxes.

    Args:
        forward: The network.
        instance: The images.
        tail: The last layers.
        image: int64 ``[batch]``, the image of each box.
        forms: Those that the tail needs.
        t: Number of groups that change together.

    Returns:
        The bounds ``[batch, rivals]``, and the coefficients of each ``u`` in linear lower bounds that give them,
        ``[batch, rivals, variables]``.
    """
    rows = margin_rows(instance)
    own = instance.margins[image]
    linear, error = _by_rows(rows, image, forms[tail.end])
    slopes = linear[..., 1:]
    bounds = own + linear[..., 0] - slopes.abs().sum(2) - error
    if tail.start == tail.end:
        return bounds, slopes
    # Rivals that are proved already need no way back.
    left = ~(bounds > margin_errors(instance, image, t))
    box = left.any(1).nonzero()[:, 0]
    if not len(box):
        return bounds, slopes
    rival = (~left[box]).byte().argsort(stable=True, dim=1)[:, : int(left.sum(1).max())]
    better, found = _backwards(forward, instance, tail, image, forms, t, rows, box, rival)
    # NaN is no better bound.
    gain = better > bounds[box].gather(1, rival)
    box, rival = box[:, None].expand_as(rival)[gain], rival[gain]
    bounds[box, rival], slopes[box, rival] = better[gain], found[gain]
    return bounds, slopes


def _backwards(
    forward: Forward,
    instance: Instance,
    tail: Tail,
    image: Tensor,
    forms: Mapping[int, Forms],
    t: int,
    rows: Tensor,
    box: Tensor,
    rival: Tensor,
) -> tuple[Tensor, Tensor]:
    """Bounds of some rivals of some boxes, and their coefficients, by rows carried back to the tail's start.

    Args:
        forward: See :func:`lower_margins`.
        instance: Likewise.
        tail: Likewise.
        image: Likewise.
        forms: Likewise.
        t: Likewise.
        rows: The margins' rows, ``[images, rivals, values]``.
        box: int64 ``[boxes]``, which boxes.
        rival: int64 ``[boxes, some]``, which rivals of each.
    """
    which = image[box]

    def lines(position: int) -> Relaxation:
        operation = forward.plan.graph.operations[position]
        source = operation.inputs[0]
        before, after = instance.base[source][which], instance.base[position][which]
        slack = ERRORS * (t + 1) * forward.plan.slack[source]
        return relax(operation, *ranges(forms[source].pick(box), before, slack), before, after)

    back = carry(forward.plan, tail.end, rows[which[:, None], rival], lines, stop=tail.start)
    there = forms[tail.start].pick(box)
    found = torch.bmm(back.coefficients, there.linear.flatten(2).transpose(1, 2))
    away = torch.bmm(back.coefficients.abs(), there.error.flatten(1)[:, :, None])[..., 0]
    own = instance.margins[which].gather(1, rival)
    coefficients = found[..., 1:]
    return own + back.constant + found[..., 0] - coefficients.abs().sum(2) - away, coefficients


def _by_rows(rows: Tensor, image: Tensor, forms: Forms) -> tuple[Tensor, Tensor]:
    """Forms of the margins ``[batch, rivals, columns]`` and their errors ``[batch, rivals]``."""
    linear, error = forms.linear.flatten(2), forms.error.flatten(1)[:, None]
    if len(rows) == 1 or len(image) == 1:
        factor = rows[image[0]].T if len(image) else rows[0].T
        return (linear @ factor).transpose(1, 2), (error @ factor.abs())[:, 0]
    groups, columns = in_groups(image, len(rows)), linear.shape[1]
    factor = rows[image[groups.first]].transpose(1, 2)
    both = [
        torch.bmm(part[groups.slots].flatten(1, 2), matrix).view(-1, part.shape[1], matrix.shape[2])[groups.where]
        for part, matrix in ((linear, factor), (error, factor.abs()))
    ]
    assert both[0].shape[1] == columns
    return both[0].transpose(1, 2), both[1][:, 0]
