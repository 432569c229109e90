"""Margins over boxes of a few values, by linear bounds carried forwards: quicker than going back as ``margins`` does.

A changed value is ``middle + half * u`` with ``u`` from -1 to 1. The difference of every value of the network from
that at the image lies between two linear forms of all ``u``, a lower and an upper one; column 0 is the constant. A
linear operation maps their middle by its weights and half of their distance by its absolute weights; any other turns
them by its two lines over the range that they leave. Pixels that no operation sees together before the layers add up
again are carried by themselves, each in its window, and their forms are added.

Rounding: by induction over the operations, for the larger of both forms' absolute values in every column, the sum over
the columns never exceeds ``terms`` of ``margins`` (times the number of parts where parts are added): ranges are cut at
``limit``, so the lines' slopes and gaps are within what ``terms`` allows for. So ``slack`` times that number bounds the
errors here too.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.lines import Relaxation, make_lines
from l0tre.certify.checker.margins import LINEAR, Bounder, absolute, curve_interval
from l0tre.certify.checker.windows import Local, View, aligned, make_local, map_window, place_of, read_window
from l0tre.model.graph import Graph, Operation, run_operation

__all__ = [
    "COPIES",
    "Ends",
    "Forms",
    "Forward",
    "Items",
    "box_margins",
    "carry",
    "carry_items",
    "contracted",
    "least_margins",
    "make_forward",
    "near",
    "parts_of",
    "through",
    "views",
    "whole_index",
    "with_margins",
]

COPIES = 6  # of what is carried that are held at a time
FEW = 4  # windows with the same corner, from which on they share the weights that they meet
CONTRACTED = 2**24  # numbers of weights that are gathered at a time
Ends = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Forms:
    """Bounds of differences from the image.

    Attributes:
        lower: float64 ``[batch, 1 + variables, *shape]``.
        upper: Likewise.
        low: float64 ``[batch, *shape]``, a number that the difference is nowhere below, maybe better than the forms.
        high: Likewise above.
    """

    lower: Tensor
    upper: Tensor
    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class Forward:
    """A network that gives margins, ready for boxes.

    Attributes:
        bounder: The network, its last operation gives the margins; the image; magnitudes for the round-off.
        local: The layers that are carried in windows; nothing but the input for none.
        plain: The operations without their constants.
        positive: The linear operations with absolute weights.
        heads: For maps where windows end and that only dense layers read, flattened: the positions of these layers.
        spans: int64 ``[groups, 4]``, first and last row, first and last column of each group's pixels; zeros if the
            input is no image.
        parts: Most groups that change.
    """

    bounder: Bounder
    local: Local
    plain: tuple[Operation, ...]
    positive: Mapping[int, Operation]
    heads: Mapping[int, tuple[int, ...]]
    spans: Tensor
    parts: int

    @property
    def ends(self) -> tuple[int, ...]:
        """Where :func:`carry` ends: maps, and dense layers in place of those that only they read."""
        maps = [p for p in self.local.exits if p not in self.heads]
        return (*maps, *(layer for layers in self.heads.values() for layer in layers))

    @property
    def widest(self) -> int:
        """Most values of an operation that is held as a whole."""
        skipped = {s for layers in self.heads.values() for layer in layers for s in self.plain[layer].inputs}
        inside = {*self.local.reach} - {0, *self.ends}
        return max(math.prod(o.shape) for p, o in enumerate(self.plain) if p not in skipped | inside)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.spans.device

    def tables(self, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """The image's own values, their limits and the slack of an operation, flattened, with one entry for none."""
        slack = self.slack(position)
        parts = (self.bounder.own[position], self.bounder.limit[position] + slack, slack)
        own, most, room = (F.pad(part.flatten(), (0, 1)) for part in parts)
        return own, most, room

    def slack(self, position: int) -> Tensor:
        """How far bounds of an operation can be off, by sums of so many parts and their differences."""
        return 4 * (self.parts + 1) * self.bounder.slack[position]

    @property
    def own(self) -> Tensor:
        """The margins at the image, ``[rivals]``."""
        return self.bounder.own[-1].flatten()


def with_margins(graph: Graph, label: int) -> Graph:
    """The network that gives the label's lead over every other class in place of the scores."""
    last = graph.operations[-1]
    others = [c for c in range(math.prod(last.shape)) if c != label]
    if last.kind == "linear" and len(last.shape) == 1:
        # Differences of weights are off by an ulp of themselves: nothing beside what the slack allows.
        tensors = {
            key: value[label] + value[others] if key.endswith("_terms") else value[label] - value[others]
            for key, value in last.tensors.items()
        }
        return Graph((*graph.operations[:-1], replace(last, tensors=tensors, shape=(len(others),))))
    rows = -torch.eye(len(others) + 1, dtype=torch.float64, device="cpu")[others]
    rows[:, label] = 1.0
    end = len(graph.operations) - 1
    flat = () if len(last.shape) == 1 else (Operation("reshape", (end,), (len(rows[0]),), {}, {"shape": (-1,)}),)
    top = Operation("linear", (end + len(flat),), (len(others),), {"weight": rows}, {})
    return Graph((*graph.operations, *flat, top))


def make_forward(bounder: Bounder, parts: int) -> Forward:
    """Prepare a network of :func:`with_margins`.

    Args:
        bounder: The network and the image, its groups in the order of the domain.
        parts: Most groups that change.
    """
    operations, scope = bounder.layers.operations, bounder.scope
    spans = torch.zeros(len(scope.positions), 4, dtype=torch.int64, device=scope.positions.device)
    local = Local(
        {0: bounder.layers.reach[0]} if 0 in bounder.layers.reach else {},
        (0,),
        (1, 1),
        (0, 0),
        {0: operations[0].shape},
    )
    if scope.pixels is not None:
        width = scope.shape[2]
        real = scope.pixels < scope.shape[1] * width
        for column, place in ((0, scope.pixels // width), (2, scope.pixels % width)):
            spans[:, column] = place.masked_fill(~real, scope.low.numel()).amin(1)
            spans[:, column + 1] = place.masked_fill(~real, -1).amax(1)
        local = make_local(bounder.layers)
    plain = tuple(_plain(operation) for operation in operations)
    positive = {p: absolute(o, with_constants=False) for p, o in enumerate(operations) if o.kind in LINEAR}
    heads = {p: found for p in local.exits if p in local.reach and (found := _dense_readers(operations, p))}
    return Forward(bounder, local, plain, positive, heads, spans, parts)


def _dense_readers(operations: tuple[Operation, ...], position: int) -> tuple[int, ...]:
    """The dense layers that read a map, flattened, if nothing else does."""
    flat = [p for p, o in enumerate(operations) if position in o.inputs]
    if not all(operations[p].kind == "reshape" and len(operations[p].shape) == 1 for p in flat):
        return ()
    dense = [p for p, o in enumerate(operations) if set(flat) & set(o.inputs)]
    if not all(operations[p].kind == "linear" and len(operations[p].shape) == 1 for p in dense):
        return ()
    return tuple(dense) if len(operations) - 1 not in flat else ()


def _plain(operation: Operation) -> Operation:
    tensors = {k: v for k, v in operation.tensors.items() if k in ("weight", "scale")}
    attributes = {**operation.attributes, "value": 0.0} if operation.kind == "pad" else operation.attributes
    return replace(operation, tensors=tensors, attributes=attributes)


def near(forward: Forward, first: Tensor, second: Tensor) -> Tensor:
    """Whether an operation that is not linear may see pixels of both of two groups before the layers add up."""
    a, b = forward.spans[first], forward.spans[second]
    result = torch.ones(first.shape, dtype=torch.bool, device=a.device)
    for d in (0, 1):
        gap = torch.maximum(b[..., 2 * d] - a[..., 2 * d + 1], a[..., 2 * d] - b[..., 2 * d + 1])
        result &= gap < forward.local.sight[d]
    return result


@dataclass(frozen=True)
class Items:
    """Values that change together: positions ``[items, values]``, and their ranges as differences from the image."""

    positions: Tensor
    low: Tensor
    high: Tensor
    spans: Tensor  # [items, 4]

    def __getitem__(self, rows: Tensor) -> "Items":
        return Items(self.positions[rows], self.low[rows], self.high[rows], self.spans[rows])


@torch.no_grad()
def box_margins(forward: Forward, groups: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Lower bounds of the least margin over boxes, round-off taken off.

    Args:
        forward: The network and the image.
        groups: int64 ``[boxes, t]``.
        low: float64 ``[boxes, t, width]``, smallest values minus those of the image; 0 in columns that are not used.
        high: Likewise the largest.

    Returns:
        float64 ``[boxes]``; NaN never turns into a number.
    """
    bounds = [low.new_empty(0)]
    for start, stop in parts_of(len(groups), _box_bytes(forward, low[0].numel() if len(low) else 1), forward):
        part = slice(start, stop)
        bounds.append(least_margins(forward, through(forward, carry(forward, groups[part], low[part], high[part]))))
    return torch.cat(bounds)


def least_margins(forward: Forward, found: Mapping[int, Forms]) -> Tensor:
    """The least margins ``[batch]`` from forms of the margins' changes, round-off taken off; NaN stays."""
    values = found[len(forward.plain) - 1]
    margins = values.low + forward.own - forward.slack(-1)
    finite = torch.isfinite(values.low).all(1) & torch.isfinite(values.high).all(1)
    return margins.amin(1).where(finite, math.nan)


def parts_of(count: int, each: int, forward: Forward) -> Iterator[tuple[int, int]]:
    """First and last number of each part of so many things that take so many bytes each."""
    step = max(1, forward.bounder.memory // each)
    for start in range(0, count, step):
        yield start, min(count, start + step)


def _box_bytes(forward: Forward, variables: int) -> int:
    ends = sum(math.prod(forward.plain[p].shape) for p in forward.ends)
    return 8 * 2 * COPIES * (1 + variables) * max(ends, forward.widest)


def carry(forward: Forward, groups: Tensor, low: Tensor, high: Tensor) -> dict[int, Forms]:
    """Forms of whole maps where the windows end (``Forward.ends``), of the groups' clusters together.

    Args:
        forward: As for :func:`box_margins`, likewise the others.
        groups: Groups of each box.
        low: Ends of their ranges.
        high: Likewise.
    """
    boxes, t, width = low.shape
    positions, spans = forward.bounder.scope.positions[groups], forward.spans[groups]
    shapes = {p: forward.plain[p].shape for p in forward.ends}
    lower, upper = (
        {p: low.new_zeros(boxes, 1 + t * width, math.prod(shape)) for p, shape in shapes.items()} for _ in range(2)
    )
    if 0 not in forward.local.reach:  # no image, so the input is all there is
        blank = low.new_zeros(boxes, 1 + t * width, math.prod(shapes[0]) + 1)
        place, middle, half = positions.flatten(1), ((low + high) / 2).flatten(1), ((high - low) / 2).flatten(1)
        blank[:, 0].scatter_(1, place, middle)
        rows, columns = torch.arange(boxes, device=place.device), 1 + torch.arange(t * width, device=place.device)
        blank[rows[:, None], columns, place] = half
        lower[0] = upper[0] = blank[:, :, :-1]
        return {0: _forms(lower[0], upper[0], shapes[0])}
    for members, rows in _clusters(forward, groups):
        chosen = list(members)
        items = Items(
            positions[rows][:, chosen].flatten(1),
            low[rows][:, chosen].flatten(1),
            high[rows][:, chosen].flatten(1),
            _joined(spans[rows][:, chosen]),
        )
        columns = torch.tensor(
            [0, *(1 + place * width + value for place in chosen for value in range(width))], device=low.device
        )
        for some, view, found in carry_items(forward, items):
            for position, (below, above) in found.items():
                for layer in forward.heads.get(position, ()):
                    plain, positive = forward.plain[layer], forward.positive[layer]
                    middle = contracted(view, position, plain, (below + above) / 2)
                    half = contracted(view, position, positive, (above - below) / 2)
                    ends = middle - half, middle + half
                    for total, part in zip((lower, upper), ends, strict=True):
                        total[layer][rows[some][:, None], columns] += part
                if position in forward.heads:
                    continue
                index = whole_index(view, position, shapes[position])[:, None].expand(-1, len(columns), -1)
                for total, part in ((lower, below), (upper, above)):
                    target = total[position]
                    own = target.new_zeros(len(some), len(columns), target.shape[2] + 1)
                    own.scatter_(2, index, part.flatten(2))
                    target[rows[some][:, None], columns] += own[:, :, :-1]
    return {p: _forms(lower[p], upper[p], shape) for p, shape in shapes.items()}


def _forms(lower: Tensor, upper: Tensor, shape: tuple[int, ...]) -> Forms:
    """Flat forms ``[batch, columns, values]`` as forms of a shape, with their own ends."""
    least, most = _ends(lower, upper)
    return Forms(
        *(x.reshape(*x.shape[:2], *shape) for x in (lower, upper)), *(x.view(-1, *shape) for x in (least, most))
    )


def _ends(lower: Tensor, upper: Tensor) -> Ends:
    """The least and the largest values of forms over the box."""
    return lower[:, 0] - lower[:, 1:].abs().sum(1), upper[:, 0] + upper[:, 1:].abs().sum(1)


def contracted(view: View, position: int, layer: Operation, x: Tensor) -> Tensor:
    """A dense layer that reads a flattened map, on windows of it.

    Args:
        view: Where the windows are.
        position: Of the map.
        layer: The dense layer.
        x: ``[batch, columns, C, rows, columns]``.

    Returns:
        ``[batch, columns, out]``.
    """
    shape = view.local.shapes[position]
    weight = F.pad(layer.tensors["weight"].T, (0, 0, 0, 1))  # nothing for what is outside of the map
    flat, index = x.flatten(2), whole_index(view, position, shape)
    corners, which = torch.stack([view.top, view.left], 1).unique(dim=0, return_inverse=True)
    if len(corners) * FEW > len(x):
        step = max(1, CONTRACTED // (index.shape[1] * weight.shape[1]))
        parts = [torch.bmm(a, weight[b]) for a, b in zip(flat.split(step), index.split(step), strict=True)]
        return torch.cat(parts)
    result = x.new_empty(len(x), x.shape[1], weight.shape[1])
    order = which.argsort(stable=True)
    for rows in order.split(which.bincount().tolist()):
        result[rows] = flat[rows] @ weight[index[rows[0]]]
    return result


def whole_index(view: View, position: int, shape: tuple[int, ...]) -> Tensor:
    """Places of windows in the flattened map; one past the end for what is outside of it."""
    window = view.window(position)
    inside = window.plane(shape)[1].repeat(1, shape[0])
    return window.index(shape).masked_fill(~inside, math.prod(shape))


def _joined(spans: Tensor) -> Tensor:
    return torch.stack([spans[..., 0].amin(1), spans[..., 1].amax(1), spans[..., 2].amin(1), spans[..., 3].amax(1)], 1)


def _clusters(forward: Forward, groups: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Places of groups that are near each other, or near through others, and the rows where they are a cluster."""
    t = groups.shape[1]
    joined = near(forward, groups[:, :, None].expand(-1, -1, t), groups[:, None].expand(-1, t, -1))
    joined |= torch.eye(t, dtype=torch.bool, device=groups.device)
    for _ in range(t.bit_length()):
        joined = (joined[:, :, :, None] & joined[:, None]).any(2)
    for size in range(1, t + 1):
        for members in itertools.combinations(range(t), size):
            wanted = torch.tensor([place in members for place in range(t)], device=groups.device)
            rows = (joined[:, members[0]] == wanted).all(1).nonzero()[:, 0]
            if len(rows):
                yield members, rows


def carry_items(
    forward: Forward, items: Items, wanted: Collection[int] = ()
) -> Iterator[tuple[Tensor, View, dict[int, Ends]]]:
    """Lower and upper forms in windows, batch by batch.

    Args:
        forward: The network and the image.
        items: What changes.
        wanted: Of which operations; default where the windows end.

    Yields:
        Rows of the items, their windows, forms by position.
    """
    for some, view in views(forward, items.spans, 2 * (1 + items.positions.shape[1])):
        yield some, view, _windows(forward, view, items[some], wanted or forward.local.exits)


def views(forward: Forward, spans: Tensor, columns: int) -> Iterator[tuple[Tensor, View]]:
    """Windows around pixels, those of one size together, as many at a time as fit the memory.

    Args:
        forward: The network.
        spans: int64 ``[items, 4]``, first and last row, first and last column.
        columns: Numbers that are carried for each value.

    Yields:
        Rows of the items, and their windows.
    """
    local = forward.local
    corners = [spans[:, 2 * d] // local.period[d] * local.period[d] for d in (0, 1)]
    extents = torch.stack([spans[:, 2 * d + 1] + 1 - corners[d] for d in (0, 1)], 1)
    kinds, group = extents.unique(dim=0, return_inverse=True)
    for number, (height, width) in enumerate(kinds.tolist()):
        rows = (group == number).nonzero()[:, 0]
        one = View(local, corners[0][rows[:1]], corners[1][rows[:1]], (height, width))
        for start, stop in parts_of(len(rows), 8 * COPIES * columns * one.values(forward.plain), forward):
            some = rows[start:stop]
            yield some, View(local, corners[0][some], corners[1][some], (height, width))


def _windows(forward: Forward, view: View, items: Items, wanted: Collection[int]) -> dict[int, Ends]:
    shape = forward.bounder.scope.shape
    _, size = view.layout(0)
    place = place_of(view, items.positions, shape)
    count, variables = items.positions.shape
    start = items.low.new_zeros(count, 1 + variables, shape[0] * math.prod(size) + 1)
    start[:, 0].scatter_(1, place, (items.low + items.high) / 2)
    columns = 1 + torch.arange(variables, device=place.device)
    start[torch.arange(count, device=place.device)[:, None], columns, place] = (items.high - items.low) / 2
    begin = start[:, :, :-1].reshape(count, 1 + variables, shape[0], *size)
    values: dict[int, Ends] = {0: (begin, begin)}
    for position, operation in enumerate(forward.plain):
        if not position or position not in view.local.reach:
            continue
        sources = [values[source] for source in operation.inputs]
        if operation.kind in LINEAR:
            lower, upper = _linear(
                sources,
                lambda *x, o=operation, p=position: map_window(view, o, p, *x),
                lambda *x, p=position: map_window(view, forward.positive[p], p, *x),
            )
        else:
            lower, upper = _bent_window(forward, view, operation, position, sources[0])
        inside = view.window(position).plane(operation.shape)[1]
        inside = inside.view(count, 1, 1, *lower.shape[3:])
        values[position] = (lower.where(inside, 0.0), upper.where(inside, 0.0))
    return {p: values[p] for p in wanted}


def _linear(sources: list[Ends], plain: Callable[..., Tensor], positive: Callable[..., Tensor]) -> Ends:
    """A linear operation: the middle by its weights, half of the distance by its absolute weights."""
    middle = plain(*((lower + upper) / 2 for lower, upper in sources))
    half = positive(*((upper - lower) / 2 for lower, upper in sources))
    return middle - half, middle + half


def _bent_window(forward: Forward, view: View, operation: Operation, position: int, forms: Ends) -> Ends:
    """An operation that is not linear, in windows."""
    source = operation.inputs[0]
    shape, out = forward.plain[source].shape, view.window(position)
    read = read_window(view, source, operation, position)
    lower, upper = (aligned(view, source, operation, position, x) for x in forms)
    here, inside = read.index(shape), read.plane(shape)[1].repeat(1, shape[0])
    table = forward.tables(source)
    before, most, slack = (kind[here].view(-1, *lower.shape[2:]) for kind in table)
    after = forward.bounder.own[position].flatten()[out.index(operation.shape)]
    if operation.kind == "max_pool":
        outside = ~inside.view(before.shape)
        before, most = before.masked_fill(outside, -math.inf), most.masked_fill(outside, math.inf)
        operation = replace(operation, attributes={**operation.attributes, "padding": (0, 0)})
    low, high = _ranges(_ends(lower, upper), before, most, slack)
    lower, upper = _bend(make_lines(operation, low, high), (lower, upper), before, after)
    return tuple(x.view(*x.shape[:2], operation.shape[0], *out.size) for x in (lower, upper))  # type: ignore[return-value]


def _ranges(ends: Ends, before: Tensor, most: Tensor, slack: Tensor) -> Ends:
    """The range of an operation's input, moved outwards by what rounding can cause."""
    low, high = before + ends[0] - slack, before + ends[1] + slack
    # NaN must not be replaced by a limit.
    return torch.where(low < -most, -most, low), torch.where(high > most, most, high)


def _bend(lines: Relaxation, forms: Ends, before: Tensor, after: Tensor) -> Ends:
    """Forms behind two lines; all but the columns are flattened."""
    lower, upper = (x.flatten(2) for x in forms)
    own = before.flatten(1).expand(len(lower), -1)
    if lines.index is not None:
        own = own.gather(1, lines.index)
        index = lines.index[:, None].expand(-1, lower.shape[1], -1)
        lower, upper = lower.gather(2, index), upper.gather(2, index)
    (below, shift_below), (above, shift_above) = lines.lower, lines.upper
    ends = []
    for slope, shift, (same, other) in ((below, shift_below, (lower, upper)), (above, shift_above, (upper, lower))):
        result = same * slope.clamp(min=0)[:, None]
        if bool((slope < 0).any()):
            result = result + other * slope.clamp(max=0)[:, None]
        result[:, 0] += slope * own + shift - after.flatten(1)
        ends.append(result)
    return ends[0], ends[1]


def through(forward: Forward, values: dict[int, Forms], wanted: Collection[int] = ()) -> dict[int, Forms]:
    """Carry forms of whole maps on.

    Args:
        forward: The network and the image.
        values: What is known so far, by position; used up.
        wanted: Where to; the margins for none.

    Returns:
        By position.
    """
    operations = forward.plain
    targets = set(wanted) or {len(operations) - 1}
    needed = set(targets)
    for position in range(len(operations) - 1, 0, -1):
        if position in needed and position not in values:
            needed.update(operations[position].inputs)
    for position in sorted(needed - set(values)):
        operation = operations[position]
        if position in forward.local.reach:
            continue
        sources = [values[source] for source in operation.inputs]
        kind = _whole_linear if operation.kind in LINEAR else _whole_bent
        values[position] = kind(forward, operation, position, sources)
        later = {s for p in needed if p > position for s in operations[p].inputs} | targets
        for source in set(values) - later:
            del values[source]
    return {position: values[position] for position in targets}


def _whole_linear(forward: Forward, operation: Operation, position: int, sources: list[Forms]) -> Forms:
    def runner(kind: Operation) -> Callable[..., Tensor]:
        def run(*inputs: Tensor) -> Tensor:
            found = run_operation(kind, *(x.flatten(0, 1) for x in inputs))
            return found.view(*inputs[0].shape[:2], *found.shape[1:])

        return run

    plain, positive = runner(operation), runner(forward.positive[position])
    lower, upper = _linear([(s.lower, s.upper) for s in sources], plain, positive)
    low, high = _linear([(s.low[:, None], s.high[:, None]) for s in sources], plain, positive)
    least, most = _ends(lower, upper)
    return Forms(lower, upper, torch.maximum(low[:, 0], least), torch.minimum(high[:, 0], most))


def _whole_bent(forward: Forward, operation: Operation, position: int, sources: list[Forms]) -> Forms:
    (source,), (forms,) = operation.inputs, sources
    shape = forward.plain[source].shape
    before, most, slack = (kind[:-1].view(1, *shape) for kind in forward.tables(source))
    after = forward.bounder.own[position][None]
    low, high = _ranges((forms.low, forms.high), before, most, slack)
    lower, upper = _bend(make_lines(operation, low, high), (forms.lower, forms.upper), before, after)
    first, last = curve_interval(operation, low, high)
    lower, upper = (x.view(*x.shape[:2], *operation.shape) for x in (lower, upper))
    room = forward.slack(position)
    least, most = _ends(lower, upper)
    return Forms(lower, upper, torch.maximum(first - after - room, least), torch.minimum(last - after + room, most))
