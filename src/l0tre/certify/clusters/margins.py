"""Margins of box nodes from the clusters of their pixels.

Two pixels that no neuron before the dense layer sees together do not disturb each other there: what they do to that
layer adds up. So the pixels of a node fall into clusters, each is carried alone through its own small window, and the
forms are added behind the windows.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from l0tre.certify.clusters.behind import behind, behind_bytes, form_ranges, range_margins
from l0tre.certify.clusters.forms import Forms, least
from l0tre.certify.clusters.ground import Ground, near_pixels
from l0tre.certify.clusters.local import Items, carry, item_bytes
from l0tre.certify.nodes import Nodes

__all__ = ["box_items", "carry_items", "lower_bounds", "lower_forms"]


def lower_forms(ground: Ground, nodes: Nodes) -> Tensor:
    """Linear lower bounds of the margins of box nodes.

    Args:
        ground: Network and images.
        nodes: Box nodes.

    Returns:
        float64 ``[nodes, classes - 1, 1 + t * width]``, constants first, as forms of the box's ``u`` from -1 to 1.
    """
    return _in_parts(ground, nodes, lambda image, forms: (behind(ground, image, forms),))[0]


def lower_bounds(ground: Ground, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins ``[nodes, classes - 1]``, the best of all ways, and :func:`lower_forms`."""

    def bounds(image: Tensor, forms: Forms) -> tuple[Tensor, ...]:
        lower = behind(ground, image, forms)
        found = least(lower)
        if not ground.local.flat:
            found = torch.maximum(found, range_margins(ground, image, form_ranges(forms)))
        return found, lower

    found, lower = _in_parts(ground, nodes, bounds)
    return found, lower


def _in_parts(ground: Ground, nodes: Nodes, work: Callable[[Tensor, Forms], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Do some work on the forms of the dense layer behind the windows, as many boxes at a time as the budget allows."""
    total = _heads(ground, nodes)
    most = max(1, ground.budget // behind_bytes(ground, total.shape[2]))
    parts = [
        work(nodes.image[start : start + most], Forms(*total[:, start : start + most]))
        for start in range(0, max(1, len(nodes)), most)  # no nodes have bounds too: an empty table
    ]
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))


def _heads(ground: Ground, nodes: Nodes) -> Tensor:
    """Centres and radii of the dense layer's forms, ``[2, nodes, 1 + t * width, features]``."""
    items = box_items(ground, nodes)
    t, width = items.members.shape[1:]
    features = ground.weights.shape[-1]
    total = ground.scene.images.new_zeros(2, len(nodes), 1 + t * width, features)
    for subset, rows in _clusters(ground, items):
        part = items.pick(rows)
        chosen = list(subset)
        forms = carry_items(
            ground, Items(part.image, part.members[:, chosen], part.low[:, chosen], part.high[:, chosen])
        )
        columns = [0, *(1 + place * width + value for place in subset for value in range(width))]
        for side, found in enumerate((forms.centre, forms.radius)):
            for column, wanted in enumerate(columns):
                total[side, rows, wanted] += found[:, column]
    return total


def box_items(ground: Ground, nodes: Nodes) -> Items:
    """Box nodes as items, all their pixels together."""
    assert nodes.low is not None
    assert nodes.high is not None
    members = ground.scene.members[nodes.cells - ground.scene.tree.slots]
    return Items(nodes.image, members, nodes.low, nodes.high)


def _clusters(ground: Ground, items: Items) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Sets of places that are clusters of some items, with the numbers of these items."""
    t = items.members.shape[1]
    _, height, width = ground.local.plan.graph.input_shape
    pixel = items.members[:, :, 0] % (height * width)
    joined = near_pixels(ground.local, pixel[:, :, None], pixel[:, None])
    for _ in range(t.bit_length()):  # neighbours of neighbours
        joined = (joined[:, :, :, None] & joined[:, None]).any(2)
    for size in range(1, t + 1):
        for subset in itertools.combinations(range(t), size):
            wanted = torch.tensor([place in subset for place in range(t)], device=pixel.device)
            rows = (joined[:, subset[0]] == wanted).all(1).nonzero()[:, 0]
            if len(rows):
                yield subset, rows


def carry_items(ground: Ground, items: Items) -> Forms:
    """Carry items of any sizes and phases to the dense layer, as many at a time as the budget allows."""
    local, scene = ground.local, ground.scene
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
    shape = (len(items), 1 + variables, ground.weights.shape[-1])
    centre, radius = (scene.images.new_empty(shape) for _ in range(2))
    start = 0
    for key, stop in zip(shapes.tolist(), stops, strict=True):
        most = max(1, ground.budget // item_bytes(local, variables, (key[2], key[3])))
        for begin in range(start, stop, most):
            scene.pulse()
            rows = order[begin : min(begin + most, stop)]
            found = carry(local, scene, items.pick(rows), (ground.kinds, ground.weights))
            centre[rows], radius[rows] = found.centre, found.radius
        start = stop
    return Forms(centre, radius)
