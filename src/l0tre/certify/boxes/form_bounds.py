"""Margins of box nodes by forward forms, on any graph.

Each set of groups is carried alone, group by group, up to the last joint where its effects add up; a group with the
same values is in many sets and is carried once. From there the sum goes on through whole layers, and the margins' rows
come to meet it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forms, Forward, add, carry, item_bytes
from l0tre.certify.boxes.joints import Joint, apart, extents, find_joints
from l0tre.certify.boxes.tail import Tail, lower_margins, make_tail
from l0tre.certify.boxes.window_forms import Items, LocalNetwork, spread, stages
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.instance import Instance

__all__ = ["FormInstance", "form_bounds", "make_form_instance"]


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
        budget: Bytes for what is carried together.
    """

    forward: Forward
    joints: tuple[Joint, ...]
    tail: Tail
    windows: LocalNetwork | None
    instance: Instance
    extents: Tensor
    budget: int


def make_form_instance(forward: Forward, windows: LocalNetwork | None, instance: Instance, budget: int) -> FormInstance:
    """Prepare images."""
    tail = make_tail(forward.plan, instance.rows.shape[1])
    # Forms are wanted at the tail's start, so they are added there at the latest.
    joints = tuple(joint for joint in find_joints(forward.plan) if joint.place <= tail.start)
    return FormInstance(forward, joints, tail, windows, instance, extents(instance), budget)


def form_bounds(forms: FormInstance, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
    """Lower bounds of the margins ``[nodes, rivals]``, and the coefficients of linear ones that give them.

    Args:
        forms: Network and images.
        nodes: Box nodes.

    Returns:
        The bounds, and float64 ``[nodes, rivals, t * width]``, coefficients of each value's ``u`` from -1 to 1.
    """
    rivals, t = forms.instance.rows.shape[1], nodes.cells.shape[1]
    bounds = forms.instance.images.new_empty(len(nodes), rivals)
    slopes = bounds.new_empty(len(nodes), rivals, nodes.low[0].numel() if len(nodes) else 0)
    for joint, rows in _by_joint(forms, nodes):
        for part in _chunks(forms, joint, nodes, rows):
            values = _carried(forms, joint, nodes.pick(part), t)
            bounds[part], slopes[part] = lower_margins(
                forms.forward, forms.instance, forms.tail, nodes.image[part], values, t
            )
    return bounds, slopes


def _by_joint(forms: FormInstance, nodes: BoxNodes) -> Iterator[tuple[Joint, Tensor]]:
    """The nodes whose effects add up at each joint, and not at a later one."""
    if nodes.cells.shape[1] == 1:  # nothing is to be added up
        yield Joint(forms.tail.start, (0, 0)), torch.arange(len(nodes), device=nodes.image.device)
        return
    groups = forms.extents[nodes.cells - forms.instance.tree.slots]
    left = torch.ones(len(nodes), dtype=torch.bool, device=nodes.image.device)
    for joint in reversed(forms.joints):
        own = left & apart(groups, joint.sight)
        left &= ~own
        rows = own.nonzero()[:, 0]
        if len(rows):
            yield joint, rows


def _chunks(forms: FormInstance, joint: Joint, nodes: BoxNodes, rows: Tensor) -> Iterator[Tensor]:
    """As many nodes together as the budget allows."""
    columns = 1 + nodes.low[0].numel()
    size = item_bytes(forms.forward, columns, joint.place, forms.tail.end)
    yield from rows.split(max(1, forms.budget // size))


def _carried(forms: FormInstance, joint: Joint, nodes: BoxNodes, t: int) -> dict[int, Forms]:
    """The forms that the tail needs, of nodes whose effects add up at a joint."""
    needed = forms.tail.needed
    alone, where = _distinct(nodes)
    single = [_alone(forms, joint, part, t) for part in _singles(forms, joint, alone)]
    table = Forms(torch.cat([part.linear for part in single]), torch.cat([part.error for part in single]))
    together = add([table.pick(where[:, place]) for place in range(nodes.cells.shape[1])])
    return carry(forms.forward, forms.instance, nodes.image, joint.place, together, needed, t)


def _singles(forms: FormInstance, joint: Joint, nodes: BoxNodes) -> Iterator[BoxNodes]:
    size = item_bytes(forms.forward, 1 + nodes.low[0].numel(), 0, joint.place)
    most = max(1, forms.budget // size)
    for start in range(0, len(nodes), most):
        yield nodes.pick(slice(start, start + most))


def _alone(forms: FormInstance, joint: Joint, nodes: BoxNodes, t: int) -> Forms:
    """Single groups, carried from the input to a joint."""
    windows = forms.windows
    if windows is not None and joint.place:
        place = max(place for place in windows.plan.joints if place <= joint.place)
        found = _in_windows(windows, forms.instance, nodes, place)
        return carry(forms.forward, forms.instance, nodes.image, place, found, {joint.place}, t)[joint.place]
    seeds = _seeds(forms.instance, nodes)
    return carry(forms.forward, forms.instance, nodes.image, 0, seeds, {joint.place}, t)[joint.place]


def _in_windows(local: LocalNetwork, instance: Instance, nodes: BoxNodes, place: int) -> Forms:
    """Single pixels, carried in the windows that they reach from the input to a position, as whole maps there."""
    items = Items(nodes.image, instance.members[nodes.cells - instance.tree.slots], nodes.low, nodes.high)
    _, height, width = local.plan.graph.input_shape
    plane, stride = items.members[:, 0, 0] % (height * width), local.plan.stride
    phase = plane // width % stride * stride + plane % width % stride
    count, shape = len(nodes), instance.plan.graph.operations[place].shape
    linear = instance.images.new_empty(count, 1 + nodes.low.shape[2], *shape)
    error = linear.new_empty(count, *shape)
    for which in phase.unique().tolist():
        instance.pulse()
        rows = (phase == which).nonzero()[:, 0]
        site, values = stages(local, instance, items.pick(rows), upto=place, parallel=True)
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


def _seeds(instance: Instance, nodes: BoxNodes) -> Forms:
    """What changes at the input."""
    members = instance.members[nodes.cells - instance.tree.slots].flatten(1)  # [nodes, width]
    own = torch.nn.functional.pad(instance.images[nodes.image], (0, 1)).gather(1, members)
    low, high = nodes.low.flatten(1), nodes.high.flatten(1)
    count, width = members.shape
    real = members < instance.values
    linear = instance.images.new_zeros(count, 1 + width, instance.values + 1)
    linear[:, 0].scatter_(1, members, torch.where(real, (low + high) / 2 - own, 0.0))
    linear[:, 1:].scatter_(2, members[:, :, None], torch.where(real, (high - low) / 2, 0.0)[:, :, None])
    linear = linear[:, :, :-1].reshape(count, 1 + width, *instance.plan.graph.input_shape)
    return Forms(linear, torch.zeros_like(linear[:, 0]))
