"""Groups that never meet: what they do to the scores adds up exactly.

If a network is linear behind the operations that see windows of the input, and no neuron sees two of the changed
pixels, then the change of every score is the sum of what each pixel changes alone. So the least change by every single
pixel, bounded once and closely (its range is cut into parts), decides all sets of pixels that are far apart by a sum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.regions.nodes import Nodes, split_boxes
from l0tre.certify.relax.bounds import bound
from l0tre.certify.relax.instance import Instance, smallest
from l0tre.certify.relax.supported import is_nonlinear

__all__ = ["PixelLosses", "apart", "can_add", "make_losses", "sum_proves"]

HALVINGS = 3  # of a pixel's range


@dataclass(frozen=True)
class PixelLosses:
    """What single pixels can do.

    Attributes:
        losses: float64 ``[images, classes - 1, cells]``, the least change of each margin by one pixel of each cell.
        corners: int64 ``[cells, 4]``, first and last row, first and last column of each cell.
        sight: Height and width of the largest window that a neuron sees.
    """

    losses: Tensor
    corners: Tensor
    sight: tuple[int, int]


def can_add(instance: Instance) -> bool:
    """Whether groups are pixels and everything behind the windows is linear."""
    plan = instance.plan
    curved = [position for position, operation in enumerate(plan.graph.operations) if is_nonlinear(operation)]
    return (
        instance.slot_of_pixel is not None
        and bool(curved)
        and all(position in plan.receptive_fields for position in curved)
    )


def make_losses(instance: Instance, low: Tensor, high: Tensor, batch: int, row_bytes: int) -> PixelLosses:
    """Bound what every pixel can do alone.

    Args:
        instance: For which :func:`can_add` holds.
        low: float64 ``[values]``, the domain's smallest values.
        high: The largest values.
        batch: How many nodes are bounded together.
        row_bytes: See ``bound``.

    Returns:
        The singles of all images of the instance.
    """
    tree, device = instance.tree, instance.plan.device
    slots = (tree.order >= 0).nonzero()[:, 0]
    images = torch.arange(len(instance.images), device=device).repeat_interleave(len(slots))
    cells = (slots + tree.slots).repeat(len(instance.images))[:, None]
    members = instance.members[cells - tree.slots]
    lows, highs = (torch.nn.functional.pad(values, (0, 1))[members] for values in (low, high))
    nodes = Nodes(images, cells, lows, highs, torch.zeros_like(images))
    for _ in range(HALVINGS):
        assert nodes.low is not None
        nodes = split_boxes(nodes, torch.ones_like(nodes.low))
    rows = instance.rows.shape[1]
    losses = instance.images.new_zeros(len(instance.images), tree.slots, rows)
    for start in range(0, len(nodes), batch):
        part = nodes.pick(slice(start, start + batch))
        change = bound(instance, part, row_bytes).margins - instance.margins[part.image]
        # Not a number must not vanish in a minimum: it becomes a change that proves nothing.
        change = change.nan_to_num(nan=-torch.inf)
        place = (part.image * tree.slots + part.cells[:, 0] - tree.slots)[:, None].expand(-1, rows)
        losses.view(-1, rows).scatter_reduce_(0, place, change, "amin")
    return PixelLosses(smallest(losses, 1).transpose(1, 2).contiguous(), _corners(instance), _sight(instance))


def _sight(instance: Instance) -> tuple[int, int]:
    sizes = [reach.size for reach in instance.plan.receptive_fields.values()]
    return max(size[0] for size in sizes), max(size[1] for size in sizes)


def _corners(instance: Instance) -> Tensor:
    """Bounding boxes of cells; an empty cell has its first row behind its last one."""
    tree = instance.tree
    assert instance.slot_of_pixel is not None
    width = instance.plan.graph.operations[0].shape[2]
    pixels = (instance.slot_of_pixel >= 0).nonzero()[:, 0]
    far = 2**20
    # First places are negated, so that all four are merged by the maximum.
    leaf = torch.full((tree.slots, 4), -far, device=pixels.device)
    y, x = pixels // width, pixels % width
    leaf[instance.slot_of_pixel[pixels]] = torch.stack([-y, y, -x, x], 1)
    levels = [leaf]
    while len(levels[-1]) > 1:
        levels.append(levels[-1].view(-1, 2, 4).amax(1))
    result = torch.cat([torch.full((1, 4), -far, device=pixels.device), *reversed(levels)])
    return result * torch.tensor([-1, 1, -1, 1], device=pixels.device)


def apart(singles: PixelLosses, nodes: Nodes) -> Tensor:
    """Nodes of which no two changed pixels can be seen by one neuron, bool ``[nodes]``."""
    t = nodes.cells.shape[1]
    box = singles.corners[nodes.cells]
    result = torch.ones_like(nodes.image, dtype=torch.bool)
    for i in range(t):
        for j in range(i):
            gaps = [
                torch.maximum(box[:, i, a] - box[:, j, a + 1], box[:, j, a] - box[:, i, a + 1]).clamp(min=0)
                for a in (0, 2)
            ]
            # Two pixels at a distance of a window's size or more never lie in one window.
            result &= (gaps[0] >= singles.sight[0]) | (gaps[1] >= singles.sight[1])
    return result


def sum_proves(instance: Instance, singles: PixelLosses, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """Bounds of nodes whose pixels are apart.

    Returns:
        Lower bounds of the margins ``[nodes, classes - 1]``, and whether they exceed all rounding errors ``[nodes]``.
    """
    t = nodes.cells.shape[1]
    margins = instance.margins[nodes.image].clone()
    for cells in nodes.cells.T:
        margins += singles.losses[nodes.image, :, cells]
    # Each loss is the difference of a bound and a margin, each with the error of a margin.
    errors = 2 * (t + 1) * instance.slack[nodes.image]
    return margins, ((margins > errors) & torch.isfinite(margins)).all(1)
