"""Forms of single groups over wide boxes, joined from those of much smaller parts, and kept for all sets they are in.

Over a part of a range half as wide the error of a form is a quarter and less. What a group does over its whole range
is the union of what it does over the parts, so one form around those of the parts encloses it, with an error that is
about how far the network is from linear there, rather than what enclosing layer after layer adds to that. A set of
several groups is bounded from the sum of such forms; making one is dear, but a group is in very many sets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l0tre.certify.boxes.forward_forms import Forms
from l0tre.certify.boxes.range_parts import halved
from l0tre.certify.boxes.rounding import ELEMENT, TINY, total
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.instance import Instance

__all__ = ["SingleTables", "closer", "join_parts"]

HALVINGS = 4  # of a group's ranges: parts are as wide as after so many
COPIES = 16  # of the forms that parts are joined to: the share of the room that is taken while they are

Carry = Callable[[BoxNodes], Forms]


@dataclass(frozen=True)
class SingleTables:
    """Joined forms that were made already.

    Attributes:
        room: Bytes that they may take.
        found: By position, image, group and box.
    """

    room: int
    found: dict[tuple[float, ...], Forms] = field(default_factory=dict, repr=False)

    def joined(self, instance: Instance, place: int, nodes: BoxNodes, carry: Carry) -> Forms:
        """The forms of single groups at a position: those that ``carry`` gives, if there is no room for all groups.

        Args:
            instance: The images.
            place: The position.
            nodes: Single groups with their boxes, all different.
            carry: Gives the forms of such nodes there.
        """
        columns = 2 + nodes.low.shape[2]
        each = 8 * columns * math.prod(instance.plan.graph.operations[place].shape)
        groups = int((instance.tree.order >= 0).sum())
        if groups * each > self.room:
            return carry(nodes)
        ends = torch.cat([nodes.image[:, None].double(), nodes.cells.double(), nodes.low[:, 0], nodes.high[:, 0]], 1)
        keys = [(float(place), *row) for row in ends.tolist()]
        missing = [row for row, key in enumerate(keys) if key not in self.found]
        made: dict[tuple[float, ...], Forms] = {}
        if missing:
            fresh = nodes.pick(torch.tensor(missing, device=nodes.image.device))
            forms = _made(instance, fresh, carry, self.room // (COPIES * each))
            # Each by itself: a part of a tensor would keep all of it.
            made = {keys[row]: Forms(forms.linear[n].clone(), forms.error[n].clone()) for n, row in enumerate(missing)}
        parts = [made[key] if key in made else self.found[key] for key in keys]
        if (len(self.found) + len(made)) * each > self.room:  # other positions have smaller ones, or larger ones
            self.found.clear()
        if len(made) * each <= self.room:
            self.found.update(made)
        return Forms(torch.stack([part.linear for part in parts]), torch.stack([part.error for part in parts]))


def _made(instance: Instance, nodes: BoxNodes, carry: Carry, together: int) -> Forms:
    """Join the forms of parts of boxes, so many parts at a time; the wider a box, the more parts."""
    lengths = torch.nn.functional.pad(instance.up - instance.down, (0, 1))[nodes.image]
    lengths = lengths.gather(1, instance.members[nodes.cells[:, 0] - instance.tree.slots])
    extent = (nodes.high - nodes.low)[:, 0]
    halvings = torch.where(extent > 0, (lengths / extent).log2(), 0.0).sum(1).round().long()
    times = (HALVINGS - halvings).clamp(0, HALVINGS)
    rows, made = [], []
    for count in times.unique().tolist():
        for some in (times == count).nonzero()[:, 0].split(max(1, together >> count)):
            own = nodes.pick(some)
            parts = halved(own, count)
            rows.append(some)
            made.append(closer(carry(own), join_parts(own, parts, carry(parts))) if count else carry(own))
    order = torch.cat(rows).argsort()
    return Forms(torch.cat([part.linear for part in made])[order], torch.cat([part.error for part in made])[order])


def closer(first: Forms, second: Forms) -> Forms:
    """Of two forms of every value, both of which hold, the one with the smaller error.

    After few layers a joined one can be the other: its slope is that of all parts on average.
    """
    better = first.error < second.error
    linear = torch.where(better[:, None], first.linear, second.linear)
    return Forms(linear, torch.where(better, first.error, second.error))


def join_parts(whole: BoxNodes, parts: BoxNodes, forms: Forms) -> Forms:
    """One form for each box, around the forms of its parts.

    Let ``u`` be the box's variables, and those of a part ``(u - offset) / scale``. The part's form is linear in ``u``
    too; it differs from any other by no more than the difference of both at the part's middle, and that of their
    slopes times the part's sides.

    Args:
        whole: Boxes of single groups.
        parts: Their parts, which cover them; part ``p`` of box ``n`` of ``count`` is row ``p * count + n``.
        forms: Those of the parts.
    """
    count, many = len(whole), len(parts) // len(whole)
    half = (whole.high - whole.low)[:, 0] / 2  # [count, width]
    some, fixed = torch.where(half > 0, half, 1.0), half == 0
    shape = (many, count, half.shape[1])
    scale = ((parts.high - parts.low)[:, 0].view(shape) / 2 / some).masked_fill(fixed, 1.0)
    middle = (whole.low + whole.high)[:, 0] / 2
    offset = (((parts.low + parts.high)[:, 0] / 2).view(shape) - middle) / some
    # Middles and sides are rounded, so parts are not exactly where offsets and scales say.
    off = ELEMENT * (1.0 + (whole.low.abs() + whole.high.abs())[:, 0] / some)

    def over(values: Tensor) -> Tensor:
        """Laid out beside the forms."""
        return values.view(*values.shape, *[1] * (forms.error.dim() - 1))

    linear = forms.linear.view(many, count, *forms.linear.shape[1:])
    error = forms.error.view(many, count, *forms.error.shape[1:])
    slopes = (linear[:, :, 1:] / over(scale)).mean(0)
    base = linear[:, :, 0] - (slopes * over(offset)).sum(2)
    reach = total(linear[:, :, 1:] - slopes * over(scale), 2) + error
    sizes = linear[:, :, 0].abs() + total(linear[:, :, 1:], 2) + error
    high, low = (base + reach).amax(0), (base - reach).amin(0)
    sizes = sizes.amax(0) + total(slopes, 1)
    found = (high - low) / 2 + total(slopes * over(off), 1) + ELEMENT * sizes + TINY
    return Forms(torch.cat([((high + low) / 2)[:, None], slopes], 1), found)
