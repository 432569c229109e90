"""The least value of linear forms over search nodes, and the changed input that attains it."""

import torch
from torch import Tensor

from l0tre.certify.backward import Form
from l0tre.certify.nodes import Nodes
from l0tre.certify.scene import Scene, smallest

__all__ = ["box_weights", "whole", "worst_changes", "worst_inputs"]


def whole(scene: Scene, form: Form) -> Tensor:
    """Coefficients of all input values, ``[batch, rows, values]``."""
    if form.top is None or form.left is None:
        return form.coefficients
    batch, rows, _ = form.coefficients.shape
    channels, height, width = scene.plan.graph.nodes[0].shape
    device = form.coefficients.device
    y = (form.top[:, None] + torch.arange(form.size[0], device=device)).clamp(0, height - 1)
    x = (form.left[:, None] + torch.arange(form.size[1], device=device)).clamp(0, width - 1)
    plane = y[:, :, None] * width + x[:, None, :]
    index = plane[:, None] + (torch.arange(channels, device=device) * height * width)[:, None, None]
    result = form.coefficients.new_zeros(batch, rows, scene.values)
    # What lies outside the input has coefficient 0, so its clamped position does no harm.
    return result.scatter_add_(2, index.flatten(1)[:, None].expand(-1, rows, -1), form.coefficients)


def worst_changes(scene: Scene, nodes: Nodes, form: Form) -> Tensor:
    """The least that the coefficients can add over each node.

    Args:
        scene: Images and cells.
        nodes: One for each batch entry of the form.
        form: Rows at the input.

    Returns:
        ``[batch, rows]``.
    """
    if nodes.low is not None and nodes.high is not None:
        coefficients = _at_groups(scene, nodes, form)
        down, up = _box_moves(scene, nodes)
        return torch.minimum(coefficients * down[:, None], coefficients * up[:, None]).sum((2, 3))
    ranks = nodes.ranks()
    most = int(ranks.max()) + 1
    moves = _group_changes(scene, nodes, whole(scene, form))
    cells = smallest(moves, most).flatten(2)
    index = (ranks * 2 * scene.tree.slots + nodes.cells)[:, None].expand(-1, moves.shape[1], -1)
    return cells.gather(2, index).sum(2)


def _group_changes(scene: Scene, nodes: Nodes, coefficients: Tensor) -> Tensor:
    """The least that the group in each slot can add alone, ``[batch, rows, slots]``; at most 0."""
    down, up = scene.down[nodes.image][:, None], scene.up[nodes.image][:, None]
    least = torch.minimum(coefficients * down, coefficients * up)
    padded = torch.nn.functional.pad(least, (0, 1))
    changes = padded[..., scene.members[:, 0]]
    for column in range(1, scene.members.shape[1]):
        changes = changes + padded[..., scene.members[:, column]]
    return changes


def _at_groups(scene: Scene, nodes: Nodes, form: Form) -> Tensor:
    """Coefficients of the values of a box node's groups, ``[batch, rows, t, width]``."""
    members = scene.members[nodes.cells - scene.tree.slots]
    batch, rows, size = form.coefficients.shape
    if form.top is None or form.left is None:
        index, inside = members, members < scene.values
    else:
        _, height, width = scene.plan.graph.nodes[0].shape
        plane = members % (height * width)
        y = plane // width - form.top[:, None, None]
        x = plane % width - form.left[:, None, None]
        inside = (members < scene.values) & (y >= 0) & (y < form.size[0]) & (x >= 0) & (x < form.size[1])
        index = (members // (height * width) * form.size[0] + y) * form.size[1] + x
    index = torch.where(inside, index, 0).flatten(1)
    picked = form.coefficients.gather(2, index[:, None].expand(-1, rows, -1))
    return (picked * inside.flatten(1)[:, None]).view(batch, rows, *members.shape[1:])


def _box_moves(scene: Scene, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """The ends of a box relative to the image, ``[batch, t, width]``."""
    assert nodes.low is not None and nodes.high is not None
    members = scene.members[nodes.cells - scene.tree.slots].flatten(1)
    images = torch.nn.functional.pad(scene.images[nodes.image], (0, 1))
    own = images.gather(1, members).view(nodes.low.shape)
    return nodes.low - own, nodes.high - own


def box_weights(scene: Scene, nodes: Nodes, form: Form, rows: Tensor) -> Tensor:
    """Coefficients of one row of each box node at its groups' values, ``[nodes, t, width]``."""
    picked = _at_groups(scene, nodes, form)
    return picked[torch.arange(len(rows), device=rows.device), rows]


def worst_inputs(scene: Scene, nodes: Nodes, form: Form, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The inputs at which one row of each node has its least value: candidates for witnesses.

    Args:
        scene: Images and cells.
        nodes: The nodes.
        form: Rows at the input, of whole inputs.
        rows: int64 ``[nodes]``, which row.
        low: float64 ``[values]``, the domain's smallest values.
        high: The largest values.

    Returns:
        float32 ``[nodes, values]``.
    """
    number = torch.arange(len(rows), device=rows.device)
    result = torch.nn.functional.pad(scene.images[nodes.image], (0, 1))
    if nodes.low is not None and nodes.high is not None:
        weight = box_weights(scene, nodes, form, rows)
        members = scene.members[nodes.cells - scene.tree.slots]
        values = torch.where(weight > 0, nodes.low, nodes.high)
        return result.scatter_(1, members.flatten(1), values.flatten(1))[:, :-1].float()
    chosen = form.coefficients[number, rows]
    moves = _group_changes(scene, nodes, chosen[:, None])[:, 0]
    extreme = torch.nn.functional.pad(torch.where(chosen > 0, low, high), (0, 1))
    slots = torch.arange(scene.tree.slots, device=rows.device) + scene.tree.slots
    for cells in nodes.cells.T:
        height = scene.tree.depth - torch.log2(cells.double()).floor().long()
        inside = (slots >> height[:, None]) == cells[:, None]
        # A group that another slot has taken is out.
        slot = torch.where(inside, moves, float("inf")).argmin(1)
        moves[number, slot] = float("inf")
        members = scene.members[slot]
        result.scatter_(1, members, extreme.gather(1, members))
    return result[:, :-1].float()
