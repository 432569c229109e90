"""Lower bounds of the margins over search nodes: the layers' ranges first, then one pass for the margins."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Known, Nodes
from l0tre.certify.relax.concretize import cell_minima, chargeable_pixels, concretize, look_up_minima
from l0tre.certify.relax.crown import LinearBound, carry, carry_window, neuron_rows, window_rows
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.interval import Interval, step
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.relaxation import Relaxation, relax
from l0tre.certify.relax.supported import curve_bounds, is_nonlinear

# Neurons whose gap is less than this share of their layer's average are not bounded again for a node's parts.
LIGHT = 0.5

__all__ = ["Bounds", "batch_sizes", "bound", "input_ranges", "is_proved", "margins_from", "refinements"]

NOTHING: Mapping[int, Interval] = MappingProxyType({})


@dataclass(frozen=True)
class Bounds:
    """What is known about a batch of nodes.

    Attributes:
        margins: float64 ``[nodes, rivals]``, lower bounds, in the order of ``Instance.rows``.
        rivals: int64 ``[nodes, rows]``: those that were bounded here, since nothing that was known before proved them.
        form: The linear lower bounds of these margins.
        table: For nodes of cells what each cell can take from them, see ``concretize.cell_minima``.
        proved: bool ``[nodes]``: every bound is finite and above its rounding error.
        known: What holds for the nodes' parts.
    """

    margins: Tensor
    rivals: Tensor
    form: LinearBound
    table: Tensor | None
    proved: Tensor
    known: Known

    @property
    def worst(self) -> Tensor:
        """int64 ``[nodes]``, the row of the form whose margin has the least bound."""
        return self.margins.gather(1, self.rivals).argmin(1)

    def pick(self, rows: Tensor) -> "Bounds":
        """The bounds of some nodes, int64 ``[rows]``."""
        local = None if self.form.local is None else self.form.local[rows]
        form = LinearBound(self.form.coefficients[rows], self.form.constant[rows], local)
        table = None if self.table is None else self.table[rows]
        return Bounds(self.margins[rows], self.rivals[rows], form, table, self.proved[rows], self.known.pick(rows))


def bound(instance: Instance, nodes: Nodes, row_bytes: int, refined: Collection[int] | None = None) -> Bounds:
    """Bound the margins of a batch of nodes.

    Args:
        instance: Network and images.
        nodes: All of one kind.
        row_bytes: Memory for the rows of a layer that are carried together.
        refined: Positions whose neurons get rows of their own, see :func:`refinements`; ``None`` for all.

    Returns:
        The bounds.
    """
    plan = instance.plan
    lines, handed = _relaxations(instance, nodes, row_bytes, refined=refined)
    end = len(plan.graph.operations) - 1
    rivals = _open_rivals(instance, nodes)
    rows = instance.rows[nodes.image[:, None], rivals]
    watched = [reader for position in plan.handed for reader in _readers(plan, position)]
    losses = {reader: rows for reader in watched if curve_bounds(plan.graph.operations[reader]) is not None}
    form = carry(plan, end, rows, lines.__getitem__, chargeable_pixels(instance, nodes), losses=losses)
    table = cell_minima(instance, nodes, form) if isinstance(nodes, CellNodes) else None
    worst = concretize(instance, nodes, form) if table is None else look_up_minima(instance, nodes, table)
    before = None if nodes.known is None else nodes.known.margins
    margins = margins_from(instance, nodes, before, rivals, form.constant + worst)
    known = _known(instance, margins, handed, losses)
    return Bounds(margins, rivals, form, table, is_proved(instance, nodes, margins), known)


def refinements(plan: Plan) -> list[Collection[int] | None]:
    """What to refine one after the other, the cheapest first, for nodes of which something is known.

    What is proved by what it inherits needs no rows of neurons, and those of windows cost less than those of whole
    layers. Each time more is known, so that nothing is done twice; that needs all ranges to be handed on.
    """
    asked = set(plan.bounded) - plan.affine
    # A GPU takes as long for a few nodes as for many.
    if plan.device.type == "cuda" or not asked or not asked.issubset(plan.handed):
        return [None]
    windows = asked.intersection(plan.receptive_fields)
    return [(), *(part for part in (windows, asked - windows) if part)]


def margins_from(instance: Instance, nodes: Nodes, before: Tensor | None, rivals: Tensor, changes: Tensor) -> Tensor:
    """Bounds of all margins, from what is known of them and what some rows say.

    Args:
        instance: Network and images.
        nodes: The nodes.
        before: float64 ``[nodes, rivals]``, bounds that are known already.
        rivals: int64 ``[nodes, rows]``, see :class:`Bounds`.
        changes: float64 ``[nodes, rows]``, the least changes of these margins.

    Returns:
        float64 ``[nodes, rivals]``.
    """
    found = instance.margins[nodes.image].gather(1, rivals) + changes
    if before is None:
        return torch.full_like(instance.margins[nodes.image], -torch.inf).scatter(1, rivals, found)
    return before.scatter(1, rivals, torch.maximum(before.gather(1, rivals), found))


def _known(instance: Instance, margins: Tensor, ranges: dict[int, Interval], losses: dict[int, Tensor]) -> Known:
    """What parts of nodes inherit: margins, ranges (rounded outwards), and which neurons cost the margins most."""
    plan, count = instance.plan, len(margins)
    neurons = sum(place.stop - place.start for place in plan.handed.values())
    low = torch.empty(count, neurons, device=plan.device)
    high, weighty = torch.empty_like(low), torch.ones(count, neurons, dtype=torch.bool, device=plan.device)
    for position, place in plan.handed.items():
        least, most = (ends.flatten(1) for ends in ranges[position])
        low[:, place] = least.float().nextafter(low.new_tensor(-torch.inf))
        high[:, place] = most.float().nextafter(low.new_tensor(torch.inf))
        gaps = [losses[reader] for reader in _readers(plan, position) if reader in losses]
        if gaps:
            weighty[:, place] = torch.stack([_weighty(some) for some in gaps]).any(0)
    return Known(
        margins.nan_to_num(nan=-torch.inf), low.nan_to_num_(nan=-torch.inf), high.nan_to_num_(nan=torch.inf), weighty
    )


def _readers(plan: Plan, position: int) -> list[int]:
    operations = plan.graph.operations
    return [place for place, reader in enumerate(operations) if position in reader.inputs and is_nonlinear(reader)]


def _weighty(losses: Tensor) -> Tensor:
    """Neurons whose gap takes more than ``LIGHT`` of their layer's average from some row.

    Args:
        losses: float64 ``[nodes, rows, neurons]``, see :func:`crown.carry`.

    Returns:
        bool ``[nodes, neurons]``.
    """
    total = losses.sum(2, keepdim=True)
    light = (losses <= LIGHT / losses.shape[2] * total) & torch.isfinite(total)
    return ~light.all(1)


def _open_rivals(instance: Instance, nodes: Nodes) -> Tensor:
    """The rivals to bound, int64 ``[nodes, rows]``: those that are not proved, filled up to as many for every node."""
    count = instance.margins.shape[1]
    if nodes.known is not None:
        open_ = ~_above(instance, nodes, nodes.known.margins)
        most = max(1, int(open_.sum(1).amax()))
        if most < count:
            return open_.to(torch.int8).topk(most, 1).indices
    return torch.arange(count, device=nodes.image.device).expand(len(nodes), -1)


def _above(instance: Instance, nodes: Nodes, margins: Tensor) -> Tensor:
    return (margins > instance.slack[nodes.image]) & torch.isfinite(margins)


def is_proved(instance: Instance, nodes: Nodes, margins: Tensor) -> Tensor:
    """Whether all bounds of a node are finite and above what rounding can cause, bool ``[nodes]``."""
    return _above(instance, nodes, margins).all(1)


def input_ranges(
    instance: Instance,
    nodes: Nodes,
    row_bytes: int,
    known: Mapping[int, Interval] = NOTHING,
    upto: int | None = None,
) -> dict[int, Interval]:
    """The ranges of what nonlinear operations read, by their source's position, each ``[nodes, *shape]``.

    Args:
        instance: Network and images.
        nodes: All of one kind.
        row_bytes: Memory for the rows of a layer that are carried together.
        known: Ranges of some positions that need not be worked out, rounding included.
        upto: The last position that is asked for; ``None`` for all.

    Returns:
        The ranges.
    """
    kept: dict[int, Interval] = {}
    _relaxations(instance, nodes, row_bytes, kept, known, upto)
    return kept


def _relaxations(
    instance: Instance,
    nodes: Nodes,
    row_bytes: int,
    kept: dict[int, Interval] | None = None,
    known: Mapping[int, Interval] = NOTHING,
    upto: int | None = None,
    refined: Collection[int] | None = None,
) -> tuple[dict[int, Relaxation], dict[int, Interval]]:
    """The lines of every nonlinear operation, each from the ranges of the layers before it, which ``kept`` receives.

    Also gives the ranges that are handed on, see ``Plan.handed``.
    """
    plan, graph = instance.plan, instance.plan.graph.operations
    last = instance.plan.graph.last_use()
    ranges: dict[int, Interval] = {}
    lines: dict[int, Relaxation] = {}
    handed: dict[int, Interval] = {}
    asked = len(graph) if upto is None else upto
    read = (p for p, operation in enumerate(graph) if is_nonlinear(operation) and min(operation.inputs) <= asked)
    final = max(read, default=0)
    boxes = isinstance(nodes, BoxNodes)
    for position in range(final + 1):
        operation = graph[position]
        if is_nonlinear(operation):
            # Before its own range: rows that start after this operation go through its lines.
            source = operation.inputs[0]
            if kept is not None:
                kept[source] = ranges[source]
            before, after = instance.base[source][nodes.image], instance.base[position][nodes.image]
            charged = bool(chargeable_pixels(instance, nodes)) and position in plan.receptive_fields
            lines[position] = relax(operation, *ranges[source], before, after, near=charged)
        exact = position in known or (position in plan.affine and (boxes or position in instance.tables))
        if position in known:
            ranges[position] = known[position]
        elif not boxes and position in instance.tables:
            ranges[position] = _widen(_look_up(instance, nodes, position), plan.slack[position])
        elif position not in plan.affine or boxes or position in instance.walked:
            inputs = [ranges[source] for source in operation.inputs]
            ranges[position] = (
                _widen(step(operation, inputs), plan.slack[position]) if position else _input_range(instance, nodes)
            )
        if position in plan.handed and nodes.known is not None:
            ranges[position] = _cut(ranges[position], nodes.known, plan.handed[position])
        if position in plan.bounded and not exact and (refined is None or position in refined):
            _refine(instance, nodes, position, ranges[position], lines, row_bytes)
        if position in plan.handed:
            handed[position] = ranges[position]
        for source in operation.inputs:
            if last[source] == position:
                ranges.pop(source, None)
    return lines, handed


def _cut(values: Interval, known: Known, place: slice) -> Interval:
    """Ranges cut by those of a node around each one: what holds for a node holds for its parts."""
    low, high = values
    least, most = (ends[:, place].view(low.shape).double() for ends in (known.low, known.high))
    return torch.maximum(low, least), torch.minimum(high, most)


def _widen(values: Interval, slack: Tensor) -> Interval:
    # In one piece, since ranges are refined in place through flat views.
    return (values[0] - slack).contiguous(), (values[1] + slack).contiguous()


def _input_range(instance: Instance, nodes: Nodes) -> Interval:
    """The range of every input value, ``[nodes, *shape]``."""
    plan, shape = instance.plan, instance.plan.graph.operations[0].shape
    images = instance.images[nodes.image]
    if isinstance(nodes, BoxNodes):
        members = instance.members[nodes.cells - instance.tree.slots].flatten(1)
        padded = torch.cat([images, images.new_zeros(len(images), 1)], 1)
        low = padded.scatter(1, members, nodes.low.flatten(1))[:, :-1]
        high = padded.scatter(1, members, nodes.high.flatten(1))[:, :-1]
        return low.view(-1, *shape), high.view(-1, *shape)
    touched = torch.zeros(len(nodes), instance.values + 1, dtype=torch.bool, device=plan.device)
    slots = torch.arange(instance.tree.slots, device=plan.device) + instance.tree.slots
    for cells in nodes.cells.T:
        # Walking up from a slot to the cell's level meets the cell exactly if the slot lies in it.
        height = instance.tree.heights[cells]
        inside = (slots >> height[:, None]) == cells[:, None]
        for column in instance.members.T:
            touched.scatter_(
                1, column.expand(len(nodes), -1), touched.gather(1, column.expand(len(nodes), -1)) | inside
            )
    moved = touched[:, :-1]
    low = torch.where(moved, images + instance.down[nodes.image], images)
    high = torch.where(moved, images + instance.up[nodes.image], images)
    return low.view(-1, *shape), high.view(-1, *shape)


def _look_up(instance: Instance, nodes: Nodes, position: int) -> Interval:
    """The exact range of a first layer over nodes of cells, from the tables."""
    own = instance.base[position][nodes.image]
    down, up = instance.tables[position].look_up(instance.tree, nodes.image, nodes.cells, nodes.ranks())
    return own + down.view(own.shape), own - up.view(own.shape)


@dataclass(frozen=True)
class _Layer:
    """Ranges under refinement: smallest and largest values ``[nodes, neurons]`` at a position, changed in place."""

    instance: Instance
    nodes: Nodes
    position: int
    low: Tensor
    high: Tensor
    lines: dict[int, Relaxation]

    def tighten(self, who: Tensor, which: Tensor, lower: Tensor, upper: Tensor) -> None:
        """Intersect with what rows of neurons give: least changes of the values and of their negatives."""
        centre = self.instance.base[self.position].flatten(1)[self.nodes.image[who], which]
        error = self.instance.plan.slack[self.position].flatten()[which]
        self.low[who, which] = torch.maximum(self.low[who, which], centre + lower - error)
        self.high[who, which] = torch.minimum(self.high[who, which], centre - upper + error)


def _refine(
    instance: Instance,
    nodes: Nodes,
    position: int,
    values: Interval,
    lines: dict[int, Relaxation],
    row_bytes: int,
) -> None:
    """Tighten ranges in place, of the neurons whose sign the intervals leave open; of all that move before a curve."""
    plan = instance.plan
    readers = [reader for reader in plan.graph.operations if position in reader.inputs and is_nonlinear(reader)]
    curves = [curve_bounds(reader) for reader in readers]
    curved = any(curve is None or not curve.by_sign for curve in curves)
    low, high = (ends.view(len(nodes), -1) for ends in values)
    open_ = high - low > 4 * plan.slack[position].flatten() if curved else (low < 0) & (high > 0)
    if nodes.known is not None and position in plan.handed:
        open_ &= nodes.known.weighty[:, plan.handed[position]]
    if bool(open_.any()):
        most = max(1, row_bytes // _row_bytes(instance, position, nodes.cells.shape[1]))
        refine = _refine_windows if position in plan.receptive_fields else _refine_whole
        refine(_Layer(instance, nodes, position, low, high, lines), open_, most)


def _refine_windows(layer: _Layer, open_: Tensor, most: int) -> None:
    """Neurons of a map, of all nodes in one list, at most so many at once."""
    instance, nodes, position = layer.instance, layer.nodes, layer.position
    owner, neuron = open_.nonzero(as_tuple=True)
    seen = instance.plan.receptive_fields[position].size
    for start in range(0, len(owner), most):
        instance.pulse()
        who, which = owner[start : start + most], neuron[start : start + most]
        begin, window = window_rows(instance.plan, position, which)
        form = carry_window(
            instance.plan, begin, window, layer.lines.__getitem__, who, seen, chargeable_pixels(instance, nodes)
        )
        change = form.constant + concretize(instance, nodes, form, who)
        layer.tighten(who, which, change[:, 0], change[:, 1])


def _refine_whole(layer: _Layer, open_: Tensor, most: int) -> None:
    """Neurons that see whole maps, node by node, so that the rows of a node share its lines."""
    instance, nodes = layer.instance, layer.nodes
    count = open_.sum(1)
    order = count.argsort()
    counts = count[order].tolist()
    start = next((place for place, number in enumerate(counts) if number), len(counts))
    # Different neurons for every node, those that are open first.
    chosen = open_.to(torch.int8).topk(counts[-1], 1).indices
    while start < len(counts):
        stop = start + 1
        # Nodes with about as many open neurons go together, padded to the largest number.
        while stop < len(counts) and (stop + 1 - start) * counts[stop] <= max(most, counts[stop]):
            stop += 1
        who, width = order[start:stop], counts[stop - 1]
        which = chosen[who, :width]
        real = open_[who].gather(1, which)
        picked = {place: part.pick(who) for place, part in layer.lines.items()}
        part = nodes.pick(who)
        for column in range(0, width, most):
            instance.pulse()
            some = which[:, column : column + most]
            begin, rows = neuron_rows(instance.plan, layer.position, some)
            form = carry(
                instance.plan,
                begin,
                torch.cat([rows, -rows], 1),
                picked.__getitem__,
                chargeable_pixels(instance, nodes),
            )
            change = form.constant + concretize(instance, part, form)
            row, place = real[:, column : column + most].nonzero(as_tuple=True)
            below, above = change[row, place], change[row, some.shape[1] + place]
            layer.tighten(who[row], some[row, place], below, above)
        start = stop


def _row_bytes(instance: Instance, position: int, t: int) -> int:
    """Memory that a pair of rows and its copies take at the widest layer that it passes."""
    plan = instance.plan
    before = [place for place in range(position) if place in plan.bounded or place == 0]
    if position not in plan.receptive_fields:
        return 8 * (12 * max(plan.slack[place].numel() for place in before) + (4 * t + 8) * instance.tree.slots)
    own, widest = plan.receptive_fields[position], 0
    for place in before:
        if place not in plan.receptive_fields:  # of another branch
            continue
        seen = plan.receptive_fields[place]
        sides = [(own.size[d] - seen.size[d]) // seen.stride[d] + 1 for d in (0, 1)]
        widest = max(widest, plan.graph.operations[place].shape[0] * sides[0] * sides[1])
    whole = 0 if instance.slot_of_pixel is not None else 8 * instance.tree.slots
    return 8 * (20 * widest + 12 * own.size[0] * own.size[1] + whole)


def batch_sizes(instance: Instance, t: int, budget: int) -> tuple[int, int]:
    """How many nodes of ``t`` cells are bounded together, and the memory for their rows in bytes."""
    plan = instance.plan
    rows = instance.rows.shape[1]
    widest = max(slack.numel() for slack in plan.slack)
    per_node = 8 * (12 * plan.neurons + rows * (5 * widest + (3 * t + 6) * instance.tree.slots) + 4 * instance.values)
    most = 8192 if plan.device.type == "cuda" else 64
    # On a CPU rows that leave its caches are slower.
    useful = 2**33 if plan.device.type == "cuda" else 2**23
    return max(1, min(most, budget // 2 // per_node)), max(1, min(useful, budget // 4))
