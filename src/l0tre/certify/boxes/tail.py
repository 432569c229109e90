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
from l0tre.certify.boxes.margin_errors import ERRORS
from l0tre.certify.boxes.rounding import ELEMENT, PRODUCT, total
from l0tre.certify.relax.crown import carry
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval, magnitude
from l0tre.certify.relax.plan import UNIT, Plan, terms
from l0tre.certify.relax.relaxation import Relaxation, relax
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear
from l0tre.model.graph import run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Linear, Selection

__all__ = ["MarginErrors", "Tail", "lower_margins", "make_margin_errors", "make_tail", "products"]

SHARE = 0.5  # of the cost of the forms that the way back may have
COLUMNS = 3  # of forms, at least
NAMED = 128  # errors that become variables, at the most,
NAMED_SHARE = 1 / 16  # and of the cost of the forms that the layers after may have for them
CURVE_PRODUCTS = 32  # take as long as what is done for one output of an operation that is not linear


@dataclass(frozen=True)
class Tail:
    """The last layers of a network.

    Attributes:
        start: The operation where rows meet forms.
        end: The operation whose values the margins' rows read: the last one, or if that is linear what it reads.
        needed: Operations whose forms are needed: both, and what operations in between read that are not linear.
        terms: How many products lie on the way between the scores and the start.
        named: For dense layers in between that others follow, how many errors of their inputs become variables, see
            ``forward_forms.name_errors``.
    """

    start: int
    end: int
    needed: frozenset[int]
    terms: float
    named: Mapping[int, int]


@dataclass(frozen=True)
class MarginErrors:
    """What is off by the image's own values as they were computed, ``[images, rivals]``.

    Attributes:
        own: The margins themselves.
        back: The lines that rows take on their way back through the tail.
    """

    own: Tensor
    back: Tensor


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
    kept = {*plan.bounded, *(p for p, o in enumerate(operations) if is_nonlinear(o) or o.kind == "linear")}
    for place in reversed(only_connections(plan)):
        if first <= place <= end and place in kept and rivals * sum(costs[place + 1 : end + 1]) <= most:
            start = place
    between = range(start + 1, end + 1)
    needed = {source for place in between if is_nonlinear(operations[place]) for source in operations[place].inputs}
    length = 64.0 + sum(terms(operations[place], plan.graph) for place in range(start + 1, last + 1))
    return Tail(start, end, frozenset({start, end, *needed}), length, _named(plan, start, end, COLUMNS * sum(costs)))


def _named(plan: Plan, start: int, end: int, cost: float) -> dict[int, int]:
    """The first dense layer of a tail that another one follows, and how many variables are affordable after it."""
    operations, connections = plan.graph.operations, set(only_connections(plan))
    dense = [place for place in range(start + 1, end + 1) if operations[place].kind == "linear"]
    for place in dense[:-1]:
        after = range(place + 1, end + 1)
        alone = place in connections and len(operations[operations[place].inputs[0]].shape) == 1
        if alone and not any(isinstance(KINDS[operations[later].kind], Selection) for later in after):
            affordable = int(NAMED_SHARE * cost / sum(products(plan, later) for later in after))
            return {place: min(NAMED, affordable)} if affordable else {}
    return {}


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


def make_margin_errors(forward: Forward, instance: Instance, tail: Tail, drift: Mapping[int, Tensor]) -> MarginErrors:
    """What drifts of the images' own values do to margins, see ``rounding.drifts``."""
    operations, last = forward.plan.graph.operations, len(forward.plan.graph.operations) - 1
    signs, scores = instance.rows.abs(), instance.base[last].flatten(1)
    own = torch.einsum("brs,bs->br", signs, drift[last].flatten(1) + ELEMENT * scores.abs())
    # A line is drawn through the image's own value: where that is off, so is all that the row takes from it.
    off = {tail.start: torch.zeros(len(scores), *operations[tail.start].shape, device=scores.device).double()}
    for place in range(tail.start + 1, last + 1):
        operation = operations[place]
        inputs = [off[source] for source in operation.inputs if source in off]
        if len(inputs) < len(operation.inputs):
            continue
        if not is_nonlinear(operation):
            off[place] = run_operation(absolute(operation), *inputs)
            continue
        here, curve = inputs[0] + drift[operation.inputs[0]], curve_bounds(operation)
        if curve is None:
            off[place] = run_operation(operation, here) + drift[place]
        else:
            off[place] = max(map(abs, curve.slopes(operation))) * here + drift[place]
    back = own + (1 + ELEMENT) * torch.einsum("brs,bs->br", signs, off[last].flatten(1))
    return MarginErrors(own, back)


def lower_margins(
    forward: Forward,
    instance: Instance,
    tail: Tail,
    drift: Mapping[int, Tensor],
    errors: MarginErrors,
    image: Tensor,
    forms: Mapping[int, Forms],
) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins of boxes, rounding taken off.

    Args:
        forward: The network.
        instance: The images.
        tail: The last layers.
        drift: How far the images' own values are off, see ``rounding.drifts``.
        errors: What that does to margins.
        image: int64 ``[batch]``, the image of each box.
        forms: Those that the tail needs.

    Returns:
        The bounds ``[batch, rivals]``, and the coefficients of each ``u`` in linear lower bounds that give them,
        ``[batch, rivals, variables]``.
    """
    rows = margin_rows(instance)
    own = instance.margins[image]
    linear, error, size = _by_rows(rows, _row_sizes(instance), image, forms[tail.end])
    reach = total(linear[..., 1:], 2) + error
    slopes = linear[..., 1 : forms[tail.start].linear.shape[1]]  # those after it are named errors
    off = PRODUCT * (8.0 + rows.shape[2]) * size + ELEMENT * (own.abs() + linear[..., 0].abs() + reach)
    bounds = own + linear[..., 0] - reach - off - errors.own[image]
    if tail.start == tail.end:
        return bounds, slopes
    # Rivals that are proved already need no way back.
    left = ~(bounds > 0)
    box = left.any(1).nonzero()[:, 0]
    if not len(box):
        return bounds, slopes
    rival = (~left[box]).byte().argsort(stable=True, dim=1)[:, : int(left.sum(1).max())]
    better, found = _backwards(forward, instance, tail, drift, image, forms, rows, box, rival)
    better -= errors.back[image[box]].gather(1, rival)
    # NaN is no better bound.
    gain = better > bounds[box].gather(1, rival)
    box, rival = box[:, None].expand_as(rival)[gain], rival[gain]
    bounds[box, rival], slopes[box, rival] = better[gain], found[gain]
    return bounds, slopes


def _backwards(
    forward: Forward,
    instance: Instance,
    tail: Tail,
    drift: Mapping[int, Tensor],
    image: Tensor,
    forms: Mapping[int, Forms],
    rows: Tensor,
    box: Tensor,
    rival: Tensor,
) -> tuple[Tensor, Tensor]:
    """Bounds of some rivals of some boxes, and their coefficients, by rows carried back to the tail's start.

    Args:
        forward: See :func:`lower_margins`.
        instance: Likewise.
        tail: Likewise.
        drift: Likewise.
        image: Likewise.
        forms: Likewise.
        rows: The margins' rows, ``[images, rivals, values]``.
        box: int64 ``[boxes]``, which boxes.
        rival: int64 ``[boxes, some]``, which rivals of each.
    """
    which = image[box]

    spans = {
        place: ranges(forms[place].pick(box), instance.base[place][which], drift[place][which])
        for place in tail.needed
        if place in instance.base
    }

    def lines(position: int) -> Relaxation:
        operation = forward.plan.graph.operations[position]
        source = operation.inputs[0]
        return relax(operation, *spans[source], instance.base[source][which], instance.base[position][which])

    back = carry(forward.plan, tail.end, rows[which[:, None], rival], lines, stop=tail.start)
    there = forms[tail.start].pick(box)
    found = torch.bmm(back.coefficients, there.linear.flatten(2).transpose(1, 2))
    away = torch.bmm(back.coefficients.abs(), there.error.flatten(1)[:, :, None])[..., 0]
    own = instance.margins[which].gather(1, rival)
    coefficients = found[..., 1:]
    off = _sizes(forward, instance, tail, which, spans).gather(1, rival) * (ERRORS * UNIT * tail.terms)
    return own + back.constant + found[..., 0] - coefficients.abs().sum(2) - away - off, coefficients


def _sizes(forward: Forward, instance: Instance, tail: Tail, which: Tensor, spans: Mapping[int, Interval]) -> Tensor:
    """The largest sums of absolute values that rows can meet on their way back, for each margin ``[boxes, rivals]``.

    What rounding does is a small multiple of them. They are those of the boxes, not of the whole domain.
    """
    operations = forward.plan.graph.operations
    values: dict[int, Tensor] = {}
    for place in range(tail.start, len(operations)):
        operation = operations[place]
        inputs = [values[source] for source in operation.inputs if source in values]
        if place > tail.start and len(inputs) < len(operation.inputs):
            continue
        span = torch.maximum(spans[place][0].abs(), spans[place][1].abs()) if place in spans else None
        if place == tail.start:
            assert span is not None
            own = instance.base[place][which].abs()
            values[place] = 2 * (span + own)  # its form reaches as far from the image's own value
        else:
            found = magnitude(operation, inputs)
            values[place] = found if span is None else torch.maximum(found, span)
    return torch.einsum("brs,bs->br", instance.rows.abs()[which], values[len(operations) - 1].flatten(1))


def _row_sizes(instance: Instance) -> Tensor:
    """Absolute values of what the margins' rows are differences of, ``[images, rivals, values]``."""
    last = instance.plan.graph.operations[-1]
    return instance.rows.abs() @ last.tensors["weight"].abs() if last.kind == "linear" else instance.rows.abs()


def _by_rows(rows: Tensor, sizes: Tensor, image: Tensor, forms: Forms) -> tuple[Tensor, Tensor, Tensor]:
    """Forms of the margins ``[batch, rivals, columns]``, their errors and sums of sizes ``[batch, rivals]``."""
    linear, error = forms.linear.flatten(2), forms.error.flatten(1)[:, None]
    most = linear.abs().sum(1, keepdim=True) + error
    factors = (rows, rows.abs(), sizes)
    if len(rows) == 1 or len(image) == 1:
        which = int(image[0]) if len(image) else 0
        products = [part @ factor[which].T for part, factor in zip((linear, error, most), factors, strict=True)]
    else:
        groups = in_groups(image, len(rows))
        products = [
            torch.bmm(part[groups.slots].flatten(1, 2), factor[image[groups.first]].transpose(1, 2)).view(
                -1, part.shape[1], factor.shape[1]
            )[groups.where]
            for part, factor in zip((linear, error, most), factors, strict=True)
        ]
    return products[0].transpose(1, 2), products[1][:, 0], products[2][:, 0]
