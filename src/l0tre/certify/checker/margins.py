"""Margins of a network over the regions of a certificate, bounded a second time: simple, in float64, on its own.

Every region is bounded by backward linear propagation: a linear form of a layer's difference from its values at the
image is rewritten, layer by layer, as a form of the input that is nowhere larger, and that form is minimised exactly
over the region. Linear operations are transposed by differentiating the operation itself; the others are enclosed
between two lines.

Rounding: the network is a function of real numbers, the bounds are float64. Two magnitudes follow each value through
the network: ``limit``, which its absolute value never exceeds, and ``terms``, which the sum of the absolute values of
all products in any linear form of it never exceeds. A form is a nesting of sums, with ``length`` products in all sums
on the way to the input together at most, so what is computed lies within about ``length * terms * 2**-53`` of the exact
result. ``slack`` is 32 times that; every bound is moved outwards by it. Products below ``2**-1022`` are off by up to
``2**-1022`` whatever their size: so no ``limit`` or ``terms`` counts as smaller than ``LEAST``, and for underflow in
the coefficients of a form ``2**-1000`` of all limits together is added. For the lines: the slopes of an operation are
at most ``gain``, its intercepts at most ``2 * gain * limit + offset``, its own value at most ``gain * limit + offset``,
so its gaps at most ``4 * gain * limit + 2 * offset``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.checker.curves import CURVES, curve_range, gain_of
from l0tre.certify.checker.layers import Layers, make_layers
from l0tre.certify.checker.lines import Around, around, make_lines
from l0tre.certify.checker.minimum import Boxes, Cells, Scope, Spread, least, make_scope
from l0tre.certify.checker.rows import carry, carry_windows
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, Operation, run_operation

__all__ = [
    "LINEAR",
    "Bounder",
    "absolute",
    "curve_interval",
    "lower_margins",
    "make_bounder",
    "own_margin",
    "steepness",
]

LINEAR = frozenset(
    ("conv", "linear", "scale", "reshape", "transpose", "pad", "mean", "avg_pool", "add", "sub", "concat", "slice")
)
UNIT = 2.0**-53
SAFETY = 32.0
LEAST = 2.0**-950
UNDERFLOW = 2.0**-1000
COPIES = 12  # of a row that are held at a time

Range = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Bounder:
    """A network, an image and magnitudes for the round-off, ready for :func:`lower_margins`.

    Attributes:
        layers: The network in float64.
        scope: What may change, around the image.
        own: For every operation, float64 ``shape``: its values at the image.
        limit: For every operation, float64 ``shape``: the largest absolute value that it takes in the domain.
        slack: For every operation, float64 ``shape``: how far computed bounds can be off.
        memory: Bytes that one step may take, approximately.
    """

    layers: Layers
    scope: Scope
    own: tuple[Tensor, ...]
    limit: tuple[Tensor, ...]
    slack: tuple[Tensor, ...]
    memory: int

    @property
    def values(self) -> int:
        """Number of values of all operations together."""
        return sum(tensor.numel() for tensor in self.own)


@torch.no_grad()
def make_bounder(
    graph: Graph, image: Tensor, domain: Domain, order: Tensor, device: torch.device, memory: int
) -> Bounder:
    """Prepare a network for bounding.

    Args:
        graph: The network in float64.
        image: float32, of the domain's shape, inside the domain.
        domain: What may change.
        order: int64 ``[groups]``, the groups in the order of the certificate's tree.
        device: Where to compute.
        memory: Bytes that one step may take, approximately.

    Raises:
        CertificateError: If the network has an operation that cannot be bounded or numbers that are not finite.
    """
    operations = graph.to(device, torch.float64).operations
    largest = torch.maximum(domain.low.abs(), domain.high.abs()).to(device, torch.float64).reshape(operations[0].shape)
    own = [image.to(device, torch.float64).reshape(operations[0].shape)]
    # The value at the image, and twice the limit for its distance from the ends of the range.
    largest = largest.clamp(min=LEAST)
    limits, terms, length = [largest], [3 * largest], float(largest.numel())
    slacks = [UNIT * SAFETY * (length + 64) * terms[0]]
    together = largest.sum()
    for operation in operations[1:]:
        sources = operation.inputs
        length += _length(operation, operations)
        if operation.kind in LINEAR:
            positive = absolute(operation, with_constants=True)
            limit, term = (run_operation(positive, *(m[s][None] for s in sources))[0] for m in (limits, terms))
        else:
            gain, offset = steepness(operation)
            limit, term = limits[sources[0]], terms[sources[0]] + 4 * limits[sources[0]]
            if operation.kind == "max_pool":
                limit, term = (run_operation(operation, m[None])[0] for m in (limit, term))
            limit, term = gain * limit + offset, gain * term + 2 * offset
        own.append(run_operation(operation, *(own[source][None] for source in sources))[0])
        limits.append(limit.clamp(min=LEAST))
        terms.append(term.clamp(min=LEAST))
        together = together + terms[-1].sum()
        slacks.append((length + 64) * (UNIT * SAFETY * terms[-1] + UNDERFLOW * together))
        if not bool(torch.isfinite(slacks[-1]).all()):
            raise CertificateError(
                f"operation {operation.name or operation.kind} has weights or values that are not finite: nothing can "
                "be proved about this network"
            )
    scope = make_scope(domain, order, own[0].flatten())
    return Bounder(make_layers(operations), scope, tuple(own), tuple(limits), tuple(slacks), memory)


def steepness(operation: Operation) -> tuple[float, float]:
    """The gain and the offset of an operation's lines, as the module's docstring says."""
    if operation.kind in ("relu", "max_pool"):
        return 1.0, 0.0
    if operation.kind == "leaky_relu" and operation.number("slope") >= 0:
        return max(1.0, operation.number("slope")), 0.0
    if operation.kind == "clip":
        return 2.0, 6 * sum(abs(v) for v in (operation.number("low"), operation.number("high")) if math.isfinite(v))
    if operation.kind in ("sigmoid", "tanh"):
        return 1.0, 4.0
    curve = gain_of(operation)
    if curve is not None:
        return curve[0], 4 * curve[1]
    name = f"{operation.kind} ({operation.name})" if operation.name else operation.kind
    raise CertificateError(f"operation {name} cannot be bounded: certificates are for networks without it")


def _length(operation: Operation, operations: tuple[Operation, ...]) -> float:
    """Most products in the sums that an operation adds to a form, forwards or backwards."""
    size = math.prod(operation.shape) + len(operation.inputs)
    if operation.kind in ("conv", "linear"):
        weight = operation.tensors["weight"]
        return size + weight.numel() / weight.shape[0] + weight.numel() / weight.shape[1]
    return size + max(math.prod(operations[source].shape) for source in operation.inputs)


def absolute(operation: Operation, *, with_constants: bool) -> Operation:
    """A linear operation with the absolute values of its weights, with or without those of its constant terms."""
    tensors = {k: v.abs() for k, v in operation.tensors.items() if with_constants or k not in ("bias", "shift")}
    if with_constants:  # a constant that was summed from others counts with their absolute values
        tensors.update({k.removesuffix("_terms"): v for k, v in tensors.items() if k.endswith("_terms")})
    attributes = dict(operation.attributes)
    if operation.kind == "pad":
        attributes["value"] = abs(operation.number("value")) if with_constants else 0.0
    return replace(
        operation, kind="add" if operation.kind == "sub" else operation.kind, tensors=tensors, attributes=attributes
    )


@torch.no_grad()
def own_margin(bounder: Bounder, label: int) -> float:
    """Lower bound of the label's margin at the image itself, in scores."""
    scores = bounder.own[-1]
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
    touching = _lower_margins(bounder, spread, label, touching=True)
    if not _changes(bounder.scope, spread):
        return touching
    # Relaxation that touch at the image's own values, or those that are closer over the whole range: both are bounds.
    return torch.maximum(touching, _lower_margins(bounder, spread, label, touching=False))


def _lower_margins(bounder: Bounder, spread: Spread, label: int, *, touching: bool) -> Tensor:
    operations, changes = bounder.layers.operations, _changes(bounder.scope, spread)
    ranges, lines = [_hull(bounder, spread)], dict[int, Around]()
    finite = torch.ones(len(spread), dtype=torch.bool, device=bounder.own[0].device)
    for position, operation in enumerate(operations[1:], start=1):
        if operation.kind in LINEAR:
            low, high = _interval(operation, [ranges[source] for source in operation.inputs])
        else:
            source = operation.inputs[0]
            if not any(source in operations[place].inputs for place in lines):
                ranges[source] = _refined(bounder, spread, lines, source, ranges[source], changes)
            own = bounder.own[source] if touching and changes and position in bounder.layers.reach else None
            lines[position] = around(
                make_lines(operation, *ranges[source], own), bounder.own[source], bounder.own[position]
            )
            low, high = curve_interval(operation, *ranges[source])
        finite &= torch.isfinite(low).flatten(1).all(1) & torch.isfinite(high).flatten(1).all(1)
        most = bounder.limit[position] + bounder.slack[position]
        low = torch.maximum(low - bounder.slack[position], -most)
        ranges.append((low, torch.minimum(high + bounder.slack[position], most)))
    scores, slack = bounder.own[-1].flatten(), bounder.slack[-1].flatten()
    others = [c for c in range(len(scores)) if c != label]
    forms = -torch.eye(len(scores), dtype=torch.float64, device=scores.device)[others]
    forms[:, label] = 1
    parts = [torch.empty(0, len(others), dtype=torch.float64, device=scores.device)]
    step = _step(bounder, len(operations) - 1, len(others))
    for start in range(0, len(spread), step):
        some, part = slice(start, start + step), spread[start : start + step]
        form = carry(
            bounder.layers,
            len(operations) - 1,
            forms.repeat(len(part), 1, 1),
            {p: a[some] for p, a in lines.items()},
            changes,
        )
        parts.append(least(bounder.scope, part, form))
    margins = torch.cat(parts) + scores[label] - scores[others] - slack[others] - slack[label]
    return margins.amin(1).where(finite, math.nan)


def _changes(scope: Scope, spread: Spread) -> int:
    """Most pixels that change, where regions hold the image and the input has pixels; else 0."""
    if isinstance(spread, Boxes) or scope.pixels is None:
        return 0
    return int(spread.count.sum(1).max()) * scope.pixels.shape[1]


def _hull(bounder: Bounder, spread: Spread) -> Range:
    """The smallest box around every region, float64 ``[regions, *input_shape]`` twice."""
    scope, image = bounder.scope, bounder.own[0].flatten()
    if isinstance(spread, Boxes):
        blank = image.new_zeros(len(spread), len(image) + 1)
        low, high = (blank.scatter(1, spread.positions, end)[:, :-1] + image for end in (spread.low, spread.high))
    else:
        low, high = _hull_of_cells(scope, spread, image)
    shape = (-1, *bounder.own[0].shape)
    return low.reshape(shape) - bounder.slack[0], high.reshape(shape) + bounder.slack[0]


def _hull_of_cells(scope: Scope, cells: Cells, image: Tensor) -> Range:
    group = torch.arange(len(scope.positions), device=image.device)
    member = torch.zeros(len(cells), len(group), dtype=torch.bool, device=image.device)
    for start, size in zip(cells.start.T[..., None], cells.size.T[..., None], strict=True):
        member |= (group >= start) & (group < start + size)
    free = torch.zeros(len(cells), len(image) + 1, dtype=torch.bool, device=image.device)
    for column in scope.positions.T:
        # No position is in two groups; those past the end are one, of no value.
        free[:, column] = member
    return image + scope.low[:-1] * free[:, :-1], image + scope.high[:-1] * free[:, :-1]


def curve_interval(operation: Operation, low: Tensor, high: Tensor) -> Range:
    """The range after an operation that is not linear; all but the ones of ``CURVES`` never fall."""
    if operation.kind in CURVES:
        return curve_range(operation, low, high)
    return run_operation(operation, low), run_operation(operation, high)


def _interval(operation: Operation, ranges: list[Range]) -> Range:
    centre = run_operation(operation, *((low + high) / 2 for low, high in ranges))
    radius = run_operation(absolute(operation, with_constants=False), *((high - low) / 2 for low, high in ranges))
    return centre - radius, centre + radius


def _open(bounder: Bounder, position: int, low: Tensor, high: Tensor) -> Tensor:
    """Values of an operation whose lines depend on how tight their ranges are, bool ``[regions, values]``."""
    result = torch.zeros_like(low, dtype=torch.bool)
    for operation in bounder.layers.operations:
        if position not in operation.inputs or operation.kind in LINEAR:
            continue
        if operation.kind in ("relu", "leaky_relu"):
            result |= (low < 0) & (high > 0)
        elif operation.kind == "clip":
            for kink in (operation.number("low"), operation.number("high")):
                result |= (low < kink) & (high > kink)
        else:
            result |= high > low
    return result & (high - low > 8 * bounder.slack[position].flatten())


def _refined(
    bounder: Bounder, spread: Spread, lines: dict[int, Around], position: int, rough: Range, changes: int
) -> Range:
    """The range of an operation's values by backward propagation, where its readers' lines depend on it."""
    low, high = (end.flatten(1).clone() for end in rough)
    own, slack = bounder.own[position].flatten(), bounder.slack[position].flatten()
    find = _window_changes if position in bounder.layers.windowed else _whole_changes
    wide = _open(bounder, position, low, high)
    for owner, place, fall, rise in find(bounder, spread, lines, position, wide, changes):
        below, above = own[place] + fall - slack[place], own[place] - rise + slack[place]
        low[owner, place] = torch.maximum(low[owner, place], below)
        high[owner, place] = torch.minimum(high[owner, place], above)
    return low.reshape(rough[0].shape), high.reshape(rough[1].shape)


Changes = Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]


def _window_changes(
    bounder: Bounder, spread: Spread, lines: dict[int, Around], position: int, wide: Tensor, changes: int
) -> Changes:
    """Least changes of some values of a map and of their negatives: region, place, and both, part by part."""
    owner, place = wide.nonzero(as_tuple=True)
    step = _step(bounder, position, 2)
    for start in range(0, len(owner), step):
        who, where = owner[start : start + step], place[start : start + step]
        form = carry_windows(bounder.layers, position, where, who, lines, changes)
        yield who, where, *least(bounder.scope, spread[who], form).T


def _whole_changes(
    bounder: Bounder, spread: Spread, lines: dict[int, Around], position: int, wide: Tensor, changes: int
) -> Changes:
    """The same for values that see all of the input; those of a region share its lines."""
    layers, operation = bounder.layers, bounder.layers.operations[position]
    number = wide.sum(1)
    order = number.argsort(descending=True)
    start, regions = 0, int((number > 0).sum())
    while start < regions:
        # Regions with about as many open values go together, filled up with values that are not open.
        most = int(number[order[start]])
        who = order[start : min(regions, start + max(1, _step(bounder, position, 2 * most)))]
        where = wide[who].to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        picked, part = {p: a[who] for p, a in lines.items()}, spread[who]
        size = _step(bounder, position, 2 * len(who))
        for some in where.split(size, 1):
            if operation.kind == "linear" and len(operation.shape) == 1:
                begin, rows = operation.inputs[0], operation.tensors["weight"][some]
            else:
                begin, rows = position, torch.zeros(*some.shape, layers.values(position)).to(wide.device, torch.float64)
                rows.scatter_(2, some[..., None], 1.0)
            form = carry(layers, begin, torch.cat([rows, -rows], 1), picked, changes)
            fall, rise = least(bounder.scope, part, form).chunk(2, 1)
            keep = wide[who].gather(1, some)
            yield who[:, None].expand_as(some)[keep], some[keep], fall[keep], rise[keep]
        start += len(who)


def _step(bounder: Bounder, position: int, rows: int) -> int:
    """How many batch entries of so many rows, which start at one operation, fit the memory."""
    layers = bounder.layers
    if position in layers.windowed:
        height, width = layers.reach[position].size
        widest = height * width
        for place in range(position):
            if place in layers.windowed:
                seen = layers.reach[place]
                sides = [max(0, layers.reach[position].size[d] - seen.size[d]) // seen.stride[d] + 1 for d in (0, 1)]
                widest = max(widest, layers.operations[place].shape[0] * sides[0] * sides[1])
        if bounder.scope.place is None:
            widest = max(widest, layers.values(0))
    else:
        widest = max(layers.values(place) for place in range(position + 1))
    return max(1, bounder.memory // (8 * COPIES * widest * rows))
