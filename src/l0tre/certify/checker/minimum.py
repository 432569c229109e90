"""The regions of a certificate, and the least value of linear forms over them, for the checker."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.rows import Form, InputPart
from l0tre.domain import Domain

__all__ = ["Boxes", "Cells", "Scope", "Spread", "least", "make_scope"]


@dataclass(frozen=True)
class Scope:
    """What may change, the groups in the order of the tree, so that a cell is a range of them.

    Attributes:
        shape: Of the input.
        positions: int64 ``[groups, width]``, positions in the flattened input; the number of values for none.
        low: float64 ``[values + 1]``, smallest value minus that of the image, at most 0; 0 for values of no group and
            after the last.
        high: float64 ``[values + 1]``, likewise the largest, at least 0.
        pixels: int64 ``[groups, most]``, the different pixels of each group, if the input is ``(C, H, W)``; ``H * W``
            for none.
        place: If no group has two pixels and no pixel two groups: int64 ``[pixels]``, the group of each, -1 for none.
    """

    shape: tuple[int, ...]
    positions: Tensor
    low: Tensor
    high: Tensor
    pixels: Tensor | None
    place: Tensor | None


@dataclass(frozen=True)
class Cells:
    """Regions: from each of some ranges of groups, as many different groups as its count take other values.

    Attributes:
        start: int64 ``[regions, ranges]``, the first group.
        size: int64 ``[regions, ranges]``, the number of groups.
        count: int64 ``[regions, ranges]``, how many of them change; 0 for a range that is named before.
    """

    start: Tensor
    size: Tensor
    count: Tensor

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Tensor | slice) -> "Cells":
        return Cells(self.start[rows], self.size[rows], self.count[rows])


@dataclass(frozen=True)
class Boxes:
    """Regions: some values are anywhere in their ranges, which need not hold the image's.

    Attributes:
        positions: int64 ``[regions, values]``, positions in the flattened input; the number of input values for none.
        low: float64 ``[regions, values]``, smallest value minus that of the image; 0 for none.
        high: float64 ``[regions, values]``, largest value minus that of the image.
    """

    positions: Tensor
    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: Tensor | slice) -> "Boxes":
        return Boxes(self.positions[rows], self.low[rows], self.high[rows])


Spread = Cells | Boxes


def make_scope(domain: Domain, order: Tensor, image: Tensor) -> Scope:
    """Describe what may change around an image.

    Args:
        domain: The groups and ranges.
        order: int64 ``[groups]``, the groups in the order of the tree.
        image: float64 ``[values]``.
    """
    device, values = image.device, len(image)
    domain, order = domain.to(device), order.to(device)
    real = torch.arange(domain.members.shape[1], device=device) < domain.sizes[:, None]
    positions = torch.where(real, domain.members, values)[order]
    free = torch.zeros(values + 1, dtype=torch.bool, device=device).index_fill_(0, positions.flatten(), True)[:-1]
    low, high = (F.pad((end.double() - image) * free, (0, 1)) for end in (domain.low, domain.high))
    if len(domain.shape) != 3:
        return Scope(domain.shape, positions, low, high, None, None)
    plane = domain.shape[1] * domain.shape[2]
    pixels = torch.where(positions < values, positions % plane, plane).sort(1).values
    again = F.pad(pixels[:, 1:] == pixels[:, :-1], (1, 0))
    pixels = pixels.masked_fill(again, plane).sort(1).values
    pixels = pixels[:, : int((pixels < plane).sum(1).max())]
    if pixels.shape[1] > 1 or len(pixels.unique()) < len(pixels):
        return Scope(domain.shape, positions, low, high, pixels, None)
    place = torch.full((plane,), -1, device=device)
    place[pixels[:, 0]] = torch.arange(len(pixels), device=device)
    return Scope(domain.shape, positions, low, high, pixels, place)


def least(scope: Scope, spread: Spread, form: Form) -> Tensor:
    """Least value of forms over regions, round-off not taken off.

    Args:
        scope: What may change.
        spread: One region for each entry of the form's batch.
        form: The forms.

    Returns:
        float64 ``[batch, rows]``.
    """
    if isinstance(spread, Boxes):
        # Gaps are paid at once where values are confined to boxes, so there are no costs.
        return form.constant + _over_box(scope, spread, form)
    if form.window is None:
        return form.constant + _over_cells(scope, spread, form.gradient, form.costs)
    if scope.place is None:
        return form.constant + _over_cells(scope, spread, *_widened(scope, form, form.window))
    return form.constant + _over_pixels(scope, spread, form, form.window, scope.place)


def _over_box(scope: Scope, boxes: Boxes, form: Form) -> Tensor:
    index, inside = boxes.positions, boxes.positions < len(scope.low) - 1
    if form.window is not None:
        window, (_, height, width) = form.window, scope.shape
        y = index % (height * width) // width - window.top[:, None]
        x = index % width - window.left[:, None]
        inside &= (y >= 0) & (y < window.size[0]) & (x >= 0) & (x < window.size[1])
        index = (index // (height * width) * window.size[0] + y) * window.size[1] + x
    index = index.where(inside, 0)[:, None].expand(-1, form.gradient.shape[1], -1)
    slopes = form.gradient.gather(2, index) * inside[:, None]
    return torch.minimum(slopes * boxes.low[:, None], slopes * boxes.high[:, None]).sum(2)


def _over_cells(scope: Scope, cells: Cells, gradient: Tensor, costs: Tensor | None) -> Tensor:
    """AffineForms of the whole input over cells of any groups."""
    drops = F.pad(torch.minimum(gradient * scope.low[:-1], gradient * scope.high[:-1]), (0, 1))
    moves = _summed(drops[..., column] for column in scope.positions.T)
    if costs is not None and scope.pixels is not None:
        padded = F.pad(costs, (0, 1))
        moves = moves + _summed(padded[..., column] for column in scope.pixels.T)
    # Ranges are filled up with a group that changes nothing: a move is never above 0, so none is displaced.
    steps = torch.arange(int(cells.size.max()), device=moves.device)
    index = torch.where(steps < cells.size[..., None], cells.start[..., None] + steps, moves.shape[2])
    picked = F.pad(moves, (0, 1)).gather(2, index.flatten(1)[:, None].expand(-1, moves.shape[1], -1))
    picked = picked.view(*moves.shape[:2], *index.shape[1:])
    return _taken(picked, cells.count[:, None]).sum(2)


def _over_pixels(scope: Scope, cells: Cells, form: Form, window: InputPart, place: Tensor) -> Tensor:
    """AffineForms of windows over cells of pixels."""
    pixels, inside = window.plane(scope.shape)
    slopes = form.gradient.view(*form.gradient.shape[:2], scope.shape[0], -1)
    index = window.index(scope.shape).view(len(pixels), 1, *slopes.shape[2:])
    moves = torch.minimum(slopes * scope.low[index], slopes * scope.high[index]).sum(2)
    if form.costs is not None:
        moves = moves + form.costs
    group = place[pixels].where(inside, -1)
    total = torch.zeros_like(form.constant)
    for start, size, count in zip(cells.start.T, cells.size.T, cells.count.T, strict=True):
        member = (group >= start[:, None]) & (group < (start + size)[:, None])
        total += _taken(moves * member[:, None], count[:, None])
    return total


def _widened(scope: Scope, form: Form, window: InputPart) -> tuple[Tensor, Tensor | None]:
    """AffineForms of windows as forms of the whole input: their gradients and costs."""
    (batch, rows, _), (pixels, inside) = form.gradient.shape, window.plane(scope.shape)
    index = window.index(scope.shape)[:, None].expand(-1, rows, -1)
    gradient = form.gradient.new_zeros(batch, rows, len(scope.low) - 1).scatter_add_(2, index, form.gradient)
    if form.costs is None:
        return gradient, None
    # Pixels that do not exist have zero gradients, but not zero costs.
    blank = form.costs.new_zeros(batch, rows, scope.shape[1] * scope.shape[2])
    return gradient, blank.scatter_add_(2, pixels[:, None].expand(-1, rows, -1), form.costs * inside[:, None])


def _taken(moves: Tensor, count: Tensor) -> Tensor:
    """Sum of the ``count`` smallest along the last dimension of ``moves``, none of them above 0."""
    most = min(int(count.max()), moves.shape[-1])
    if most == 1:
        return moves.amin(-1) * (count > 0)
    best = moves.topk(most, -1, largest=False).values
    taken = (best * (torch.arange(most, device=moves.device) < count[..., None])).sum(-1)
    return taken + 0 * moves.sum(-1)  # NaN is never among the smallest, but must not get lost


def _summed(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    for part in rest:
        first += part
    return first
