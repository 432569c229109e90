"""What may change: groups of values (pixels, columns), their ranges, and the grid of values that are tried."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import ConfigError, DataError
from l0tre.layout import channel_axis

__all__ = ["Colours", "Domain", "GridKind", "Groups", "Range", "axis_points", "make_domain", "make_grid"]

Groups = Literal["auto", "pixel", "feature"]
GridKind = Literal["uniform", "paper"]
Colours = Literal["grid", "corners"]
Range = float | np.ndarray | Tensor

# A group with more grid points than this cannot be enumerated; the message says what to do instead.
MAX_POINTS = 2**20


@dataclass(frozen=True)
class Domain:
    """The groups that may change and the box in which their values live.

    Attributes:
        shape: Shape of one input.
        members: int64 ``[groups, width]``, positions (in the flattened input) of each group's values; a group with
            fewer than ``width`` values repeats its first one.
        sizes: int64 ``[groups]``, number of values of each group.
        ids: int64 ``[groups]``, the user's number of each group (for pixels: row * width of the image + column).
        low: float32 ``[values]``, smallest value of each position.
        high: float32 ``[values]``, largest value of each position.
        unit: What a group is called: ``pixel``, ``feature`` or ``group``.
    """

    shape: tuple[int, ...]
    members: Tensor
    sizes: Tensor
    ids: Tensor
    low: Tensor
    high: Tensor
    unit: str

    @property
    def groups(self) -> int:
        """Number of groups that may change."""
        return len(self.members)

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest values, float32 ``shape`` each."""
        return self.low.view(self.shape), self.high.view(self.shape)

    def to(self, device: torch.device) -> "Domain":
        """The same domain with its tensors on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("members", "sizes", "ids", "low", "high")}
        return replace(self, **moved)

    def check(self, images: Tensor, indices: tuple[int, ...]) -> None:
        """Refuse images of another shape or with values outside the box.

        Args:
            images: ``[images, *shape]``.
            indices: Their positions in the user's data, for the message.

        Raises:
            DataError: Naming the first image that does not fit.
        """
        if tuple(images.shape[1:]) != self.shape:
            raise DataError(f"images have shape {tuple(images.shape[1:])}, the network takes {self.shape}")
        flat = images.flatten(1).cpu()
        bad = (flat < self.low.cpu()) | (flat > self.high.cpu())
        if bad.any():
            row, position = (int(i) for i in bad.nonzero()[0])
            raise DataError(
                f"image {indices[row]} has the value {flat[row, position]:.6g} at position {position}, outside the "
                f"domain [{self.low[position]:.6g}, {self.high[position]:.6g}]: scale the data (`scale`) or widen the "
                "domain (`low`, `high`); normalisation belongs to the model (`mean`, `std`)"
            )


def make_domain(
    shape: tuple[int, ...],
    *,
    groups: Groups | np.ndarray | Tensor = "auto",
    mask: np.ndarray | Tensor | None = None,
    low: Range = 0.0,
    high: Range = 1.0,
) -> Domain:
    """Describe what may change in inputs of one shape.

    Args:
        shape: ``(C, H, W)``, ``(H, W, C)``, ``(H, W)`` or ``(features,)``.
        groups: ``pixel`` (all channels of a position), ``feature`` (every value on its own), ``auto`` (pixels for
            images, features for vectors), or an integer array of the input's shape (or ``H, W``) with a group number
            for each value, negative for values that never change.
        mask: Boolean array of the input's shape (or ``H, W``): true where values may change.
        low: Smallest value, one for all or an array of the input's shape (or a shape that broadcasts to it).
        high: Largest value, likewise.

    Returns:
        The domain. Values that cannot change (masked, or ``low == high``) are left out of their groups, and groups
        without values are left out.

    Raises:
        ConfigError: If an array does not fit the shape, ``low > high``, or nothing may change.
    """
    numbers, unit = _group_numbers(shape, groups)
    lows, highs = _range(low, shape, "low"), _range(high, shape, "high")
    if (lows > highs).any():
        position = int((lows > highs).nonzero()[0])
        raise ConfigError(f"low {lows[position]:.6g} is above high {highs[position]:.6g} at position {position}")
    numbers = torch.where(lows < highs, numbers, -1)
    if mask is not None:
        numbers = torch.where(_per_value(_array(mask).bool(), shape, "mask"), numbers, -1)
    open_ = (numbers >= 0).nonzero()[:, 0]
    if len(open_) == 0:
        raise ConfigError("no value may change: the mask or the ranges freeze every group")
    ids, inverse = numbers[open_].unique(return_inverse=True)
    sizes = torch.bincount(inverse, minlength=len(ids))
    order = inverse.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    column = torch.arange(int(sizes.max()))[None].expand(len(ids), -1)
    column = torch.where(column < sizes[:, None], column, 0)
    members = open_[order][starts[:, None] + column]
    return Domain(shape, members, sizes, ids, lows, highs, unit)


def axis_points(low: float, high: float, epsilon: float, kind: GridKind) -> Tensor:
    """The grid on one value.

    Args:
        low: Smallest value.
        high: Largest value.
        epsilon: Wanted spacing, in the domain's units.
        kind: ``uniform``: end points included, spacing at most ``epsilon``; ``paper``: the published code's
            ``linspace(low, high, floor(1 / epsilon))``, whose spacing is larger than ``epsilon``.

    Returns:
        float32 ``[points]``, ascending, at least two.
    """
    count = _axis_count(low, high, epsilon, kind)
    return torch.linspace(low, high, count, dtype=torch.float64).to(torch.float32)


def _axis_count(low: float, high: float, epsilon: float, kind: GridKind) -> int:
    count = math.ceil((high - low) / epsilon) + 1 if kind == "uniform" else math.floor(1 / epsilon)
    return max(count, 2)


def make_grid(domain: Domain, epsilon: float, kind: GridKind = "uniform", colours: Colours = "grid") -> Tensor:
    """All values that each group takes.

    Args:
        domain: The groups and ranges.
        epsilon: Spacing, in the domain's units, above zero.
        kind: See :func:`axis_points`.
        colours: ``grid``: the product of the axis grids over a group's values (a pixel's channels); ``corners``: only
            the end points of each value.

    Returns:
        float32 ``[groups, points, width]`` on the domain's device, in the column order of ``domain.members``. Groups
        with fewer points repeat their last one.

    Raises:
        ConfigError: If ``epsilon`` is not positive or a group has too many points.
    """
    if not epsilon > 0:
        raise ConfigError(f"epsilon is {epsilon}: give a spacing above 0, for example 0.25")
    device = domain.low.device
    domain = domain.to(torch.device("cpu"))
    lows = domain.low[domain.members].double()
    highs = domain.high[domain.members].double()
    keys = torch.cat([lows, highs, domain.sizes[:, None].double()], 1)
    kinds, inverse = keys.unique(dim=0, return_inverse=True)
    width = domain.members.shape[1]
    tables = []
    for row in kinds.tolist():
        size = int(row[-1])
        ends = list(zip(row[:size], row[width : width + size], strict=True))
        count = math.prod(2 if colours == "corners" else _axis_count(*e, epsilon, kind) for e in ends)
        if count > MAX_POINTS:
            hint = "a larger epsilon" if colours == "corners" else "`colours='corners'`, a larger epsilon"
            raise ConfigError(
                f"a {domain.unit} of {size} values has {count} grid points (limit {MAX_POINTS}): "
                f"use {hint} or smaller groups"
            )
        axes = [torch.tensor(e) if colours == "corners" else axis_points(*e, epsilon, kind) for e in ends]
        points = torch.cartesian_prod(*axes).reshape(count, size)
        tables.append(torch.cat([points, points[:, :1].expand(-1, width - size)], 1))
    most = max(len(table) for table in tables)
    full = [torch.cat([table, table[-1:].expand(most - len(table), -1)]) for table in tables]
    return torch.stack(full)[inverse].to(device)


def _array(value: Range) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))


def _range(value: Range, shape: tuple[int, ...], what: str) -> Tensor:
    array = _array(value).to(torch.float32)
    if not torch.isfinite(array).all():
        raise ConfigError(f"{what} holds a value that is not finite")
    return _per_value(array, shape, what)


def _per_value(array: Tensor, shape: tuple[int, ...], what: str) -> Tensor:
    """Broadcast an array of the input's shape, or of its height and width, to one entry per value."""
    if array.ndim == 2 and channel_axis(shape) == 2:
        array = array[:, :, None]
    try:
        return array.expand(shape).reshape(-1).clone()
    except RuntimeError as error:
        raise ConfigError(
            f"the {what} has shape {tuple(array.shape)}, which does not fit inputs of shape {shape}"
        ) from error


def _group_numbers(shape: tuple[int, ...], groups: Groups | np.ndarray | Tensor) -> tuple[Tensor, str]:
    """Group number of every value (flattened) and the unit's name."""
    axis = channel_axis(shape)
    if isinstance(groups, str):
        if groups not in ("auto", "pixel", "feature"):
            raise ConfigError(f"groups {groups!r} is unknown: give pixel, feature or an array of group numbers")
        if groups == "feature" or (groups == "auto" and len(shape) == 1):
            return torch.arange(math.prod(shape)), "feature"
        if len(shape) == 1:
            raise ConfigError(f"inputs of shape {shape} have no pixels: give feature or an array of group numbers")
        plane = shape if axis is None else (shape[1:] if axis == 0 else shape[:2])
        return _per_value(torch.arange(math.prod(plane)).reshape(plane), shape, "pixel numbering"), "pixel"
    array = _array(groups)
    if array.is_floating_point() or array.dtype == torch.bool:
        raise ConfigError(f"group numbers must be integers, not {array.dtype}; use a mask for true/false")
    return _per_value(array.long(), shape, "array of groups"), "group"
