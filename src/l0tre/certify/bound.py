"""Lower bounds of the margins over search nodes: the layers' ranges first, then one pass for the margins."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.backward import Form, carry, carry_window, neuron_rows, window_rows
from l0tre.certify.interval import Interval, step
from l0tre.certify.lines import Lines, relax
from l0tre.certify.nodes import Nodes
from l0tre.certify.scene import Scene
from l0tre.certify.support import ELEMENTWISE, NONLINEAR
from l0tre.certify.worst import worst_changes

__all__ = ["Bounds", "bound"]


@dataclass(frozen=True)
class Bounds:
    """What is known about a batch of nodes.

    Attributes:
        margins: float64 ``[nodes, classes - 1]``, lower bounds, in the order of ``Scene.rows``.
        form: The linear lower bounds of the margins behind them.
        proved: bool ``[nodes]``: every bound is finite and above its rounding error.
        lines: Lines of the nonlinear operations, by position.
    """

    margins: Tensor
    form: Form
    proved: Tensor
    lines: dict[int, Lines]


def bound(scene: Scene, nodes: Nodes, row_bytes: int) -> Bounds:
    """Bound the margins of a batch of nodes.

    Args:
        scene: Network and images.
        nodes: All of one kind.
        row_bytes: Memory for the rows of a layer that are carried together.

    Returns:
        The bounds.
    """
    lines = _relaxations(scene, nodes, row_bytes)
    return bound_margins(scene, nodes, lines)


def bound_margins(scene: Scene, nodes: Nodes, lines: dict[int, Lines]) -> Bounds:
    """Bound the margins with given lines, which must hold for the nodes."""
    end = len(scene.plan.graph.nodes) - 1
    form = carry(scene.plan, end, scene.rows[nodes.image], lines.__getitem__)
    margins = scene.margins[nodes.image] + form.constant + worst_changes(scene, nodes, form)
    proved = ((margins > scene.slack[nodes.image]) & torch.isfinite(margins)).all(1)
    return Bounds(margins, form, proved, lines)


def _relaxations(scene: Scene, nodes: Nodes, row_bytes: int) -> dict[int, Lines]:
    """The lines of every nonlinear operation, each from the ranges of the layers before it."""
    plan, graph = scene.plan, scene.plan.graph.nodes
    last = scene.plan.graph.last_use()
    ranges: dict[int, Interval] = {}
    lines: dict[int, Lines] = {}
    final = max((p for p, node in enumerate(graph) if node.op in NONLINEAR), default=0)
    boxes = nodes.low is not None
    for position in range(final + 1):
        node = graph[position]
        exact = position in plan.affine and (boxes or position in scene.tables)
        if not boxes and position in scene.tables:
            ranges[position] = _widen(_look_up(scene, nodes, position), plan.slack[position])
        elif position not in plan.affine or boxes or position in scene.walked:
            inputs = [ranges[source] for source in node.inputs]
            ranges[position] = _widen(step(node, inputs), plan.slack[position]) if position else _input_range(scene, nodes)
        if position in plan.bounded and not exact:
            _refine(scene, nodes, position, *ranges[position], lines, row_bytes)
        if node.op in NONLINEAR:
            source = node.inputs[0]
            before, after = scene.base[source][nodes.image], scene.base[position][nodes.image]
            lines[position] = relax(node, *ranges[source], before, after)
        for source in node.inputs:
            if last[source] == position:
                ranges.pop(source, None)
    return lines


def _widen(values: Interval, slack: Tensor) -> Interval:
    return values[0] - slack, values[1] + slack


def _input_range(scene: Scene, nodes: Nodes) -> Interval:
    """The range of every input value, ``[nodes, *shape]``."""
    plan, shape = scene.plan, scene.plan.graph.nodes[0].shape
    images = scene.images[nodes.image]
    if nodes.low is not None and nodes.high is not None:
        members = scene.members[nodes.cells - scene.tree.slots].flatten(1)
        padded = torch.cat([images, images.new_zeros(len(images), 1)], 1)
        low = padded.scatter(1, members, nodes.low.flatten(1))[:, :-1]
        high = padded.scatter(1, members, nodes.high.flatten(1))[:, :-1]
        return low.view(-1, *shape), high.view(-1, *shape)
    touched = torch.zeros(len(nodes), scene.values + 1, dtype=torch.bool, device=plan.device)
    slots = torch.arange(scene.tree.slots, device=plan.device) + scene.tree.slots
    for cells in nodes.cells.T:
        # Walking up from a slot to the cell's level meets the cell exactly if the slot lies in it.
        height = scene.tree.depth - torch.log2(cells.double()).floor().long()
        inside = (slots >> height[:, None]) == cells[:, None]
        for column in scene.members.T:
            touched.scatter_(1, column.expand(len(nodes), -1), touched.gather(1, column.expand(len(nodes), -1)) | inside)
    moved = touched[:, :-1]
    low = torch.where(moved, images + scene.down[nodes.image], images)
    high = torch.where(moved, images + scene.up[nodes.image], images)
    return low.view(-1, *shape), high.view(-1, *shape)


def _look_up(scene: Scene, nodes: Nodes, position: int) -> Interval:
    """The exact range of a first layer over nodes of cells, from the tables."""
    table, ranks = scene.tables[position], nodes.ranks()
    own = scene.base[position][nodes.image]
    low, high = own.flatten(1).clone(), own.flatten(1).clone()
    for slot in range(nodes.cells.shape[1]):
        low += table[0, nodes.image, ranks[:, slot], nodes.cells[:, slot]]
        high -= table[1, nodes.image, ranks[:, slot], nodes.cells[:, slot]]
    return low.view(own.shape), high.view(own.shape)


def _refine(
    scene: Scene,
    nodes: Nodes,
    position: int,
    low: Tensor,
    high: Tensor,
    lines: dict[int, Lines],
    row_bytes: int,
) -> None:
    """Tighten ranges in place, of the neurons whose sign the intervals leave open; of all that move before a curve."""
    plan = scene.plan
    curved = any(
        position in reader.inputs and reader.op in NONLINEAR and reader.op not in ("relu", "leaky_relu")
        for reader in plan.graph.nodes
    )
    flat_low, flat_high = low.view(len(nodes), -1), high.view(len(nodes), -1)
    open_ = flat_high - flat_low > 4 * plan.slack[position].flatten() if curved else (flat_low < 0) & (flat_high > 0)
    owner, neuron = open_.nonzero(as_tuple=True)
    if not len(owner):
        return
    windowed = position in plan.windowed
    size = max(1, row_bytes // _row_cost(scene, position, windowed))
    errors, own = plan.slack[position].flatten(), scene.base[position].flatten(1)
    for start in range(0, len(owner), size):
        who, which = owner[start : start + size], neuron[start : start + size]
        part = nodes.pick(who)
        if windowed:
            sign = torch.tensor([1.0, -1.0], dtype=torch.float64, device=plan.device)
            window = window_rows(plan, position, which, sign)
            form = carry_window(plan, position, window, lines.__getitem__, who)
        else:
            begin, rows = neuron_rows(plan, position, which)
            form = carry(plan, begin, torch.cat([rows, -rows], 1), lambda place, who=who: lines[place].pick(who))  # type: ignore[misc]
        change = form.constant + worst_changes(scene, part, form)
        centre, error = own[nodes.image[who], which], errors[which]
        flat_low[who, which] = torch.maximum(flat_low[who, which], centre + change[:, 0] - error)
        flat_high[who, which] = torch.minimum(flat_high[who, which], centre - change[:, 1] + error)


def _row_cost(scene: Scene, position: int, windowed: bool) -> int:
    """Bytes that a row and its copies take at the widest layer that it passes."""
    graph = scene.plan.graph.nodes
    widest = max(scene.plan.slack[p].numel() for p in range(position + 1) if p == 0 or graph[p].op in ELEMENTWISE or p in scene.plan.bounded)
    if windowed:
        widest = min(widest, 4096)
    return 8 * (24 * widest + 12 * scene.tree.slots)
