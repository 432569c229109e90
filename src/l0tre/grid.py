"""The values that are tried: points on an axis, all points of a group, one point between two thresholds."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.rules import Rules

__all__ = ["Colours", "GridKind", "axis_points", "interval_points", "make_grid"]

GridKind = Literal["uniform", "paper"]
Colours = Literal["grid", "corners"]

# A group with more grid points than this cannot be enumerated; the message says what to do instead.
MAX_POINTS = 2**20


def axis_points(low: float, high: float, epsilon: float, kind: GridKind, points: int = 0) -> Tensor:
    """The grid on one value.

    Args:
        low: Smallest value.
        high: Largest value.
        epsilon: Wanted spacing, in the domain's units.
        kind: ``uniform``: end points included, spacing at most ``epsilon``; ``paper``: the published code's
            ``linspace(low, high, floor(1 / epsilon))``, whose spacing is larger than ``epsilon``.
        points: So many points instead, evenly; 0 for as many as ``epsilon`` asks for.

    Returns:
        float32 ``[points]``, ascending, at least two.
    """
    count = points or _axis_count(low, high, epsilon, kind)
    return torch.linspace(low, high, count, dtype=torch.float64).to(torch.float32)


def _axis_count(low: float, high: float, epsilon: float, kind: GridKind) -> int:
    count = math.ceil((high - low) / epsilon) + 1 if kind == "uniform" else math.floor(1 / epsilon)
    return max(count, 2)


def make_grid(
    domain: Domain,
    epsilon: float,
    kind: GridKind = "uniform",
    colours: Colours = "grid",
    *,
    points: int = 0,
    thresholds: Sequence[Tensor] | None = None,
) -> Tensor:
    """All values that each group takes.

    Args:
        domain: The groups and ranges.
        epsilon: Spacing, in the domain's units, above zero.
        kind: See :func:`axis_points`.
        colours: ``grid``: the product of the axis grids over a group's values (a pixel's channels); ``corners``: only
            the end points of each value.
        points: So many points for each value instead of those that ``epsilon`` asks for; 0 for these.
        thresholds: By value the numbers between which nothing changes for the network: single values are then tried
            once in each interval, whatever the other arguments say.

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
    if isinstance(domain.rules, Rules) or thresholds is not None:
        return _stacked(
            [_own_points(domain, place, epsilon, kind, colours, points, thresholds) for place in range(domain.groups)]
        ).to(device)
    lows = domain.low[domain.members].double()
    highs = domain.high[domain.members].double()
    keys = torch.cat([lows, highs, domain.sizes[:, None].double()], 1)
    kinds, inverse = keys.unique(dim=0, return_inverse=True)
    width = domain.members.shape[1]
    tables = []
    for row in kinds.tolist():
        size = int(row[-1])
        ends = list(zip(row[:size], row[width : width + size], strict=True))
        count = math.prod(2 if colours == "corners" else points or _axis_count(*e, epsilon, kind) for e in ends)
        _check_count(count, domain.unit, size, colours)
        axes = [torch.tensor(e) if colours == "corners" else axis_points(*e, epsilon, kind, points) for e in ends]
        tables.append(_product(axes, width))
    return _stacked(tables)[inverse].to(device)


def _check_count(count: int, unit: str, size: int, colours: Colours) -> None:
    if count > MAX_POINTS:
        hint = "a larger epsilon" if colours == "corners" else "`colours='corners'`, a larger epsilon"
        raise ConfigError(
            f"a {unit} of {size} values has {count} grid points (limit {MAX_POINTS}): use {hint} or smaller groups"
        )


def _product(axes: Sequence[Tensor], width: int) -> Tensor:
    """All combinations of values on several axes, ``[points, width]``; missing columns repeat the first."""
    points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    return torch.cat([points, points[:, :1].expand(-1, width - len(axes))], 1)


def _stacked(tables: Sequence[Tensor]) -> Tensor:
    """Tables of points side by side; shorter ones repeat their last point."""
    most = max(len(table) for table in tables)
    return torch.stack([torch.cat([table, table[-1:].expand(most - len(table), -1)]) for table in tables])


def _own_points(
    domain: Domain,
    place: int,
    epsilon: float,
    kind: GridKind,
    colours: Colours,
    points: int,
    thresholds: Sequence[Tensor] | None,
) -> Tensor:
    """The points of one group under rules, or by thresholds."""
    rules, size, width = domain.rules, int(domain.sizes[place]), domain.members.shape[1]
    if isinstance(rules, Rules) and rules.counts[place]:
        return rules.vectors[place, : int(rules.counts[place])]
    axes = []
    for position in domain.members[place, :size].tolist():
        low, high = float(domain.low[position]), float(domain.high[position])
        whole = isinstance(rules, Rules) and bool(rules.whole[position])
        if thresholds is not None and size == 1:
            axes.append(interval_points(low, high, thresholds[position], whole=whole))
            continue
        axis = torch.tensor([low, high]) if colours == "corners" else axis_points(low, high, epsilon, kind, points)
        axes.append(axis.round().unique() if whole else axis)
    _check_count(math.prod(len(axis) for axis in axes), domain.unit, size, colours)
    return _product(axes, width)


def interval_points(low: float, high: float, thresholds: Tensor, *, whole: bool = False) -> Tensor:
    """A value in each interval that thresholds cut a range into.

    Args:
        low: Smallest value of the range.
        high: Largest value.
        thresholds: float64 ``[thresholds]``: what happens can change from values at or below one to values above it.
        whole: Only whole numbers count.

    Returns:
        float32 ``[points]``, ascending: a value of every interval that holds a float32 number (a whole one) of the
        range, and both ends.
    """
    inside = thresholds[(thresholds >= low) & (thresholds < high)].double().unique()
    starts = torch.cat([torch.tensor([low], dtype=torch.float64), inside])
    stops = torch.cat([inside, torch.tensor([high], dtype=torch.float64)])
    # The largest float32 (whole) number at or below an interval's end belongs to it, if it is above the start.
    last = stops.floor() if whole else stops.float().double()
    if not whole:
        below = torch.nextafter(last.float(), torch.tensor(-math.inf)).double()
        last = torch.where(last > stops, below, last)
    middle = ((starts + stops) / 2).floor() if whole else ((starts + stops) / 2).float().double()
    middle = torch.where((middle > starts) & (middle <= stops), middle, last)
    held = (last > starts) | (starts == low)
    points = torch.where(last > starts, middle, starts)[held]
    ends = torch.tensor([low, high], dtype=torch.float64)
    every: Tensor = torch.cat([points, ends]).float().unique()
    return every
