"""Where groups are on a map: those that are spread over all of it, and sums over neighbours."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.domain import Domain
from l0tre.layout import channel_axis

__all__ = ["Layout", "blurred", "cells", "make_layout", "tiles"]


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


def cells(layout: Layout, side: int, worth: Tensor) -> Tensor:
    """The group that is worth most of each square of so many rows and columns (or of as many groups in a row).

    Args:
        layout: Where groups are.
        side: Rows and columns of a square.
        worth: float32 ``[groups]``; squares with none that is above minus infinity are left out.

    Returns:
        int64, in the order of the squares.
    """
    row, column = layout.places // layout.width, layout.places % layout.width
    if layout.height == 1:
        row, column = torch.zeros_like(row), column // side
    cell = row // side * (layout.width // side + 1) + column // side
    order = worth.argsort(descending=True, stable=True)
    order = order[cell[order].argsort(stable=True)]
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = cell[order][1:] != cell[order][:-1]
    found = order[first]
    return found[worth[found] > -torch.inf]


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


def blurred(sheets: Tensor, width: float) -> Tensor:
    """Sheets ``[n, 1, height, width]`` under a bell curve that is 1 in the middle.

    Args:
        sheets: Numbers by position.
        width: Standard deviation of the curve, in positions.
    """
    radius = int(3 * width + 1)
    axis = torch.arange(-radius, radius + 1, device=sheets.device, dtype=sheets.dtype)
    bell = torch.exp(-(axis**2) / (2 * width**2)).expand(len(sheets), 1, 1, -1)
    found = sheets.transpose(0, 1)  # a channel each: many times faster on a CPU than a row each
    found = F.conv2d(found, bell, padding=(0, radius), groups=len(sheets))
    if sheets.shape[2] > 1:
        found = F.conv2d(found, bell.transpose(2, 3), padding=(radius, 0), groups=len(sheets))
    return found.transpose(0, 1)
