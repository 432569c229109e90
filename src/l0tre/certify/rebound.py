"""Margins of a network over the regions of a certificate, bounded a second time: simple, in float64, on its own.

Every region is bounded by backward linear propagation: a linear form of a layer is rewritten, layer by layer, as a
linear form of the input that is nowhere larger, and that form is minimised exactly over the region. Linear operations
are transposed by differentiating the operation itself; the others are enclosed between two lines.

Rounding: the network is a function of real numbers, the bounds are float64. Two magnitudes follow each value through
the network: ``limit``, which its absolute value never exceeds, and ``terms``, which the sum of the absolute values of
all products in any linear form of it never exceeds. A form is a nesting of sums, with ``length`` products in all sums
on the way to the input together at most, so what is computed lies within about ``length * terms * 2**-53`` of the exact
result. ``slack`` is 32 times that; every bound is moved outwards by it. For the lines: the slopes of an operation are
at most ``gain``, its intercepts at most ``2 * gain * limit + offset``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.check_lines import Lines, make_lines
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, Node, run, run_node

__all__ = ["Bounder", "Spread", "lower_margins", "make_bounder", "own_margin"]

LINEAR = frozenset(
    ("conv", "linear", "scale", "reshape", "transpose", "pad", "mean", "avg_pool", "add", "sub", "concat")
)
UNIT = 2.0**-53
SAFETY = 32.0

Range = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Spread:
    """Regions of inputs: from each of some lists of groups, as many different groups as its count take other values.

    Attributes:
        positions: int64 ``[regions, lists, groups, width]``, positions in the flattened input; the number of input
            values where nothing is.
        low: float64, likewise, smallest value minus that of the image; 0 where nothing is.
        high: float64, likewise, largest value minus that of the image.
        listed: bool ``[regions, lists, groups]``, whether there is a group.
        count: int64 ``[regions, lists]``, how many groups of the list change.
    """

    positions: Tensor
    low: Tensor
    high: Tensor
    listed: Tensor
    count: Tensor


@dataclass(frozen=True)
class Bounder:
    """A network, an image and magnitudes for the round-off, ready for :func:`lower_margins`.

    Attributes:
        nodes: The network in float64.
        image: float64 ``[values]``.
        at_zero: The value of every linear operation for inputs of zeros, float64 ``[values]``; empty for the others.
        limit: For every node, float64 ``shape``: the largest absolute value that it takes in the domain.
        slack: For every node, float64 ``shape``: how far computed bounds can be off.
        memory: Bytes that one step may take, approximately.
    """

    nodes: tuple[Node, ...]
    image: Tensor
    at_zero: tuple[Tensor, ...]
    limit: tuple[Tensor, ...]
    slack: tuple[Tensor, ...]
    memory: int


@torch.no_grad()
def make_bounder(graph: Graph, image: Tensor, domain: Domain, device: torch.device, memory: int) -> Bounder:
    """Prepare a network for bounding.

    Args:
        graph: The network in float64.
        image: float32, of the domain's shape, inside the domain.
        domain: What may change.
        device: Where to compute.
        memory: Bytes that one step may take, approximately.

    Raises:
        CertificateError: If the network has an operation that cannot be bounded or numbers that are not finite.
    """
    nodes = graph.to(device, torch.float64).nodes
    largest = torch.maximum(domain.low.abs(), domain.high.abs()).to(device, torch.float64).reshape(nodes[0].shape)
    limits, at_zero = [largest], [torch.empty(0, device=device)]
    # The value at the image, and twice the limit for its distance from the ends of the range.
    terms, length = [3 * largest], float(largest.numel())
    slacks = [UNIT * SAFETY * (length + 64) * terms[0]]
    for node in nodes[1:]:
        sources = node.inputs
        length += _length(node, nodes)
        if node.op in LINEAR:
            zeros = [torch.zeros_like(limits[source])[None] for source in sources]
            at_zero.append(run_node(node, *zeros).flatten())
            absolute = _absolute(node, with_constants=True)
            limit, term = (run_node(absolute, *(m[s][None] for s in sources))[0] for m in (limits, terms))
        else:
            gain, offset = _steepness(node)
            at_zero.append(torch.empty(0, device=device))
            limit, term = limits[sources[0]], terms[sources[0]] + 2 * limits[sources[0]]
            if node.op == "max_pool":
                limit, term = (run_node(node, m[None])[0] for m in (limit, term))
            limit, term = gain * limit + offset, gain * term + offset
        limits.append(limit)
        terms.append(term)
        slacks.append(UNIT * SAFETY * (length + 64) * term)
        if not bool(torch.isfinite(slacks[-1]).all()):
            raise CertificateError(
                f"operation {node.name or node.op} has weights or values that are not finite: nothing can be proved "
                "about this network"
            )
    flat = image.to(device, torch.float64).flatten()
    return Bounder(nodes, flat, tuple(at_zero), tuple(limits), tuple(slacks), memory)


def _steepness(node: Node) -> tuple[float, float]:
    """The gain and the offset of an operation's lines, as the module's docstring says."""
    if node.op in ("relu", "max_pool"):
        return 1.0, 0.0
    if node.op == "leaky_relu" and node.number("slope") >= 0:
        return max(1.0, node.number("slope")), 0.0
    if node.op == "clip":
        return 2.0, 6 * sum(abs(v) for v in (node.number("low"), node.number("high")) if math.isfinite(v))
    if node.op in ("sigmoid", "tanh"):
        return 1.0, 4.0
    name = f"{node.op} ({node.name})" if node.name else node.op
    raise CertificateError(f"operation {name} cannot be bounded: certificates are for networks without it")


def _length(node: Node, nodes: tuple[Node, ...]) -> float:
    """Most products in the sums that an operation adds to a form, forwards or backwards."""
    size = math.prod(node.shape) + len(node.inputs)
    if node.op in ("conv", "linear"):
        weight = node.tensors["weight"]
        return size + weight.numel() / weight.shape[0] + weight.numel() / weight.shape[1]
    return size + max(math.prod(nodes[source].shape) for source in node.inputs)


def _absolute(node: Node, *, with_constants: bool) -> Node:
    """A linear operation with the absolute values of its weights, with or without those of its constant terms."""
    tensors = {k: v.abs() for k, v in node.tensors.items() if with_constants or k not in ("bias", "shift")}
    attributes = dict(node.attributes)
    if node.op == "pad":
        attributes["value"] = abs(node.number("value")) if with_constants else 0.0
    return replace(node, op="add" if node.op == "sub" else node.op, tensors=tensors, attributes=attributes)


@torch.no_grad()
def own_margin(bounder: Bounder, label: int) -> float:
    """Lower bound of the label's margin at the image itself, in scores."""
    x = bounder.image.reshape(1, *bounder.nodes[0].shape)
    scores = run(Graph(bounder.nodes), x)[0]
    gaps = scores[label] - scores - bounder.slack[-1] - bounder.slack[-1][label]
    gaps[label] = math.inf
    return float(gaps.min())


@torch.no_grad()
def lower_margins(bounder: Bounder, spread: Spread, label: int) -> Tensor:
    """Lower bounds of ``score[label] - score[c]``, the smallest over the other classes ``c``, over regions.

    Args:
        bounder: The network and the image.
        spread: The regions, on the bounder's device.
        label: The decision to keep.

    Returns:
        float64 ``[regions]``, in scores, round-off taken off; NaN never turns into a number.
    """
    nodes = bounder.nodes
    ranges, lines = [_hull(bounder, spread)], dict[int, Lines]()
    refined = set[int]()
    finite = torch.ones_like(spread.count[:, 0], dtype=torch.bool)
    for position, node in enumerate(nodes[1:], start=1):
        if node.op in LINEAR:
            low, high = _interval(node, [ranges[source] for source in node.inputs])
        else:
            source = node.inputs[0]
            if source not in refined:
                ranges[source] = _refined(bounder, spread, lines, source, ranges[source], node)
                refined.add(source)
            lines[position] = make_lines(node, *ranges[source])
            low, high = (run_node(node, end) for end in ranges[source])
        finite &= torch.isfinite(low).flatten(1).all(1) & torch.isfinite(high).flatten(1).all(1)
        most = bounder.limit[position] + bounder.slack[position]
        low = torch.maximum(low - bounder.slack[position], -most)
        ranges.append((low, torch.minimum(high + bounder.slack[position], most)))
    classes = math.prod(nodes[-1].shape)
    forms = -torch.eye(classes, dtype=torch.float64, device=bounder.image.device)
    forms[:, label] += 1
    others = [c for c in range(classes) if c != label]
    regions = len(spread.count)
    owner = torch.arange(regions, device=forms.device).repeat_interleave(len(others))
    parts = [
        _lower(bounder, spread, lines, len(nodes) - 1, forms[others].repeat(regions, 1)[piece], owner[piece])
        for piece in _pieces(bounder, spread, len(owner))
    ]
    slack = bounder.slack[-1].flatten()
    least = (torch.cat(parts).reshape(regions, -1) - slack[others] - slack[label]).amin(1)
    return least.where(finite, math.nan)


def _hull(bounder: Bounder, spread: Spread) -> Range:
    """The smallest box around every region, float64 ``[regions, *input_shape]`` twice."""
    flat = spread.positions.flatten(1)
    start = bounder.image.new_zeros(len(flat), len(bounder.image) + 1)
    ends = (start.scatter(1, flat, end.flatten(1))[:, :-1] + bounder.image for end in (spread.low, spread.high))
    low, high = (end.reshape(-1, *bounder.nodes[0].shape) for end in ends)
    return low - bounder.slack[0], high + bounder.slack[0]


def _interval(node: Node, ranges: list[Range]) -> Range:
    centre = run_node(node, *((low + high) / 2 for low, high in ranges))
    radius = run_node(_absolute(node, with_constants=False), *((high - low) / 2 for low, high in ranges))
    return centre - radius, centre + radius


def _refined(
    bounder: Bounder, spread: Spread, lines: dict[int, Lines], position: int, rough: Range, reader: Node
) -> Range:
    """The range of a node's values by backward propagation, where its reader's lines depend on it."""
    low, high = (end.flatten(1).clone() for end in rough)
    slack = bounder.slack[position].flatten()
    wide = high - low > 8 * slack
    if reader.op in ("relu", "leaky_relu"):
        wide &= (low < 0) & (high > 0)
    owner, place = wide.nonzero(as_tuple=True)
    for piece in _pieces(bounder, spread, len(owner)):
        rows, values = owner[piece], place[piece]
        form = low.new_zeros(len(rows), low.shape[1]).scatter(1, values[:, None], 1.0)
        below = _lower(bounder, spread, lines, position, form, rows) - slack[values]
        above = slack[values] - _lower(bounder, spread, lines, position, -form, rows)
        low[rows, values] = torch.maximum(low[rows, values], below)
        high[rows, values] = torch.minimum(high[rows, values], above)
    return low.reshape(rough[0].shape), high.reshape(rough[1].shape)


def _pieces(bounder: Bounder, spread: Spread, rows: int) -> Iterator[slice]:
    """Parts of the rows of linear forms that fit the memory."""
    widest = max(*(math.prod(node.shape) for node in bounder.nodes), spread.positions[:1].numel())
    step = max(1, bounder.memory // (8 * 12 * widest))
    return (slice(start, start + step) for start in range(0, rows, step))


def _lower(
    bounder: Bounder, spread: Spread, lines: dict[int, Lines], position: int, form: Tensor, owner: Tensor
) -> Tensor:
    """Minima of linear forms of one node's values, round-off not taken off.

    Args:
        bounder: The network and the image.
        spread: The regions.
        lines: Lines of all operations below ``position`` that are not linear.
        position: Whose values the forms are of.
        form: float64 ``[rows, values]``.
        owner: int64 ``[rows]``, the region of each form.

    Returns:
        float64 ``[rows]``.
    """
    total, pending = form.new_zeros(len(form)), {position: form}
    for place in range(position, 0, -1):
        if place not in pending:
            continue
        node, row = bounder.nodes[place], pending.pop(place)
        if node.op in LINEAR:
            total = total + row @ bounder.at_zero[place]
            steps = _transposed(node, bounder.nodes, row)
        else:
            line, up, down = lines[place], row.clamp(min=0), row.clamp(max=0)
            total = total + (up * line.lower[1][owner] + down * line.upper[1][owner]).sum(1)
            step = up * line.lower[0][owner] + down * line.upper[0][owner]
            if line.index is not None:
                blank = row.new_zeros(len(row), math.prod(bounder.nodes[node.inputs[0]].shape))
                step = blank.scatter_add(1, line.index[owner], step)
            steps = [step]
        for source, part in zip(node.inputs, steps, strict=True):
            pending[source] = pending[source] + part if source in pending else part
    gradient = pending[0] if 0 in pending else form.new_zeros(len(form), len(bounder.image))
    return total + gradient @ bounder.image + _least(spread, gradient, owner)


def _transposed(node: Node, nodes: tuple[Node, ...], row: Tensor) -> list[Tensor]:
    """A linear form of an operation's output as forms of its inputs, ``[rows, values]`` each."""
    zeros = [row.new_zeros(len(row), *nodes[source].shape) for source in node.inputs]
    back = torch.func.vjp(lambda *inputs: run_node(node, *inputs), *zeros)[1]
    return [gradient.flatten(1) for gradient in back(row.reshape(len(row), *node.shape))]


def _least(spread: Spread, gradient: Tensor, owner: Tensor) -> Tensor:
    """Minimum of ``gradient * (x - image)`` over the region of each row, ``[rows]``."""
    positions = spread.positions[owner]
    slopes = F.pad(gradient, (0, 1)).gather(1, positions.flatten(1)).reshape(positions.shape)
    drops = torch.minimum(slopes * spread.low[owner], slopes * spread.high[owner]).sum(3)
    drops = drops.where(spread.listed[owner], math.inf)
    most = min(int(spread.count.max()), drops.shape[2])
    best = drops.topk(most, 2, largest=False).values if most > 1 else drops.amin(2, keepdim=True)
    taken = torch.arange(most, device=best.device) < spread.count[owner][:, :, None]
    return best.where(taken, 0.0).sum((1, 2))
