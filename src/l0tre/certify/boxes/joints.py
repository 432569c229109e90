"""Joints: places of a network where the effects of several groups add up.

After a linear operation that is the only connection between what is before and after it, what two groups do is the
sum of what each does alone, unless something that is not linear sees both of them before. So groups that are far enough
apart are carried alone up to there, once for all sets that they are in, and only from there on together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.relax.instance import Instance
from l0tre.certify.relax.plan import Plan
from l0tre.certify.relax.supported import is_nonlinear

__all__ = ["Joint", "apart", "extents", "find_joints", "only_connections"]

Sight = tuple[int, int]


@dataclass(frozen=True)
class Joint:
    """A place where effects add up.

    Attributes:
        place: Position of the operation.
        sight: Height and width of the largest window of the input that any operation before it sees that is not
            linear; (0, 0) if there is none.
    """

    place: int
    sight: Sight


def only_connections(plan: Plan) -> list[int]:
    """Operations that alone connect what is before and after them, the input first."""
    last = plan.graph.last_use()
    furthest, found = 0, []
    for place in range(len(last)):
        if furthest <= place:
            found.append(place)
        furthest = max(furthest, last[place])
    return found


def find_joints(plan: Plan, end: int) -> tuple[Joint, ...]:
    """The joints of a network up to an operation, the last one of each sight, in order; the first adds up anything."""
    operations, sight = plan.graph.operations, (0, 0)
    connections, found = set(only_connections(plan)), dict[Sight, Joint]()
    for place, operation in enumerate(operations[: end + 1]):
        if is_nonlinear(operation):
            if place not in plan.receptive_fields:
                break  # it sees everything
            size = plan.receptive_fields[place].size
            sight = (max(sight[0], size[0]), max(sight[1], size[1]))
        elif place in connections:
            found[sight] = Joint(place, sight)
    return tuple(found.values())


def extents(instance: Instance) -> Tensor:
    """The rows and columns between which each group lies, int64 ``[slots, 4]``: top, bottom, left, right."""
    if len(instance.plan.graph.input_shape) != 3:
        return instance.members.new_zeros(len(instance.members), 4)
    _, height, width = instance.plan.graph.input_shape
    real = instance.members < instance.values
    plane = torch.where(real, instance.members, 0) % (height * width)
    found = []
    for part in (plane // width, plane % width):
        found += [
            torch.where(real, part, height + width).amin(1),
            torch.where(real, part, -1).amax(1),
        ]
    return torch.stack(found, 1)


def apart(groups: Tensor, sight: Sight) -> Tensor:
    """Whether nothing of a sight sees two of the groups of a set.

    Args:
        groups: int64 ``[sets, t, 4]``, where each group lies, see :func:`extents`.
        sight: Height and width.

    Returns:
        bool ``[sets]``.
    """
    t = groups.shape[1]
    if sight == (0, 0) or t == 1:
        return torch.ones(len(groups), dtype=torch.bool, device=groups.device)
    distances = []
    for first, last in ((0, 1), (2, 3)):
        begin, end = groups[..., first], groups[..., last]
        between = begin[:, :, None] - end[:, None]
        distances.append(torch.maximum(between, between.transpose(1, 2)))
    far = (distances[0] >= sight[0]) | (distances[1] >= sight[1])
    same = torch.eye(t, dtype=torch.bool, device=groups.device)
    return (far | same).flatten(1).all(1)
