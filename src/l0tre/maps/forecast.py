"""What a map will look like where it was not measured yet: what its surroundings look like.

Nothing of this is claimed: it says which pixels to measure next, and fills a map that was stopped early. Slopes would
be cheaper, and say next to nothing about a pixel that goes to the end of its range.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.domain import Domain
from l0tre.layout import channel_axis

__all__ = ["Layout", "lattice", "make_layout", "spread", "tiles"]

FAR = 1e-3  # weight of the mean of all, for places far from everything that is known


@dataclass(frozen=True)
class Layout:
    """Where groups are on a map.

    Attributes:
        height: Of the map; 1 where there is none and groups lie one after the other.
        width: Likewise.
        places: int64 ``[groups]``, the position of each group on the flattened map.
    """

    height: int
    width: int
    places: Tensor


def make_layout(domain: Domain) -> Layout:
    """Where groups are: on the image if each of them is one pixel of it."""
    shape, members = domain.shape, domain.members.cpu()
    if len(shape) in (2, 3):
        last = len(shape) == 3 and channel_axis(shape) == 2
        height, width = shape[:2] if last else shape[-2:]
        pixel = members // shape[2] if last else members % (height * width)
        if bool((pixel == pixel[:, :1]).all()):
            return Layout(height, width, pixel[:, 0])
    return Layout(1, domain.groups, torch.arange(domain.groups))


def lattice(layout: Layout, side: int) -> Tensor:
    """Groups at every ``side``-th row and column (or position), int64, ascending."""
    row, column = layout.places // layout.width, layout.places % layout.width
    return (((row % side == 0) | (layout.height == 1)) & (column % side == 0)).nonzero()[:, 0]


def tiles(layout: Layout, count: int, generator: torch.Generator) -> Tensor:
    """One group at random in each of about ``count`` equal squares (or intervals), int64, in random order."""
    row, column = layout.places // layout.width, layout.places % layout.width
    if layout.height == 1:
        tile = column // max(1, round(layout.width / count))
    else:
        side = max(1, round((layout.height * layout.width / count) ** 0.5))
        tile = (row // side) * (layout.width // side + 1) + column // side
    shuffled = torch.randperm(len(tile), generator=generator)
    order = shuffled[tile[shuffled].argsort(stable=True)]
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = tile[order][1:] != tile[order][:-1]
    found = order[first]
    return found[torch.randperm(len(found), generator=generator)]


def spread(layout: Layout, known: Tensor, values: Tensor, width: float) -> Tensor:
    """Values of all groups from those of some, by averages under a bell curve.

    Args:
        layout: Where they are.
        known: bool ``[groups]``.
        values: float32 ``[groups]``, used where known.
        width: Standard deviation of the curve, in positions.

    Returns:
        float32 ``[groups]``; zero if nothing is known.
    """
    if not bool(known.any()):
        return torch.zeros_like(values)
    mean = values[known].mean()
    weight = known.to(values)
    kept = torch.where(known, values, torch.zeros_like(values))
    sheets = torch.zeros(2, layout.height * layout.width)
    sheets[:, layout.places] = torch.stack([kept, weight])
    blurred = _blurred(sheets.reshape(2, 1, layout.height, layout.width), width).reshape(2, -1)[:, layout.places]
    return (blurred[0] + FAR * mean) / (blurred[1] + FAR)


def _blurred(sheets: Tensor, width: float) -> Tensor:
    """Sheets ``[n, 1, height, width]`` under a bell curve that is 1 in the middle."""
    radius = int(3 * width + 1)
    axis = torch.arange(-radius, radius + 1).float()
    bell = torch.exp(-(axis**2) / (2 * width**2))
    rows = F.conv2d(sheets, bell.view(1, 1, 1, -1), padding=(0, radius))
    return rows if sheets.shape[2] == 1 else F.conv2d(rows, bell.view(1, 1, -1, 1), padding=(radius, 0))
