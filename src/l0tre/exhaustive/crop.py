"""Exact effects of changed pixels, computed only inside the windows that they reach.

A change is carried through the local part of the network as a difference to the original activations: a linear
operation maps differences to differences, any other one is evaluated on the window taken from the original map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.exhaustive.local import POINTWISE, LocalPlan, Span, need
from l0tre.model.graph import Node, run_node

__all__ = ["Base", "Sites", "apply_head", "base_values", "carry", "finish", "paste", "shifted"]


@dataclass(frozen=True)
class Base:
    """The unchanged images.

    Attributes:
        maps: Output of every node up to the cut, each ``[images, C, H, W]``.
        head: Output of the layer behind the cut (``linear`` or ``mean``), ``[images, ...]``; the cut's map otherwise.
    """

    maps: tuple[Tensor, ...]
    head: Tensor


@dataclass(frozen=True)
class Sites:
    """Places where the same pattern of changes is looked at; all share one phase of the stride.

    Attributes:
        steps: int64 ``[2, sites]`` on the CPU: how many strides of the cut each place is away from the pattern's
            home, along rows and columns.
        rows: Window of every node along rows, at the pattern's home.
        columns: Likewise along columns.
    """

    steps: Tensor
    rows: Mapping[int, Span]
    columns: Mapping[int, Span]

    def __len__(self) -> int:
        return int(self.steps.shape[1])

    def part(self, first: int, last: int) -> "Sites":
        """Some of the places."""
        return Sites(self.steps[:, first:last], self.rows, self.columns)

    def spans(self, place: int) -> tuple[Span, Span]:
        """Window of a node at home: rows, columns."""
        return self.rows[place], self.columns[place]


@torch.inference_mode()
def base_values(plan: LocalPlan, images: Tensor) -> Base:
    """Run the unchanged images.

    Args:
        plan: The local part.
        images: float32 ``[images, C, H, W]``.

    Returns:
        Everything that windows are taken from.
    """
    values: dict[int, Tensor] = {0: images}
    for place, node in enumerate(plan.graph.nodes[1 : plan.tail], start=1):
        values[place] = run_node(node, *(values[source] for source in node.inputs))
    return Base(tuple(values[place] for place in range(plan.cut + 1)), values[plan.tail - 1])


def carry(plan: LocalPlan, base: Base, sites: Sites, start: int, change: Tensor, upto: int | None = None) -> Tensor:
    """Carry a change from one node to the cut (or to an earlier joint).

    Args:
        plan: The local part.
        base: The unchanged images.
        sites: Where, and the windows of all nodes from ``start`` on.
        start: The joint at which the change is given.
        change: Difference to the original there, ``[images, sites, variants, C, rows, columns]``.
        upto: Where to; default the cut.

    Returns:
        The difference at that node, ``[images, sites, variants, C, rows, columns]`` in its window.
    """
    last = plan.graph.last_use()
    end = plan.cut if upto is None else upto
    values = {start: change}
    for place in range(start + 1, end + 1):
        if place not in sites.rows:
            continue
        node = plan.graph.nodes[place]
        sources = [values[source] for source in node.inputs]
        values[place] = _step(plan, base, sites, place, node, sources)
        for source in set(node.inputs):
            if last[source] == place:
                del values[source]
    return values[end]


def _step(plan: LocalPlan, base: Base, sites: Sites, place: int, node: Node, sources: Sequence[Tensor]) -> Tensor:
    first = sources[0]
    lead = first.shape[:3]
    if node.op in POINTWISE:
        before = _window(base.maps[node.inputs[0]], plan, sites, node.inputs[0], sites.spans(place))
        after = _window(base.maps[place], plan, sites, place, sites.spans(place))
        inner = shifted(first, sites.spans(node.inputs[0]), sites.spans(place))
        result = run_node(node, inner + before[:, :, None]) - after[:, :, None]
    elif node.op == "scale":
        factor = node.tensors.get("scale")
        inner = shifted(first, sites.spans(node.inputs[0]), sites.spans(place))
        result = inner if factor is None else inner * factor
    elif node.op in ("add", "sub", "concat"):
        parts = [
            shifted(value, sites.spans(source), sites.spans(place))
            for value, source in zip(sources, node.inputs, strict=True)
        ]
        if node.op == "concat":
            return torch.cat(parts, 3)
        return parts[0] + parts[1] if node.op == "add" else parts[0] - parts[1]
    elif node.op == "pad":
        wanted = (need(node, sites.rows[place], 0), need(node, sites.columns[place], 1))
        result = shifted(first, sites.spans(node.inputs[0]), wanted)
    else:
        wanted = (need(node, sites.rows[place], 0), need(node, sites.columns[place], 1))
        patch = shifted(first, sites.spans(node.inputs[0]), wanted)
        if node.op == "max_pool":
            patch = (
                patch
                + _window(base.maps[node.inputs[0]], plan, sites, node.inputs[0], wanted, float("-inf"))[:, :, None]
            )
        result = _valid(node, patch.flatten(0, 2))
        result = result.reshape(*lead, *result.shape[1:])
        if node.op == "max_pool":
            result = result - _window(base.maps[place], plan, sites, place, sites.spans(place))[:, :, None]
    return _inside(result, plan, sites, place)


def _valid(node: Node, patch: Tensor) -> Tensor:
    """A convolution or pooling of ready-made patches: no padding, no bias."""
    if node.op == "conv":
        stride, dilation = node.ints("stride"), node.ints("dilation")
        groups = int(node.number("groups"))
        return F.conv2d(patch, node.tensors["weight"], None, stride, 0, dilation, groups)
    if node.op == "max_pool":
        return F.max_pool2d(patch, node.ints("kernel"), node.ints("stride"), 0, node.ints("dilation"))
    return F.avg_pool2d(patch, node.ints("kernel"), node.ints("stride"))


def shifted(value: Tensor, now: tuple[Span, Span], wanted: tuple[Span, Span]) -> Tensor:
    """A difference known on one window, on another one: zero outside, cut where it is larger."""
    if now == wanted:
        return value
    (rows, columns), (to_rows, to_columns) = now, wanted
    return F.pad(
        value,
        (
            columns.first - to_columns.first,
            to_columns.last - columns.last,
            rows.first - to_rows.first,
            to_rows.last - rows.last,
        ),
    )


def _positions(plan: LocalPlan, sites: Sites, place: int, spans: tuple[Span, Span]) -> tuple[Tensor, Tensor]:
    """Positions on a node's map: int64 ``[sites, rows]`` and ``[sites, columns]``, on the CPU."""
    pace = plan.stride // plan.strides[place]
    rows = sites.steps[0][:, None] * pace + torch.arange(spans[0].first, spans[0].last + 1)
    columns = sites.steps[1][:, None] * pace + torch.arange(spans[1].first, spans[1].last + 1)
    return rows, columns


def _window(
    source: Tensor, plan: LocalPlan, sites: Sites, place: int, spans: tuple[Span, Span], fill: float = 0.0
) -> Tensor:
    """Windows of a map ``[n, C, H, W]`` as ``[n, sites, C, rows, columns]``; ``fill`` outside the map."""
    rows, columns = _positions(plan, sites, place, spans)
    height, width = source.shape[2:]
    inside = _mask(rows, columns, height, width)
    device = source.device
    row, column = rows.clamp(0, height - 1).to(device), columns.clamp(0, width - 1).to(device)
    # Advanced indices in the last two places give [n, C, sites, rows, columns].
    found = source[:, :, row[:, :, None], column[:, None, :]].transpose(1, 2)
    return found if inside is None else found.masked_fill(~inside.to(device)[:, None], fill)


def _mask(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor | None:
    """Which positions lie on the map, ``[sites, rows, columns]``; ``None`` if all do."""
    row, column = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    if bool(row.all()) and bool(column.all()):
        return None
    return row[:, :, None] & column[:, None, :]


def _inside(value: Tensor, plan: LocalPlan, sites: Sites, place: int) -> Tensor:
    """No difference outside the map: there is nothing there."""
    rows, columns = _positions(plan, sites, place, sites.spans(place))
    inside = _mask(rows, columns, *plan.graph.nodes[place].shape[1:])
    return value if inside is None else value.masked_fill(~inside.to(value.device)[:, None, None], 0.0)


def apply_head(plan: LocalPlan, sites: Sites, change: Tensor) -> Tensor:
    """The difference behind the cut: of the dense layer's or the mean's output.

    Args:
        plan: The local part, with a ``linear`` or ``mean`` head.
        sites: Where; the window is that of the cut.
        change: ``[images, sites, variants, C, rows, columns]``.

    Returns:
        ``[images, sites, variants, features]``.
    """
    shape = plan.graph.nodes[plan.cut].shape
    if plan.head == "mean":
        return change.sum((4, 5)) / (shape[1] * shape[2])
    weight = plan.graph.nodes[plan.tail - 1].tensors["weight"]
    window = _window(weight.reshape(-1, *shape), plan, sites, plan.cut, sites.spans(plan.cut))
    matrix = window.permute(1, 2, 3, 4, 0).flatten(1, 3)  # [sites, C * rows * columns, features]
    images, count, variants = change.shape[:3]
    rows = change.transpose(0, 1).reshape(count, images * variants, -1)
    return torch.bmm(rows, matrix).reshape(count, images, variants, -1).transpose(0, 1)


def paste(plan: LocalPlan, base: Base, sites: Sites, change: Tensor) -> Tensor:
    """The cut's whole maps with the change added.

    Args:
        plan: The local part.
        base: The unchanged images.
        sites: Where; the window is that of the cut.
        change: ``[images, sites, variants, C, rows, columns]``.

    Returns:
        ``[images, sites, variants, C, H, W]``.
    """
    rows, columns = _positions(plan, sites, plan.cut, sites.spans(plan.cut))
    height, width = plan.graph.nodes[plan.cut].shape[1:]
    top, left = max(0, -int(rows.min())), max(0, -int(columns.min()))
    tall = top + max(height, int(rows.max()) + 1)
    wide = left + max(width, int(columns.max()) + 1)
    images, count, variants, channels = change.shape[:4]
    # Windows may hang over the edge, where the change is zero: paste on a larger sheet and cut it back.
    sheet = torch.zeros(count, tall, wide, images, variants, channels, device=change.device)
    site = torch.arange(count)[:, None, None].to(change.device)
    row, column = (rows + top).to(change.device), (columns + left).to(change.device)
    sheet[site, row[:, :, None], column[:, None, :]] = change.permute(1, 4, 5, 0, 2, 3)
    full = sheet[:, top : top + height, left : left + width].permute(3, 0, 4, 5, 1, 2)
    return full + base.maps[plan.cut][:, None, None]


def finish(plan: LocalPlan, head: Tensor) -> Tensor:
    """Run the rest of the network.

    Args:
        plan: The local part.
        head: Output of the head (or the cut's whole map), ``[rows, ...]`` in the shape of that node.

    Returns:
        Scores, ``[rows, classes]``.
    """
    values = {plan.tail - 1: head}
    for place, node in enumerate(plan.graph.nodes[plan.tail :], start=plan.tail):
        values[place] = run_node(node, *(values[source] for source in node.inputs))
    return values[len(plan.graph.nodes) - 1]
