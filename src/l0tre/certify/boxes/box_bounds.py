"""Margins of box nodes from the clusters of their pixels.

Two pixels that no neuron before the dense layer sees together do not disturb each other there: what they do to that
layer adds up. So the pixels of a node fall into clusters, each is carried alone through its own small window, and the
forms are added after the windows.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from l0tre.certify.boxes.affine_forms import AffineForms, least
from l0tre.certify.boxes.head import form_ranges, interval_margins, margin_bytes, margin_forms
from l0tre.certify.boxes.window_forms import Items, carry, item_bytes
from l0tre.certify.boxes.windowed import Windowed, can_interact
from l0tre.certify.regions.nodes import BoxNodes

__all__ = ["box_items", "carry_items", "lower_bounds", "lower_forms"]


def lower_forms(windowed: Windowed, nodes: BoxNodes) -> Tensor:
    """Linear lower bounds of the margins of box nodes.

    Args:
        windowed: Network and images.
        nodes: Box nodes.

    Returns:
        float64 ``[nodes, classes - 1, 1 + t * width]``, constants first, as forms of the box's ``u`` from -1 to 1.
    """
    return _in_parts(windowed, nodes, lambda image, forms: (margin_forms(windowed, image, forms),))[0]


def lower_bounds(windowed: Windowed, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins ``[nodes, classes - 1]``, the best of all ways, and :func:`lower_forms`."""

    def bounds(image: Tensor, forms: AffineForms) -> tuple[Tensor, ...]:
        lower = margin_forms(windowed, image, forms)
        found = least(lower)
        if not windowed.local.flat:
            found = torch.maximum(found, interval_margins(windowed, image, form_ranges(forms)))
        return found, lower

    found, lower = _in_parts(windowed, nodes, bounds)
    return found, lower


def _in_parts(
    windowed: Windowed, nodes: BoxNodes, work: Callable[[Tensor, AffineForms], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Do some work on the forms of the dense layer after the windows, as many boxes at a time as the budget allows."""
    total = _heads(windowed, nodes)
    most = max(1, windowed.budget // margin_bytes(windowed, total.shape[2]))
    parts = [
        work(nodes.image[start : start + most], AffineForms(*total[:, start : start + most]))
        for start in range(0, max(1, len(nodes)), most)  # no nodes have bounds too: an empty table
    ]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _heads(windowed: Windowed, nodes: BoxNodes) -> Tensor:
    """Centres and radii of the dense layer's forms, ``[2, nodes, 1 + t * width, features]``."""
    items = box_items(windowed, nodes)
    t, width = items.members.shape[1:]
    features = windowed.weights.shape[-1]
    total = windowed.instance.images.new_zeros(2, len(nodes), 1 + t * width, features)
    for subset, rows in _clusters(windowed, items):
        part = items.pick(rows)
        chosen = list(subset)
        forms = carry_items(
            windowed, Items(part.image, part.members[:, chosen], part.low[:, chosen], part.high[:, chosen])
        )
        columns = [0, *(1 + place * width + value for place in subset for value in range(width))]
        for side, found in enumerate((forms.centre, forms.radius)):
            for column, wanted in enumerate(columns):
                total[side, rows, wanted] += found[:, column]
    return total


def box_items(windowed: Windowed, nodes: BoxNodes) -> Items:
    """Box nodes as items, all their pixels together."""
    members = windowed.instance.members[nodes.cells - windowed.instance.tree.slots]
    return Items(nodes.image, members, nodes.low, nodes.high)


def _clusters(windowed: Windowed, items: Items) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Sets of places that are clusters of some items, with the numbers of these items."""
    t = items.members.shape[1]
    _, height, width = windowed.local.plan.graph.input_shape
    pixel = items.members[:, :, 0] % (height * width)
    joined = can_interact(windowed.local, pixel[:, :, None], pixel[:, None])
    for _ in range(t.bit_length()):  # neighbours of neighbours
        joined = (joined[:, :, :, None] & joined[:, None]).any(2)
    for size in range(1, t + 1):
        for subset in itertools.combinations(range(t), size):
            wanted = torch.tensor([place in subset for place in range(t)], device=pixel.device)
            rows = (joined[:, subset[0]] == wanted).all(1).nonzero()[:, 0]
            if len(rows):
                yield subset, rows


def carry_items(windowed: Windowed, items: Items) -> AffineForms:
    """Carry items of any sizes and phases to the dense layer, as many at a time as the budget allows."""
    local, instance = windowed.local, windowed.instance
    _, height, width = local.plan.graph.input_shape
    plane = items.members[:, :, 0] % (height * width)
    y, x = plane // width, plane % width
    stride = local.plan.stride
    corner = [part.amin(1) for part in (y, x)]
    extent = [part.amax(1) - part.amin(1) + 1 for part in (y, x)]
    keys = torch.stack([*(part % stride for part in corner), *extent], 1)
    shapes, group = keys.unique(dim=0, return_inverse=True)
    order, variables = group.argsort(), items.members[0].numel()
    stops = group.bincount().cumsum(0).tolist()
    shape = (len(items), 1 + variables, windowed.weights.shape[-1])
    centre, radius = (instance.images.new_empty(shape) for _ in range(2))
    start = 0
    for key, stop in zip(shapes.tolist(), stops, strict=True):
        most = max(1, windowed.budget // item_bytes(local, variables, (key[2], key[3])))
        for begin in range(start, stop, most):
            instance.pulse()
            rows = order[begin : min(begin + most, stop)]
            found = carry(local, instance, items.pick(rows), (windowed.kinds, windowed.weights))
            centre[rows], radius[rows] = found.centre, found.radius
        start = stop
    return AffineForms(centre, radius)
