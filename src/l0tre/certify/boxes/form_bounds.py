"""Margins of box nodes by forward forms, on any graph.

Each set of groups is carried alone, group by group, up to the last joint where its effects add up; a group with the
same values is in many sets and is carried once. From there the sum goes on through whole layers, and the margins' rows
come to meet it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forms, Forward, add, carry, item_bytes
from l0tre.certify.boxes.joints import Joint, apart, extents, find_joints
from l0tre.certify.boxes.rounding import ELEMENT, drifts
from l0tre.certify.boxes.single_tables import SingleTables
from l0tre.certify.boxes.tail import MarginErrors, Tail, lower_margins, make_margin_errors, make_tail, products
from l0tre.certify.boxes.window_forms import Items, LocalNetwork, spread, stages
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.instance import Instance

__all__ = ["FormInstance", "form_bounds", "make_form_instance", "seeds_of"]


@dataclass(frozen=True)
class FormInstance:
    """Images ready for bounds by forward forms.

    Attributes:
        forward: The network.
        joints: Where effects of groups add up, the input first.
        tail: Its last layers.
        windows: Its first layers, where pixels alone are carried in windows; none if groups are not pixels.
        instance: The images.
        extents: Where each slot's group lies, see ``joints.extents``.
        drift: How far the images' own values are off, see ``rounding.drifts``.
        errors: What that can do to margins.
        budget: Bytes for what is carried together.
        singles: Forms of single groups, for the sets that they are in.
    """

    forward: Forward
    joints: tuple[Joint, ...]
    tail: Tail
    windows: LocalNetwork | None
    instance: Instance
    extents: Tensor
    drift: dict[int, Tensor]
    errors: MarginErrors
    budget: int
    singles: SingleTables


def make_form_instance(
    forward: Forward, windows: LocalNetwork | None, instance: Instance, budget: int, room: int
) -> FormInstance:
    """Prepare images.

    Args:
        forward: The network.
        windows: Its first layers, where pixels alone are carried in windows.
        instance: The images.
        budget: Bytes for what is carried together.
        room: Bytes for forms of single groups that are kept.
    """
    tail = make_tail(forward.plan, instance.rows.shape[1])
    joints = find_joints(forward.plan, tail.start)  # forms are wanted there, so they are added there at the latest
    drift = drifts(forward.plan, instance.images, instance.base)
    errors = make_margin_errors(forward, instance, tail, drift)
    singles = SingleTables(room)
    return FormInstance(forward, joints, tail, windows, instance, extents(instance), drift, errors, budget, singles)


def form_bounds(forms: FormInstance, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins ``[nodes, rivals]``, and the coefficients of linear ones that give them.

    What rounding can cause is taken off already.

    Args:
        forms: Network and images.
        nodes: Box nodes.

    Returns:
        The bounds, and float64 ``[nodes, rivals, t * width]``, coefficients of each value's ``u`` from -1 to 1.
    """
    rivals = forms.instance.rows.shape[1]
    # What no way reaches must not look proved.
    bounds = forms.instance.images.new_full((len(nodes), rivals), math.nan)
    slopes = bounds.new_zeros(len(nodes), rivals, nodes.low[0].numel() if len(nodes) else 0)
    for way, rows in _ways(forms, nodes):
        size = item_bytes(forms.forward, 1 + nodes.low[0].numel(), way.place, forms.tail.end, forms.tail.named)
        for part in rows.split(max(1, forms.budget // size)):
            chosen = nodes.pick(part)
            together = _together(forms, way, chosen)
            values = carry(
                forms.forward,
                forms.instance,
                forms.drift,
                chosen.image,
                way.place,
                together,
                forms.tail.needed,
                forms.tail.named,
            )
            bounds[part], slopes[part] = lower_margins(
                forms.forward, forms.instance, forms.tail, forms.drift, forms.errors, chosen.image, values
            )
    return bounds, slopes


@dataclass(frozen=True)
class _Sum:
    """Groups carried alone, their effects added up at a joint."""

    place: int


@dataclass(frozen=True)
class _Cluster:
    """Pixels that lie within so many rows and columns, carried together in windows."""

    place: int
    extent: tuple[int, int]


_Way = _Sum | _Cluster


def _ways(forms: FormInstance, nodes: BoxNodes) -> Iterator[tuple[_Way, Tensor]]:
    """How nodes are carried to where they go on as whole maps: by the last joint where their effects add up."""
    every = torch.arange(len(nodes), device=nodes.image.device)
    if nodes.cells.shape[1] == 1:  # nothing is to be added up
        yield _Sum(forms.tail.start), every
        return
    groups = forms.extents[nodes.cells - forms.instance.tree.slots]
    left = torch.ones(len(nodes), dtype=torch.bool, device=nodes.image.device)
    sight: tuple[int, int] | None = None  # of the joint before, where these nodes do not add up
    for joint in reversed(forms.joints):
        own = left & apart(groups, joint.sight)
        left &= ~own
        rows = own.nonzero()[:, 0]
        if len(rows):
            yield _way(forms, joint, sight, nodes.cells.shape[1]), rows
        sight = joint.sight


def _way(forms: FormInstance, joint: Joint, sight: tuple[int, int] | None, t: int) -> _Way:
    """Whether two pixels that add up at a joint and at no later one are carried alone to it, or in windows past it."""
    windows = forms.windows
    if windows is None or sight is None or t != 2 or joint.place >= windows.plan.cut:
        return _Sum(joint.place)
    operations = forms.forward.plan.graph.operations
    boxes = windows.windows((0, 0), sight)
    alone, together = 0.0, 0.0
    for place in range(1, windows.plan.cut + 1):
        whole = products(forms.forward.plan, place)
        share = boxes[place][0].size * boxes[place][1].size / math.prod(operations[place].shape[1:])
        alone += whole if place > joint.place else 0.0
        together += whole * share
    return _Sum(joint.place) if alone < together else _Cluster(windows.plan.cut, sight)


def _together(forms: FormInstance, way: _Way, nodes: BoxNodes) -> Forms:
    """The forms of nodes where they go on as whole maps."""
    if isinstance(way, _Cluster):
        assert forms.windows is not None
        return _in_windows(forms, forms.windows, nodes, way.place, way.extent)
    alone, where = _distinct(nodes)

    def carry_alone(single: BoxNodes) -> Forms:
        found = [_alone(forms, way.place, part) for part in _singles(forms, way.place, single)]
        return Forms(torch.cat([part.linear for part in found]), torch.cat([part.error for part in found]))

    # Where nothing has bent yet forms are exact, and a group that is the whole set is in no other one.
    if way.place > forms.joints[0].place and nodes.cells.shape[1] > 1:
        table = forms.singles.joined(forms.instance, way.place, alone, carry_alone)
    else:
        table = carry_alone(alone)
    return add([table.pick(where[:, place]) for place in range(nodes.cells.shape[1])])


def _singles(forms: FormInstance, place: int, nodes: BoxNodes) -> Iterator[BoxNodes]:
    size = item_bytes(forms.forward, 1 + nodes.low[0].numel(), 0, place)
    most = max(1, forms.budget // size)
    for start in range(0, len(nodes), most):
        yield nodes.pick(slice(start, start + most))


def _alone(forms: FormInstance, end: int, nodes: BoxNodes) -> Forms:
    """Single groups, carried from the input to a position."""
    windows = forms.windows
    if windows is not None and end:
        place = max(place for place in windows.plan.joints if place <= end)
        found = _in_windows(forms, windows, nodes, place, (1, 1))
        return carry(forms.forward, forms.instance, forms.drift, nodes.image, place, found, {end})[end]
    seeds = seeds_of(forms.instance, nodes)
    return carry(forms.forward, forms.instance, forms.drift, nodes.image, 0, seeds, {end})[end]


def _in_windows(
    forms: FormInstance, local: LocalNetwork, nodes: BoxNodes, place: int, extent: tuple[int, int]
) -> Forms:
    """Pixels that lie within so many rows and columns, carried to a position in the windows that they reach together.

    Returns:
        The forms of whole maps there.
    """
    instance = forms.instance
    items = Items(nodes.image, instance.members[nodes.cells - instance.tree.slots], nodes.low, nodes.high)
    _, height, width = local.plan.graph.input_shape
    plane, stride = items.members[:, :, 0] % (height * width), local.plan.stride
    top, left = (plane // width).amin(1), (plane % width).amin(1)
    phase = top % stride * stride + left % stride
    count, shape = len(nodes), instance.plan.graph.operations[place].shape
    linear = instance.images.new_empty(count, 1 + nodes.low[0].numel(), *shape)
    error = linear.new_empty(count, *shape)
    for which in phase.unique().tolist():
        instance.pulse()
        rows = (phase == which).nonzero()[:, 0]
        site, values = stages(local, instance, items.pick(rows), upto=place, drift=forms.drift, extent=extent)
        whole = spread(site, place, values[place])
        linear[rows], error[rows] = whole.centre, whole.radius[:, 0]
    return Forms(linear, error)


def _distinct(nodes: BoxNodes) -> tuple[BoxNodes, Tensor]:
    """The different single groups of some nodes, each with its box, and which one every place of a node is."""
    t = nodes.cells.shape[1]
    image = nodes.image[:, None].expand(-1, t).flatten()
    cells, low, high = nodes.cells.flatten(), nodes.low.flatten(0, 1), nodes.high.flatten(0, 1)
    if t == 1:
        where = torch.arange(len(nodes), device=image.device)
        first = where
    else:
        key = torch.cat([image[:, None].double(), cells[:, None].double(), low, high], 1)
        _, where = key.unique(dim=0, return_inverse=True)
        first = torch.empty(int(where.max()) + 1, dtype=torch.int64, device=image.device)
        first[where] = torch.arange(len(where), device=image.device)
    none = torch.zeros_like(first)
    alone = BoxNodes(image[first], cells[first, None], low[first, None], high[first, None], none)
    return alone, where.view(-1, t)


def seeds_of(instance: Instance, nodes: BoxNodes) -> Forms:
    """The forms of what changes at the input, of nodes of single groups or more."""
    members = instance.members[nodes.cells - instance.tree.slots].flatten(1)  # [nodes, width]
    own = torch.nn.functional.pad(instance.images[nodes.image], (0, 1)).gather(1, members)
    low, high = nodes.low.flatten(1), nodes.high.flatten(1)
    count, width = members.shape
    real = members < instance.values
    linear = instance.images.new_zeros(count, 1 + width, instance.values + 1)
    linear[:, 0].scatter_(1, members, torch.where(real, (low + high) / 2 - own, 0.0))
    linear[:, 1:].scatter_(2, members[:, :, None], torch.where(real, (high - low) / 2, 0.0)[:, :, None])
    linear = linear[:, :, :-1].reshape(count, 1 + width, *instance.plan.graph.input_shape)
    sizes = torch.where(real, low.abs() + high.abs() + own.abs(), 0.0)
    error = instance.images.new_zeros(count, instance.values + 1).scatter_(1, members, ELEMENT * sizes)
    return Forms(linear, error[:, :-1].reshape(count, *instance.plan.graph.input_shape))
