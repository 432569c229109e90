"""Margins of box nodes from the clusters of their pixels.

Two pixels that no neuron before the dense layer sees together do not disturb each other there: what they do to that
layer adds up. So the pixels of a node fall into clusters, each is carried alone through its own small window, and the
forms are added behind the windows.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.clusters.forms import Forms, bend
from l0tre.certify.clusters.local import Items, Local, carry, item_bytes
from l0tre.certify.nodes import Nodes
from l0tre.certify.scene import Scene
from l0tre.certify.support import ELEMENTWISE
from l0tre.model.graph import run_node

__all__ = ["Ground", "behind", "behind_bytes", "box_items", "carry_items", "lower_forms", "make_ground", "near_pixels"]


@dataclass(frozen=True)
class Ground:
    """Images ready for bounds by clusters.

    Attributes:
        local: The network's windows.
        scene: The images.
        kinds: int64 ``[images]``, which weights of ``weights`` hold for each image.
        weights: float64 ``[kinds, H, W, C, features]`` of the dense layer behind the windows. If that gives the scores,
            its features are the margins of one label each; else its own outputs, of one kind.
        rows: float64 ``[images, classes - 1, values]``, the margins as rows of what the last operation reads; empty if
            the dense layer gives them.
        budget: Bytes for what is carried together.
    """

    local: Local
    scene: Scene
    kinds: Tensor
    weights: Tensor
    rows: Tensor
    budget: int


def make_ground(local: Local, scene: Scene, budget: int) -> Ground:
    """Prepare images."""
    graph = local.plan.graph
    shape = graph.nodes[local.plan.cut].shape
    head = graph.nodes[local.plan.tail - 1].tensors["weight"]
    if local.flat:
        _, first, kinds = _distinct(scene.labels)
        weights, rows = scene.rows[first] @ head, scene.rows[:0]
    else:
        kinds, weights = torch.zeros_like(scene.labels), head[None]
        last = graph.nodes[-1]
        rows = scene.rows @ last.tensors["weight"] if last.op == "linear" else scene.rows
    weights = weights.view(*weights.shape[:2], *shape).permute(0, 3, 4, 2, 1).contiguous()
    return Ground(local, scene, kinds, weights, rows, budget)


def _distinct(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Different values, where each is found first, and which one every entry is."""
    found, which = values.unique(return_inverse=True)
    first = (which[None] == torch.arange(len(found), device=values.device)[:, None]).int().argmax(1)
    return found, first, which


def near_pixels(local: Local, first: Tensor, second: Tensor) -> Tensor:
    """Whether a neuron can see both of two pixels, given by their numbers in the input's plane; bool."""
    width = local.plan.graph.input_shape[2]
    down = (first // width - second // width).abs()
    right = (first % width - second % width).abs()
    return (down < local.sight[0]) & (right < local.sight[1])


def lower_forms(ground: Ground, nodes: Nodes) -> Tensor:
    """Linear lower bounds of the margins of box nodes.

    Args:
        ground: Network and images.
        nodes: Box nodes.

    Returns:
        float64 ``[nodes, classes - 1, 1 + t * width]``, constants first, as forms of the box's ``u`` from -1 to 1.
    """
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
    most = max(1, ground.budget // behind_bytes(ground, 1 + t * width))
    parts = [
        behind(ground, nodes.image[start : start + most], Forms(*total[:, start : start + most]))
        for start in range(0, max(1, len(nodes)), most)  # no nodes have bounds too: an empty table
    ]
    return torch.cat(parts)


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


def behind_bytes(ground: Ground, columns: int) -> int:
    """Memory that :func:`behind` takes for one entry of so many columns."""
    return 8 * 24 * ground.weights.shape[-1] * columns


def behind(ground: Ground, image: Tensor, forms: Forms) -> Tensor:
    """Lower bounds of the margins from forms of the dense layer behind the windows.

    Args:
        ground: Network and images.
        image: int64 ``[batch]``, the image of each entry.
        forms: ``[batch, 1 + variables, features]``.

    Returns:
        ``[batch, classes - 1, 1 + variables]``.
    """
    local, scene = ground.local, ground.scene
    own = scene.margins[image]
    if local.flat:
        lower = (forms.centre - forms.radius).transpose(1, 2)
    else:
        nodes = local.plan.graph.nodes
        last = len(nodes) - 1
        end = last if nodes[last].op == "linear" else last + 1
        values = {local.plan.tail - 1: forms}
        for place in range(local.plan.tail, end):
            values[place] = _whole(ground, place, image, values)
        forms = values[nodes[last].inputs[0] if end == last else last]
        rows = ground.rows[image].transpose(1, 2)
        lower = (torch.bmm(forms.centre, rows) - torch.bmm(forms.radius, rows.abs())).transpose(1, 2)
    return torch.cat([(lower[..., 0] + own)[..., None], lower[..., 1:]], 2)


def _whole(ground: Ground, place: int, image: Tensor, values: dict[int, Forms]) -> Forms:
    """One operation behind the windows, on whole layers."""
    local = ground.local
    node = local.plan.graph.nodes[place]
    sources = [values[source] for source in node.inputs]
    if node.op in ELEMENTWISE:
        source = node.inputs[0]
        before, after = ground.scene.base[source][image], ground.scene.base[place][image]
        return bend(node, sources[0], before, after, local.slack[source])
    parts = []
    for kind, name in ((local.plain[place], "centre"), (local.positive[place], "radius")):
        inputs = [getattr(source, name) for source in sources]
        result = run_node(kind, *(part.flatten(0, 1) for part in inputs))
        parts.append(result.view(*inputs[0].shape[:2], *result.shape[1:]))
    return Forms(parts[0], parts[1])
