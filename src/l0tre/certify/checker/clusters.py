"""Boxes of a few values: groups that no operation sees together are carried by themselves, each in its window.

Where the windows end everything adds up, so the forms of all clusters of groups are added there; after that, whole
maps go on.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.forms import (
    Bend,
    Ends,
    Forms,
    bend,
    ends_of,
    least_margins,
    linear,
    loosened,
    ranges_of,
    through,
)
from l0tre.certify.checker.forward import Forward, near, parts_of
from l0tre.certify.checker.margins import LINEAR
from l0tre.certify.checker.windows import View, aligned, map_window, place_of, read_window
from l0tre.model.graph import Operation

__all__ = ["COPIES", "Items", "box_margins", "carry", "carry_items", "contracted", "views", "whole_index"]

COPIES = 6  # of what is carried that are held at a time
FEW = 4  # windows with the same corner, from which on they share the weights that they meet
CONTRACTED = 2**24  # numbers of weights that are gathered at a time


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
        place, (middle, half) = positions.flatten(1), _middles(low.flatten(1), high.flatten(1))
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
                    plain, positive = (
                        partial(contracted, view, position, kind)
                        for kind in (forward.plain[layer], forward.positive[layer])
                    )
                    ends = linear([(below, above)], plain, positive, forward.units[layer])
                    for total, part in zip((lower, upper), loosened(*ends), strict=True):
                        total[layer][rows[some][:, None], columns] += part
                if position in forward.heads:
                    continue
                index = whole_index(view, position, shapes[position])[:, None].expand(-1, len(columns), -1)
                for total, part in zip((lower, upper), loosened(below, above), strict=True):
                    target = total[position]
                    own = target.new_zeros(len(some), len(columns), target.shape[2] + 1)
                    own.scatter_(2, index, part.flatten(2))
                    target[rows[some][:, None], columns] += own[:, :, :-1]
    return {p: _forms(lower[p], upper[p], shape) for p, shape in shapes.items()}


def _middles(low: Tensor, high: Tensor) -> Ends:
    """Middles of ranges and half of their widths, with room for rounding."""
    return (low + high) / 2, (high - low) / 2 + 2.0**-51 * (low.abs() + high.abs())


def _forms(lower: Tensor, upper: Tensor, shape: tuple[int, ...]) -> Forms:
    """Flat forms ``[batch, columns, values]`` as forms of a shape, with their own ends."""
    least, most = ends_of(lower, upper)
    return Forms(
        *(x.reshape(*x.shape[:2], *shape) for x in (lower, upper)), *(x.view(-1, *shape) for x in (least, most))
    )


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
    middle, half = _middles(items.low, items.high)
    start[:, 0].scatter_(1, place, middle)
    columns = 1 + torch.arange(variables, device=place.device)
    start[torch.arange(count, device=place.device)[:, None], columns, place] = half
    begin = start[:, :, :-1].reshape(count, 1 + variables, shape[0], *size)
    values: dict[int, Ends] = {0: (begin, begin)}
    for position, operation in enumerate(forward.plain):
        if not position or position not in view.local.reach:
            continue
        sources = [values[source] for source in operation.inputs]
        if operation.kind in LINEAR:
            lower, upper = linear(
                sources,
                lambda *x, o=operation, p=position: map_window(view, o, p, *x),
                lambda *x, p=position: map_window(view, forward.positive[p], p, *x),
                forward.units[position],
            )
        else:
            lower, upper = _bent_window(forward, view, operation, position, sources[0])
        inside = view.window(position).plane(operation.shape)[1]
        inside = inside.view(count, 1, 1, *lower.shape[3:])
        values[position] = (lower.where(inside, 0.0), upper.where(inside, 0.0))
    return {p: values[p] for p in wanted}


def _bent_window(forward: Forward, view: View, operation: Operation, position: int, forms: Ends) -> Ends:
    """An operation that is not linear, in windows."""
    source = operation.inputs[0]
    shape, out = forward.plain[source].shape, view.window(position)
    read = read_window(view, source, operation, position)
    lower, upper = (aligned(view, source, operation, position, x) for x in forms)
    here, inside = read.index(shape), read.plane(shape)[1].repeat(1, shape[0])
    before, most, drift = (kind[here].view(-1, *lower.shape[2:]) for kind in forward.tables(source))
    there = out.index(operation.shape)
    after, moved = (kind.flatten()[there] for kind in (forward.bounder.own[position], forward.drift[position]))
    if operation.kind == "max_pool":
        outside = ~inside.view(before.shape)
        before, most = before.masked_fill(outside, -math.inf), most.masked_fill(outside, math.inf)
        operation = replace(operation, attributes={**operation.attributes, "padding": (0, 0)})
    low, high = ranges_of(ends_of(lower, upper), before, most, drift)
    lower, upper = bend(operation, Bend(low, high, before, drift, after, moved), (lower, upper))
    return tuple(x.view(*x.shape[:2], operation.shape[0], *out.size) for x in (lower, upper))  # type: ignore[return-value]
