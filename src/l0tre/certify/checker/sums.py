"""Many sets of groups at once: what single groups do adds up, but for what near ones do together.

Up to some layers the effects of groups add up: everything linear, and what is not linear as long as it sees one of
them alone. There a group's whole range is the hull of small parts of it, each bounded by forms. What is added are
ranges, and intervals carry them on to the margins.

Near groups interact. Let ``a`` and ``b`` be what either does alone to the input of an elementwise operation ``f``
whose slopes, and zero, lie in a range of length ``L``: ``f(x + a + b) - f(x + b)`` and ``f(x + a) - f(x)`` are ``a``
times such slopes, so they differ by ``L |a|`` at the most, and likewise by ``L |b|``. What operations before have
left, ``r``, adds ``L |r|``. For a maximum both lie between the least and the largest ``a`` of a patch. Absolute
weights carry such a bound on, and the sum of the ranges is widened by it where the effects add up again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.checker.clusters import COPIES, Items, carry, carry_items, contracted, views, whole_index
from l0tre.certify.checker.forms import Ends, Forms, ends_of, least_margins, through
from l0tre.certify.checker.forward import Forward, parts_of
from l0tre.certify.checker.margins import LINEAR, steepness
from l0tre.certify.checker.round_off import ELEMENT, TINY
from l0tre.certify.checker.trees import halves, whole_boxes
from l0tre.certify.checker.windows import View, aligned, map_window, read_window
from l0tre.model.graph import Operation, run_operation

__all__ = ["Effects", "Sizes", "effects_of", "frontier", "interacting_margins", "sizes_of", "sum_margins"]

RISING = ("relu", "leaky_relu", "clip", "sigmoid", "tanh", "elu", "softplus")  # slopes from 0 to the gain
ROUNDING = 1 + 2.0**-30  # sums of products that are not negative: more than all their rounding errors


@dataclass(frozen=True)
class Effects:
    """What sets of groups, single ones or near pairs, can do where effects add up.

    Attributes:
        low: By position, float64 ``[2**halvings, sets, values]``: the least difference over each part of the set's box.
        high: Likewise the largest.
    """

    low: Mapping[int, Tensor]
    high: Mapping[int, Tensor]

    def hull(self, parts: int) -> "Effects":
        """The same over fewer, wider parts: part ``p`` of ``2 m`` is a half of part ``p % m`` of ``m``."""
        low = {p: x.reshape(-1, parts, *x.shape[1:]).amin(0) for p, x in self.low.items()}
        return Effects(low, {p: x.reshape(-1, parts, *x.shape[1:]).amax(0) for p, x in self.high.items()})


def part_boxes(forward: Forward, groups: Tensor, halvings: int) -> tuple[Tensor, Tensor]:
    """Ends ``[2**halvings, sets, t, width]`` of the parts of the whole boxes of sets ``[sets, t]``."""
    low, high = whole_boxes(forward.bounder.scope, groups)
    sides, shape = high - low, low.shape
    low, high = low[None], high[None]
    for level in range(halvings):
        low, high = halves(low, high, sides, level)
        low, high = (x.reshape(-1, *shape) for x in (low, high))
    return low, high


def frontier(forward: Forward) -> tuple[int, ...]:
    """Where effects last add up: what operations read that are not linear and see everything, or the margins."""
    additive = {0, *forward.local.reach}
    for position, operation in enumerate(forward.plain):
        if operation.kind in LINEAR and position and additive.issuperset(operation.inputs):
            additive.add(position)
    last = len(forward.plain) - 1
    read = {s for p, o in enumerate(forward.plain) if p not in additive for s in o.inputs}
    return tuple(sorted((read & additive) | ({last} & additive)))


def effects_of(forward: Forward, groups: Tensor, halvings: int) -> Effects:
    """What sets of groups can do over small parts of their boxes.

    Args:
        forward: The network and the image.
        groups: int64 ``[sets, t]``.
        halvings: How often their boxes are halved.
    """
    places = frontier(forward)
    low, high = part_boxes(forward, groups, halvings)
    count = len(low)
    rows = groups.repeat_interleave(count, 0)  # parts of one set together: their windows are the same
    flat = low.transpose(0, 1).flatten(0, 1), high.transpose(0, 1).flatten(0, 1)
    found: dict[int, list[Forms]] = {place: [] for place in places}
    each = 8 * 2 * COPIES * (1 + flat[0][0].numel()) * forward.widest
    for start, stop in parts_of(len(rows), each, forward):
        part = slice(start, stop)
        for place, forms in through(forward, carry(forward, rows[part], flat[0][part], flat[1][part]), places).items():
            found[place].append(forms)

    def table(name: str) -> dict[int, Tensor]:
        return {
            p: torch.cat([getattr(x, name).flatten(1) for x in parts]).view(len(groups), count, -1).transpose(0, 1)
            for p, parts in found.items()
        }

    return Effects(table("low"), table("high"))


def sum_margins(
    forward: Forward, count: int, parts: Callable[[slice], Sequence[tuple[Effects, Tensor, Tensor]]]
) -> Tensor:
    """Lower bounds of the least margin where effects are added.

    Args:
        forward: The network and the image.
        count: How many sums there are.
        parts: For some of the sums what is added: effects, the part of the box and the set of each, int64 ``[sums]``.

    Returns:
        float64 ``[count]``.
    """
    bounds = [forward.own.new_empty(0)]
    for start, stop in parts_of(count, _sum_bytes(forward), forward):
        added = parts(slice(start, stop))
        ends = {
            place: _added([(e.low[place][p, r], e.high[place][p, r]) for e, p, r in added]) for place in added[0][0].low
        }
        bounds.append(_interval_margins(forward, ends))
    return torch.cat(bounds)


def _added(parts: Sequence[Ends]) -> Ends:
    """Sums of a few ranges, moved outwards by their rounding."""
    low, high, size = (torch.stack(x).sum(0) for x in zip(*((a, b, a.abs() + b.abs()) for a, b in parts), strict=True))
    return low - ELEMENT * size, high + ELEMENT * size


def _sum_bytes(forward: Forward) -> int:
    first = min(frontier(forward))
    return 8 * 2 * COPIES * sum(math.prod(o.shape) for p, o in enumerate(forward.plain) if p >= first)


def _interval_margins(forward: Forward, ends: Mapping[int, Ends]) -> Tensor:
    values = {}
    for place, (low, high) in ends.items():
        shape = forward.plain[place].shape
        low, high = low.view(-1, *shape), high.view(-1, *shape)
        values[place] = Forms(low[:, None], high[:, None], low, high)
    return least_margins(forward, through(forward, values))


@dataclass(frozen=True)
class Sizes:
    """How far single groups can move the inputs of operations that are not linear, in windows.

    Attributes:
        up: By position, float64 ``[groups, C, rows + 1, columns + 1]``, 0 in the last row and column.
        down: Likewise downwards, as positive numbers.
        top: By position, int64 ``[groups]``, the row of the map where the window begins.
        left: Likewise the column.
    """

    up: Mapping[int, Tensor]
    down: Mapping[int, Tensor]
    top: Mapping[int, Tensor]
    left: Mapping[int, Tensor]


def sizes_of(forward: Forward, halvings: int) -> Sizes:
    """The sizes of all groups, over small parts of their ranges."""
    operations, spans = forward.plain, forward.spans
    wanted = {o.inputs[0] for p, o in enumerate(operations) if p in forward.local.reach and p and o.kind not in LINEAR}
    groups = torch.arange(len(spans), device=spans.device)
    low, high = part_boxes(forward, groups[:, None], halvings)
    parts, flat = len(low), (low.flatten(0, 1).flatten(1), high.flatten(0, 1).flatten(1))
    positions = forward.bounder.scope.positions.repeat(parts, 1)
    items = Items(positions, *flat, spans.repeat(parts, 1))
    up, down, top, left = ({} for _ in range(4))  # type: ignore[var-annotated]
    for rows, view, found in carry_items(forward, items, wanted):
        for place, (lower, upper) in found.items():
            window = view.window(place)
            least, highest = ends_of(lower, upper)
            owner = rows % len(groups)
            owners, which = owner.unique(return_inverse=True)
            for table, most in ((up, highest), (down, -least)):
                most = most.clamp(min=0.0).nan_to_num(nan=math.inf)
                _grow(table, place, len(groups), most)
                index = which[:, None, None, None].expand_as(most)
                largest = most.new_zeros(len(owners), *most.shape[1:]).scatter_reduce_(0, index, most, "amax")
                corner = table[place][:, :, : most.shape[2], : most.shape[3]]
                corner[owners] = torch.maximum(corner[owners], largest)
            for table, begin in ((top, window.top), (left, window.left)):
                table.setdefault(place, torch.zeros_like(groups))[owner] = begin
    return Sizes(up, down, top, left)


def _grow(table: dict[int, Tensor], place: int, groups: int, part: Tensor) -> None:
    """Make room for windows of another size."""
    old = table.get(place, part.new_zeros(groups, part.shape[1], 1, 1))
    rows, columns = (max(old.shape[d], part.shape[d] + 1) for d in (2, 3))
    if (rows, columns) != tuple(old.shape[2:]):
        table[place] = part.new_zeros(groups, part.shape[1], rows, columns)
        table[place][:, :, : old.shape[2], : old.shape[3]] = old


def interacting_margins(forward: Forward, singles: Effects, sizes: Sizes, pairs: Tensor) -> Tensor:
    """Lower bounds of the least margin over the whole ranges of pairs of near groups.

    Args:
        forward: The network and the image.
        singles: Effects of all single groups over one part, their whole ranges.
        sizes: Of all groups.
        pairs: int64 ``[pairs, 2]``.

    Returns:
        float64 ``[pairs]``.
    """
    bounds = singles.low[min(singles.low)].new_full((len(pairs),), math.nan)
    spans = forward.spans[pairs]
    both = torch.stack(
        [*(f(1) for f in (spans[..., 0].amin, spans[..., 1].amax, spans[..., 2].amin, spans[..., 3].amax))], 1
    )
    for rows, view in views(forward, both, 8):
        for start, stop in parts_of(len(rows), _sum_bytes(forward) + _exit_bytes(forward), forward):
            some = rows[start:stop]
            view_ = View(view.local, view.top[start:stop], view.left[start:stop], view.extent)
            rest = _interactions(forward, view_, sizes, pairs[some])
            ends = {}
            for place in singles.low:
                low, high = (table[place][0] for table in (singles.low, singles.high))
                more = rest[place] * ROUNDING + TINY
                ends[place] = _added([*((low[one], high[one]) for one in pairs[some].T), (-more, more)])
            bounds[some] = _interval_margins(forward, ends)
    return bounds


def _exit_bytes(forward: Forward) -> int:
    return 8 * 4 * sum(math.prod(forward.plain[p].shape) for p in forward.ends)


def _interactions(forward: Forward, view: View, sizes: Sizes, pairs: Tensor) -> dict[int, Tensor]:
    """The largest interactions where effects add up, ``[pairs, values]`` by position."""
    rest: dict[int, Tensor] = {}
    for position, operation in enumerate(forward.plain):
        if not position or position not in view.local.reach:
            continue
        known = [rest[source] for source in operation.inputs if source in rest]
        if operation.kind in LINEAR:
            if not known:
                continue
            blank = [rest.get(s) for s in operation.inputs]
            parts = [
                _zeros(forward, view, s, len(pairs)) if x is None else x
                for s, x in zip(operation.inputs, blank, strict=True)
            ]
            found = map_window(view, forward.positive[position], position, *(x[:, None] for x in parts))[:, 0]
        else:
            found = _bend(view, operation, position, sizes, pairs, known)
        inside = view.window(position).plane(operation.shape)[1].view(len(pairs), 1, *found.shape[2:])
        rest[position] = found.where(inside, 0.0)
    whole: dict[int, Tensor] = {}
    for place in view.local.exits:
        shape = forward.plain[place].shape
        part = rest.get(place, _zeros(forward, view, place, len(pairs)))
        for layer in forward.heads.get(place, ()):
            whole[layer] = contracted(view, place, forward.positive[layer], part[:, None])[:, 0]
        if place not in forward.heads:
            flat = part.new_zeros(len(pairs), math.prod(shape) + 1)
            whole[place] = flat.scatter_(1, whole_index(view, place, shape), part.flatten(1))[:, :-1]
    places = frontier(forward)
    for position, operation in enumerate(forward.plain):
        sources = operation.inputs
        if position in whole or position > max(places) or operation.kind not in LINEAR:
            continue
        if sources and all(source in whole for source in sources):
            shaped = (whole[s].view(-1, *forward.plain[s].shape) for s in sources)
            whole[position] = run_operation(forward.positive[position], *shaped).flatten(1)
    return {place: whole[place] for place in places}


def _zeros(forward: Forward, view: View, position: int, count: int) -> Tensor:
    return forward.own.new_zeros(count, forward.plain[position].shape[0], *view.layout(position)[1])


def _bend(view: View, operation: Operation, position: int, sizes: Sizes, pairs: Tensor, rest: list[Tensor]) -> Tensor:
    """The largest interaction after an operation that is not linear, ``[pairs, C, rows, columns]``."""
    (source,) = operation.inputs
    window = read_window(view, source, operation, position)
    rows = torch.arange(window.size[0], device=pairs.device)
    columns = torch.arange(window.size[1], device=pairs.device)

    def alone(table: Tensor, side: int) -> Tensor:
        group = pairs[:, side]
        y = window.top[:, None] + rows - sizes.top[source][group][:, None]
        x = window.left[:, None] + columns - sizes.left[source][group][:, None]
        # The last row and column are empty.
        y, x = (
            torch.where((z >= 0) & (z < size), z, size - 1) for z, size in ((y, table.shape[2]), (x, table.shape[3]))
        )
        return table[group[:, None, None], :, y[:, :, None], x[:, None]].permute(0, 3, 1, 2)

    sides = [(alone(sizes.up[source], side), alone(sizes.down[source], side)) for side in (0, 1)]
    left = [aligned(view, source, operation, position, x) for x in rest]
    if operation.kind == "max_pool":

        def largest(x: Tensor) -> Tensor:
            keys = ("kernel", "stride", "dilation")
            kernel, stride, dilation = (operation.ints(key) for key in keys)
            return torch.nn.functional.max_pool2d(x, kernel, stride, 0, dilation)

        spread = [largest(up) + largest(down) for up, down in sides]
        return torch.minimum(*spread) + sum(largest(x) for x in left)
    moved = [torch.maximum(up, down) for up, down in sides]
    gain = 1.0 if operation.kind == "clip" else steepness(operation)[0]
    return (torch.minimum(*moved) + sum(left)) * (gain if operation.kind in RISING else 2 * gain)
