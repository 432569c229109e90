"""The least value of linear forms over search nodes, and the changed input that attains it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.certify.relax.cell_tables import smallest, table_row
from l0tre.certify.relax.crown import LinearBound
from l0tre.certify.relax.instance import Instance

__all__ = [
    "box_coefficients",
    "cell_minima",
    "chargeable_pixels",
    "concretize",
    "look_up_minima",
    "minimizing_inputs",
    "taken_by_cells",
]


def chargeable_pixels(instance: Instance, nodes: Nodes) -> int:
    """How many pixels change in nodes of cells, if gaps may be charged to pixels; else 0."""
    if isinstance(nodes, BoxNodes) or instance.pixels is None:
        return 0
    return nodes.cells.shape[1] * instance.pixels.shape[1]


def concretize(instance: Instance, nodes: Nodes, form: LinearBound, owner: Tensor | None = None) -> Tensor:
    """The least that the coefficients can add over each node.

    Args:
        instance: Images and cells.
        nodes: The nodes.
        form: Rows at the input, of whole inputs or of windows.
        owner: int64 ``[batch]``, the node of each batch entry; default one after the other.

    Returns:
        ``[batch, rows]``.
    """
    if isinstance(nodes, BoxNodes):
        return _over_boxes(instance, nodes if owner is None else nodes.pick(owner), form)
    if form.top is not None and instance.slot_of_pixel is not None and owner is not None:
        return _over_windows(instance, nodes, form, owner)
    part = nodes if owner is None else nodes.pick(owner)
    moves = F.pad(_slot_changes(instance, part.image, *_whole(instance, form)), (0, 1))
    # Every cell is a range of slots; shorter ones are filled up with the empty slot at the end.
    start, size = _slot_ranges(instance, part.cells)
    steps = torch.arange(int(size.max()), device=start.device)
    index = torch.where(steps < size[:, :, None], start[:, :, None] + steps, instance.tree.slots)
    picked = moves.gather(2, index.flatten(1)[:, None].expand(-1, moves.shape[1], -1))
    picked = picked.view(*moves.shape[:2], *index.shape[1:])
    ranks = part.ranks()
    most = int(ranks.max()) + 1
    if most == 1:
        return picked.amin(3).sum(2)
    total = moves.new_zeros(moves.shape[:2])
    for rank in range(most):
        least, where = picked.min(3, keepdim=True)
        total += torch.where((ranks == rank)[:, None], least[..., 0], 0.0).sum(2)
        picked.scatter_(3, where, 0.0)  # the next rank takes another group, or none
    return total


def cell_minima(instance: Instance, nodes: CellNodes, form: LinearBound) -> Tensor:
    """What every cell can add at the least, for rows of whole inputs: ``[batch, rows, table rows]``."""
    most = int(nodes.ranks().max()) + 1
    return smallest(_slot_changes(instance, nodes.image, form.coefficients, form.local)[..., None], most)[..., 0]


def look_up_minima(instance: Instance, nodes: Nodes, table: Tensor, owner: Tensor | None = None) -> Tensor:
    """:func:`concretize` from a table.

    Args:
        instance: Images and cells.
        nodes: The nodes.
        table: See :func:`cell_minima`.
        owner: int64 ``[nodes]``, the entry of the table that holds for each node; default one after the other.

    Returns:
        ``[nodes, rows]``.
    """
    index = table_row(instance.tree, nodes.cells, nodes.ranks())
    if owner is None:
        return table.gather(2, index[:, None].expand(-1, table.shape[1], -1)).sum(2)
    return table.transpose(1, 2)[owner[:, None], index].sum(1)


def taken_by_cells(instance: Instance, nodes: CellNodes, table: Tensor, owner: Tensor) -> Tensor:
    """What every cell of each node takes from one row, float64 ``[nodes, t]``, at least 0.

    Args:
        instance: Images and cells.
        nodes: The nodes.
        table: float64 ``[entries, table rows]``, that row of :func:`cell_minima`.
        owner: int64 ``[nodes]``, the entry of the table that holds for each node.
    """
    return -table[owner[:, None], table_row(instance.tree, nodes.cells, nodes.ranks())]


def _whole(instance: Instance, form: LinearBound) -> tuple[Tensor, Tensor | None]:
    """Coefficients of all input values, ``[batch, rows, values]``, and the costs of all pixels."""
    if form.top is None or form.left is None:
        return form.coefficients, form.local
    batch, rows, _ = form.coefficients.shape
    channels, height, width = instance.plan.graph.operations[0].shape
    plane = _window_pixels(form, height, width)
    index = plane[:, None] + (torch.arange(channels, device=plane.device) * height * width)[:, None]
    result = form.coefficients.new_zeros(batch, rows, instance.values)
    # What lies outside the input has coefficient 0, so its clamped position does no harm.
    result.scatter_add_(2, index.flatten(1)[:, None].expand(-1, rows, -1), form.coefficients)
    if form.local is None:
        return result, None
    # A pixel outside the input has costs, which must not go to the one it is clamped to.
    local = torch.where(_inside(form, height, width)[:, None], form.local, 0.0)
    costs = form.coefficients.new_zeros(batch, rows, height * width)
    return result, costs.scatter_add_(2, plane[:, None].expand(-1, rows, -1), local)


def _inside(form: LinearBound, height: int, width: int) -> Tensor:
    """Which positions of each window lie in the input, ``[batch, positions]``."""
    assert form.top is not None
    assert form.left is not None
    y = form.top[:, None] + torch.arange(form.size[0], device=form.top.device)
    x = form.left[:, None] + torch.arange(form.size[1], device=form.top.device)
    return (((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]).flatten(1)


def _window_pixels(form: LinearBound, height: int, width: int) -> Tensor:
    """Pixel numbers of each window's positions, ``[batch, positions]``, clamped to the input."""
    assert form.top is not None
    assert form.left is not None
    device = form.top.device
    y = (form.top[:, None] + torch.arange(form.size[0], device=device)).clamp(0, height - 1)
    x = (form.left[:, None] + torch.arange(form.size[1], device=device)).clamp(0, width - 1)
    return (y[:, :, None] * width + x[:, None, :]).flatten(1)


def _over_windows(instance: Instance, nodes: CellNodes, form: LinearBound, owner: Tensor) -> Tensor:
    """Rows of windows over nodes of cells whose groups are pixels."""
    assert instance.slot_of_pixel is not None
    channels, height, width = instance.plan.graph.operations[0].shape
    batch, rows, _ = form.coefficients.shape
    pixels = _window_pixels(form, height, width)
    coefficients = form.coefficients.view(batch, rows, channels, -1)
    image = nodes.image[owner]
    moves = torch.zeros_like(coefficients[:, :, 0]) if form.local is None else form.local
    for channel in range(channels):
        index = image[:, None] * instance.values + pixels + channel * height * width
        down, up = instance.down.flatten()[index][:, None], instance.up.flatten()[index][:, None]
        part = coefficients[:, :, channel]
        moves = moves + torch.minimum(part * down, part * up)
    start, size = (values[owner] for values in _slot_ranges(instance, nodes.cells))
    slots = torch.where(_inside(form, height, width), instance.slot_of_pixel[pixels], -1)
    shared = int(nodes.ranks().max()) > 0
    total = moves.new_zeros(batch, rows)
    for place in range(nodes.cells.shape[1]):
        inside = (slots >= start[:, place, None]) & (slots < (start + size)[:, place, None])
        within = moves * inside[:, None]
        if shared:  # a group that was taken is not taken again
            least, where = within.min(2, keepdim=True)
            total += least[:, :, 0]
            # If nothing inside is below 0, the first of all places is found, which may lie in another cell.
            moves = moves.scatter(2, where, torch.where(least < 0, 0.0, moves.gather(2, where)))
        else:
            total += within.amin(2)
    return total


def _slot_ranges(instance: Instance, cells: Tensor) -> tuple[Tensor, Tensor]:
    """First slot and number of slots of cells."""
    height = instance.tree.heights[cells]
    return (cells << height) - instance.tree.slots, torch.ones_like(cells) << height


def _slot_changes(instance: Instance, image: Tensor, coefficients: Tensor, local: Tensor | None = None) -> Tensor:
    """The least that the group in each slot can add alone, ``[batch, rows, slots]``; at most 0."""
    down, up = instance.down[image][:, None], instance.up[image][:, None]
    least = F.pad(torch.minimum(coefficients * down, coefficients * up), (0, 1))
    changes = least[..., instance.members[:, 0]]
    for column in range(1, instance.members.shape[1]):
        changes += least[..., instance.members[:, column]]
    if local is not None:
        assert instance.pixels is not None
        padded = F.pad(local, (0, 1))
        for pixels in instance.pixels.T:
            changes += padded[..., pixels]
    return changes


def _over_boxes(instance: Instance, nodes: BoxNodes, form: LinearBound) -> Tensor:
    coefficients = _at_groups(instance, nodes, form)
    members = instance.members[nodes.cells - instance.tree.slots].flatten(1)
    own = F.pad(instance.images[nodes.image], (0, 1)).gather(1, members).view(nodes.low.shape)
    down, up = (nodes.low - own)[:, None], (nodes.high - own)[:, None]
    return torch.minimum(coefficients * down, coefficients * up).sum((2, 3))


def _at_groups(instance: Instance, nodes: BoxNodes, form: LinearBound) -> Tensor:
    """Coefficients of the values of a box node's groups, ``[batch, rows, t, width]``."""
    members = instance.members[nodes.cells - instance.tree.slots]
    batch, rows, _ = form.coefficients.shape
    if form.top is None or form.left is None:
        index, inside = members, members < instance.values
    else:
        _, height, width = instance.plan.graph.operations[0].shape
        plane = members % (height * width)
        y = plane // width - form.top[:, None, None]
        x = plane % width - form.left[:, None, None]
        inside = (members < instance.values) & (y >= 0) & (y < form.size[0]) & (x >= 0) & (x < form.size[1])
        index = (members // (height * width) * form.size[0] + y) * form.size[1] + x
    index = torch.where(inside, index, 0).flatten(1)
    picked = form.coefficients.gather(2, index[:, None].expand(-1, rows, -1))
    return (picked * inside.flatten(1)[:, None]).view(batch, rows, *members.shape[1:])


def box_coefficients(instance: Instance, nodes: BoxNodes, form: LinearBound, rows: Tensor) -> Tensor:
    """Coefficients of one row of each box node at its groups' values, ``[nodes, t, width]``."""
    picked = _at_groups(instance, nodes, form)
    return picked[torch.arange(len(rows), device=rows.device), rows]


def minimizing_inputs(
    instance: Instance, nodes: Nodes, form: LinearBound, rows: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """The inputs at which one row of each node has its least value: candidates for witnesses.

    Args:
        instance: Images and cells.
        nodes: The nodes.
        form: Rows at the input, of whole inputs.
        rows: int64 ``[nodes]``, which row.
        low: float64 ``[values]``, the domain's smallest values.
        high: The largest values.

    Returns:
        float32 ``[nodes, values]``.
    """
    number = torch.arange(len(rows), device=rows.device)
    result = F.pad(instance.images[nodes.image], (0, 1))
    if isinstance(nodes, BoxNodes):
        weight = box_coefficients(instance, nodes, form, rows)
        members = instance.members[nodes.cells - instance.tree.slots]
        values = torch.where(weight > 0, nodes.low, nodes.high)
        return result.scatter_(1, members.flatten(1), values.flatten(1))[:, :-1].float()
    chosen = form.coefficients[number, rows]
    costs = None if form.local is None else form.local[number, rows][:, None]
    moves = _slot_changes(instance, nodes.image, chosen[:, None], costs)[:, 0]
    extreme = F.pad(torch.where(chosen > 0, low, high), (0, 1))
    start, size = _slot_ranges(instance, nodes.cells)
    slots = torch.arange(instance.tree.slots, device=rows.device)
    moves = torch.where(instance.tree.order >= 0, moves, float("inf"))
    for place in range(nodes.cells.shape[1]):
        inside = (slots >= start[:, place, None]) & (slots < (start + size)[:, place, None])
        # A group that another slot has taken is out.
        slot = torch.where(inside, moves, float("inf")).argmin(1)
        moves[number, slot] = float("inf")
        members = instance.members[slot]
        result.scatter_(1, members, extreme.gather(1, members))
    return result[:, :-1].float()
