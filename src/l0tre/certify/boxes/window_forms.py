"""AffineForms carried through windows: from a cluster of changed pixels to the first dense layer."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from l0tre.certify.boxes.affine_forms import AffineForms, bend, pool
from l0tre.certify.boxes.forward_forms import Forms, Own, rounded, select
from l0tre.certify.boxes.forward_forms import bend as bend_parallel
from l0tre.certify.boxes.grouped_products import in_groups
from l0tre.certify.boxes.rounding import ELEMENT, TINY, sum_unit
from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.supported import absolute, curve_bounds, is_nonlinear, plain
from l0tre.locality.local_part import LocalPlan, Span, local_place, need, plan_local, selects, spans
from l0tre.locality.pair_interactions import is_chain
from l0tre.locality.windows import Box, convolve_window, patches, shifted, sums_products
from l0tre.model.graph import Operation, run_operation

__all__ = [
    "Items",
    "LocalNetwork",
    "WindowSite",
    "carry",
    "dense",
    "dense_values",
    "gather_dense",
    "item_bytes",
    "make_local",
    "make_prefix",
    "spread",
    "stages",
]


@dataclass(frozen=True)
class LocalNetwork:
    """The part of a network where changes stay in windows.

    Attributes:
        plan: That part, in float64.
        plain: The network's operations without constants, as differences go through them.
        positive: The same with the absolute values of their weights.
        slack: For every position the largest error that rounding can cause.
        units: What rounding adds to a linear operation's outputs, see ``rounding.sum_unit``; 0 for any other.
        sight: Height and width of the largest window of the input that a neuron of that part sees: two pixels that are
            as far apart are never seen together.
        flat: Whether the dense layer after the windows gives the scores.
        boxes: Windows worked out already.
        pace: Seconds that the last first_pass of each level took for an image.
    """

    plan: LocalPlan
    plain: tuple[Operation, ...]
    positive: tuple[Operation, ...]
    slack: tuple[float, ...]
    units: tuple[float, ...]
    sight: tuple[int, int]
    flat: bool
    boxes: dict[tuple[int, int, int, int], tuple[Box, ...]] = field(default_factory=dict, repr=False)
    pace: dict[int, float] = field(default_factory=dict, repr=False)

    @property
    def meeting(self) -> float:
        """The share of pairs of pixels that a neuron can see together, at the most."""
        sizes = zip(self.sight, self.plan.graph.input_shape[1:], strict=True)
        return math.prod(min(1.0, (2 * sight - 1) / size) for sight, size in sizes)

    def windows(self, phase: tuple[int, int], size: tuple[int, int]) -> tuple[Box, ...]:
        """What a box of pixels reaches at every position up to the cut, its first pixel at the phase."""
        key = (*phase, *size)
        if key not in self.boxes:
            rows, columns = (
                spans(self.plan.graph, self.plan.cut, Span(first, first + length - 1), axis)
                for axis, (first, length) in enumerate(zip(phase, size, strict=True))
            )
            self.boxes[key] = tuple(zip(rows, columns, strict=True))
        return self.boxes[key]


@dataclass(frozen=True)
class Items:
    """Clusters of changed pixels, each with a box of values.

    Attributes:
        image: int64 ``[items]``, row of the instance's images.
        members: int64 ``[items, pixels, width]``, the values that change; one past the last value for none.
        low: float64 ``[items, pixels, width]``, their smallest values.
        high: Their largest values.
    """

    image: Tensor
    members: Tensor
    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.image)

    def pick(self, rows: Tensor) -> "Items":
        """Some of them, int64 ``[rows]``."""
        return Items(self.image[rows], self.members[rows], self.low[rows], self.high[rows])


def make_local(plan: Plan) -> LocalNetwork | None:
    """The local part of a network, or ``None`` if it has none that a dense layer follows."""
    if len(plan.graph.input_shape) != 3:
        return None
    # However much of the last map a pixel reaches: what the dense layer reads still adds up where windows do not meet.
    local = plan_local(plan.graph, {"linear": 1.0, "mean": 0.0, "map": 0.0})
    if (
        isinstance(local, str)
        or local.head != "linear"
        or not is_chain(local)
        or any(place not in plan.receptive_fields for place in range(local.cut + 1))
        or any(
            selects(operation) for operation in local.graph.operations[local.tail :]
        )  # its forms are those of windows
    ):
        return None
    return _local_network(plan, local)


def make_prefix(plan: Plan, most_share: float) -> LocalNetwork | None:
    """The part of a network where a pixel reaches at most a share of every map, or ``None`` if there is none."""
    if len(plan.graph.input_shape) != 3:
        return None
    local = plan_local(plan.graph, dict.fromkeys(("linear", "mean", "map"), most_share))
    if isinstance(local, str) or any(place not in plan.receptive_fields for place in range(local.cut + 1)):
        return None
    return _local_network(plan, local)


def _local_network(plan: Plan, local: LocalPlan) -> LocalNetwork:
    sizes = [plan.receptive_fields[place].size for place in range(local.cut + 1)]
    return LocalNetwork(
        local,
        tuple(plain(operation) for operation in plan.graph.operations),
        tuple(absolute(operation) for operation in plan.graph.operations),
        # AffineForms are added and subtracted more often than the rows that the plan's errors are meant for.
        tuple(4 * float(slack.max()) for slack in plan.slack),
        tuple(
            0.0 if not place or is_nonlinear(operation) else sum_unit(plan, place)
            for place, operation in enumerate(plan.graph.operations)
        ),
        (max(size[0] for size in sizes), max(size[1] for size in sizes)),
        local.tail == len(plan.graph.operations),
    )


def item_bytes(local: LocalNetwork, variables: int, size: tuple[int, int]) -> int:
    """Memory that one item and its copies take, about."""
    operations = local.plan.graph.operations
    windows = local.windows((0, 0), size)
    widest = max(operations[place].shape[0] * box[0].size * box[1].size for place, box in enumerate(windows))
    widest = max(widest, dense_values(local, windows[-1]) // 2)
    return 8 * widest * (8 * (1 + variables) + 16)


def dense_values(local: LocalNetwork, box: Box) -> int:
    """How many numbers :func:`dense` holds for each column of one item."""
    operations = local.plan.graph.operations
    channels, features = operations[local.plan.cut].shape[0], operations[local.plan.tail - 1].shape[0]
    return (channels + features) * box[0].size * box[1].size


def carry(local: LocalNetwork, instance: Instance, items: Items, heads: tuple[Tensor, Tensor]) -> AffineForms:
    """Carry clusters to the dense layer after the windows.

    Args:
        local: The network.
        instance: The images.
        items: Clusters whose pixels span boxes of one size, at one phase of the stride.
        heads: For every image a number of its weights, int64 ``[images]``, and all weights float64
            ``[kinds, H, W, C, features]``.

    Returns:
        AffineForms of the dense layer's outputs, ``[items, 1 + variables, features]``.
    """
    site, values = stages(local, instance, items)
    return dense(site, values[local.plan.cut], heads)


def stages(
    local: LocalNetwork,
    instance: Instance,
    items: Items,
    *,
    keep: bool = False,
    upto: int | None = None,
    drift: Mapping[int, Tensor] | None = None,
    extent: tuple[int, int] | None = None,
) -> tuple["WindowSite", dict[int, AffineForms]]:
    """Carry clusters to the cut, or to an operation before it.

    Args:
        local: The network.
        instance: The images.
        items: See :func:`carry`.
        keep: Whether to give the forms of all positions, rather than those of the last one alone.
        upto: The last position; default the cut.
        extent: Rows and columns of the box around the pixels of each item, if not of the smallest one.
        drift: How far the images' own values are off, see ``rounding.drifts``. Lines below and above are then parallel
            and rounding is in the errors, as in ``forward_forms``: a radius has one column.

    Returns:
        Where the items are, and the forms by position, ``[items, 1 + variables, C, rows, columns]`` in its window.
    """
    forms, top, left, size = _seed(local, instance, items, extent)
    if drift is not None:
        most = torch.maximum(items.low.abs(), items.high.abs()).flatten(1).amax(1)
        most = 2 * most + instance.images[items.image].abs().amax(1)
        reached = (forms.centre != 0).any(1, keepdim=True)
        forms = AffineForms(forms.centre, ELEMENT * most.view(-1, 1, 1, 1, 1) * reached)
    stride = local.plan.stride
    phase = (int(top[0]) % stride, int(left[0]) % stride)
    windows = local.windows(phase, size)
    last = local.plan.graph.last_use()
    site = WindowSite(local, instance, items.image, (top // stride, left // stride), windows, drift)
    values = {0: forms}
    for place in range(1, (local.plan.cut if upto is None else upto) + 1):
        operation = local.plan.graph.operations[place]
        if all(span.size for span in windows[place]):
            values[place] = _through(site, place, operation, [values[source] for source in operation.inputs])
        else:  # strides that are longer than kernels step over these pixels
            sizes = (operation.shape[0], *(span.size for span in windows[place]))
            values[place] = AffineForms(
                *(part.new_zeros(*part.shape[:2], *sizes) for part in (forms.centre, forms.radius))
            )
        for source in set(operation.inputs):
            if last[source] == place and not keep:
                del values[source]
    return site, values


def _seed(
    local: LocalNetwork, instance: Instance, items: Items, extent: tuple[int, int] | None
) -> tuple[AffineForms, Tensor, Tensor, tuple[int, int]]:
    """The changes at the input, in a box around the pixels, and where that begins."""
    channels, height, width = local.plan.graph.input_shape
    real = items.members < instance.values
    plane = torch.where(real, items.members, 0) % (height * width)
    y, x = plane // width, plane % width
    far = height + width
    top, left = (torch.where(real, part, far).flatten(1).amin(1) for part in (y, x))
    bottom, right = (torch.where(real, part, -1).flatten(1).amax(1) for part in (y, x))
    size = extent or (int(bottom[0] - top[0]) + 1, int(right[0] - left[0]) + 1)
    own = torch.nn.functional.pad(instance.images, (0, 1))[items.image[:, None, None], items.members]
    middle, half = (items.low + items.high) / 2, (items.high - items.low) / 2
    count, variables = len(items), items.members[0].numel()
    centre = instance.images.new_zeros(count, 1 + variables, channels * size[0] * size[1])
    index = (items.members // (height * width) * size[0] + y - top[:, None, None]) * size[1] + x - left[:, None, None]
    index = torch.where(real, index, 0).flatten(1)
    shift, half = (torch.where(real, part, 0.0).flatten(1) for part in (middle - own, half))
    centre[:, 0].scatter_add_(1, index, shift)
    centre[:, 1:].scatter_add_(2, index[:, :, None], half[:, :, None])
    centre = centre.view(count, 1 + variables, channels, *size)
    return AffineForms(centre, torch.zeros_like(centre)), top, left, size


@dataclass(frozen=True)
class WindowSite:
    """Where a batch of items is: how many strides from home, and the windows at home."""

    local: LocalNetwork
    instance: Instance
    image: Tensor
    steps: tuple[Tensor, Tensor]
    windows: tuple[Box, ...]
    drift: Mapping[int, Tensor] | None = None
    known: dict[tuple[int, tuple[int, ...], Box], tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)

    def places(self, place: int, box: Box) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows ``[items, rows, 1]`` and columns ``[items, 1, columns]`` on a map, clamped, and what lies outside it."""
        plan = self.local.plan
        pace, (height, width) = plan.stride // plan.strides[place], plan.graph.operations[place].shape[1:]
        key = (pace, (height, width), box)
        if key not in self.known:
            rows, columns = (
                step[:, None] * pace + torch.arange(span.first, span.last + 1, device=step.device)
                for step, span in zip(self.steps, box, strict=True)
            )
            outside = ((rows < 0) | (rows >= height))[:, :, None] | ((columns < 0) | (columns >= width))[:, None]
            mask = outside if bool(outside.any()) else None
            self.known[key] = rows.clamp_(0, height - 1)[:, :, None], columns.clamp_(0, width - 1)[:, None], mask
        return self.known[key]

    def own(self, place: int, box: Box, fill: float = 0.0) -> Tensor:
        """The image's own values in a window, ``[items, C, rows, columns]``."""
        return self.cut_out(self.instance.base[place], self.image, place, box, fill)

    def off(self, place: int, box: Box) -> Tensor:
        """How far they can be from the true ones, likewise."""
        assert self.drift is not None
        return self.cut_out(self.drift[place], self.image, place, box)

    def cut_out(self, maps: Tensor, which: Tensor, place: int, box: Box, fill: float = 0.0) -> Tensor:
        """Windows of maps ``[maps, C, H, W]`` of a position, ``[items, C, rows, columns]``, each of its own map."""
        rows, columns, outside = self.places(place, box)
        channels, _, width = maps.shape[1:]
        plane = (rows * width + columns).flatten(1)
        index = plane[:, None] + torch.arange(channels, device=plane.device)[:, None] * maps[0, 0].numel()
        found = maps.flatten(1).flatten()[index + (which * maps[0].numel())[:, None, None]]
        found = found.view(len(rows), channels, rows.shape[1], columns.shape[2])
        return found if outside is None else found.masked_fill_(outside[:, None], fill)

    def inside(self, place: int, forms: AffineForms) -> AffineForms:
        """No difference outside the map: there is nothing there."""
        return AffineForms(self.clear(place, forms.centre), self.clear(place, forms.radius))

    def clear(self, place: int, value: Tensor) -> Tensor:
        """The same for numbers ``[items, columns, C, rows, columns]`` in a window."""
        outside = self.places(place, self.windows[place])[2]
        return value if outside is None else value.masked_fill_(outside[:, None, None], 0.0)


def _through(site: WindowSite, place: int, operation: Operation, sources: Sequence[AffineForms]) -> AffineForms:
    local, box, source = site.local, site.windows[place], operation.inputs[0]
    origins = [site.windows[origin] for origin in operation.inputs]

    def moved(number: int, wanted: Box) -> AffineForms:
        forms = sources[number]
        return AffineForms(*(shifted(part, origins[number], wanted) for part in (forms.centre, forms.radius)))

    if curve_bounds(operation) is not None:
        before = site.own(source, box)
        after = run_operation(operation, before)
        if site.drift is not None:
            own = Own(before, after, site.off(source, box), site.off(place, box))
            return _enclosed(site, place, operation, bend_parallel, moved(0, box), own)
        return site.inside(place, bend(operation, moved(0, box), before, after, local.slack[source]))
    wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
    if selects(operation):
        before, after = site.own(source, wanted, float("-inf")), site.own(place, box)
        if site.drift is not None:
            sizes = (before.shape[1], box[0].size, box[1].size)
            laid = replace(operation, shape=sizes, attributes={**operation.attributes, "padding": (0, 0)})
            own = Own(before, after, site.off(source, wanted), site.off(place, box))
            return _enclosed(site, place, laid, select, moved(0, wanted), own)
        result = pool(operation, moved(0, wanted), before, after, local.slack[source], (box[0].size, box[1].size))
        return site.inside(place, result)
    radius = sources[0].radius
    if site.drift is not None:
        radius = rounded(Forms(sources[0].centre, radius[:, 0]), local.units[place])[:, None]
    kinds = ((operation, sources[0].centre), (local.positive[place], radius))
    if sums_products(operation):
        parts = [
            convolve_window(local.plan, kind, part[:, :, None], origins[0], wanted, box)[:, :, 0]
            for kind, part in kinds
        ]
    else:
        parts = [patches(kind, shifted(part, origins[0], wanted)[:, :, None])[:, :, 0] for kind, part in kinds]
    forms = AffineForms(parts[0], parts[1] if site.drift is None else parts[1] + TINY)
    return site.inside(place, forms) if local_place(operation).spills else forms


def _enclosed(
    site: WindowSite,
    place: int,
    operation: Operation,
    enclose: Callable[[Operation, Forms, Own], Forms],
    forms: AffineForms,
    own: Own,
) -> AffineForms:
    """Go through an operation between parallel lines."""
    found = enclose(operation, Forms(forms.centre, forms.radius[:, 0]), own)
    return site.inside(place, AffineForms(found.linear, found.error[:, None]))


def spread(site: WindowSite, place: int, forms: AffineForms) -> AffineForms:
    """Whole maps ``[items, columns, C, height, width]`` from what is known in windows: elsewhere nothing changes."""
    rows, columns, _ = site.places(place, site.windows[place])
    channels, height, width = site.local.plan.graph.operations[place].shape
    plane = (rows * width + columns).flatten(1)[:, None, None]
    found = []
    for part in (forms.centre, forms.radius):
        whole = part.new_zeros(*part.shape[:2], channels, height * width)
        # Outside the map there are zeros, which may be added anywhere.
        whole.scatter_add_(3, plane.expand(-1, part.shape[1], channels, -1), part.flatten(3))
        found.append(whole.view(*part.shape[:2], channels, height, width))
    return AffineForms(*found)


def dense(site: WindowSite, forms: AffineForms, heads: tuple[Tensor, Tensor]) -> AffineForms:
    """The dense layer."""
    centre, radius = gather_dense(site, ((forms.centre, False), (forms.radius, True)), heads)
    return AffineForms(centre, radius)


def gather_dense(
    site: WindowSite, parts: Sequence[tuple[Tensor, bool]], heads: tuple[Tensor, Tensor]
) -> tuple[Tensor, ...]:
    """What every position of the windows adds to the dense layer, grouped by position, so that weights are read once.

    Args:
        site: Where the items are.
        parts: Numbers ``[items, columns, C, rows, columns]`` in the window of the cut, each with the weights or, if so
            marked, with their absolute values.
        heads: See :func:`carry`.

    Returns:
        For each part ``[items, columns, features]``.
    """
    (kinds, weights), count = heads, len(site.image)
    features = weights.shape[-1]
    if not parts[0][0].numel():
        return tuple(part.new_zeros(*part.shape[:2], features) for part, _ in parts)
    rows, columns, _ = site.places(site.local.plan.cut, site.windows[-1])
    # Outside the map any weight will do: there is no change.
    position = (kinds[site.image][:, None, None] * weights.shape[1] + rows) * weights.shape[2] + columns
    position = position.flatten()  # [items * h * w]
    groups, area = in_groups(position, weights[..., 0, 0].numel()), len(position) // count
    item, offset, where = groups.slots // area, groups.slots % area, groups.where.view(count, area)
    matrix = weights.flatten(0, 2)[position[groups.first]]  # [batches, C, features]
    found = []
    for part, positive in parts:
        entries = part.flatten(3)[item, :, :, offset]  # [batches, length, columns, C]
        product = torch.bmm(entries.flatten(1, 2), matrix.abs() if positive else matrix)
        product = product.view(-1, part.shape[1] * features)
        total = torch.nn.functional.embedding_bag(where, product, mode="sum")
        found.append(total.view(count, -1, features))
    return tuple(found)
