"""What may change: groups of values (pixels, columns), their ranges and rules."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import ConfigError, DataError
from l0tre.layout import channel_axis
from l0tre.names import NO_NAMES, Names
from l0tre.rules import FREE, Restriction, Rules, same_rules

__all__ = [
    "Domain",
    "Groups",
    "Range",
    "make_domain",
    "restrict",
    "same_domain",
]

Groups = Literal["auto", "pixel", "feature"]
Range = float | np.ndarray | Tensor


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
        rules: Which values of their box groups may take.
        names: Of a table's columns, and what the numbers in columns of words stand for.
    """

    shape: tuple[int, ...]
    members: Tensor
    sizes: Tensor
    ids: Tensor
    low: Tensor
    high: Tensor
    unit: str
    rules: Restriction = FREE
    names: Names = NO_NAMES

    @property
    def groups(self) -> int:
        """Number of groups that may change."""
        return len(self.members)

    @cached_property
    def planes(self) -> int:
        """Planes of the input, one after the other, of which group g holds value g of each; 0 for other groups."""
        groups, width = self.members.shape
        if len(self.low) != groups * width or not bool((self.sizes == width).all()):
            return 0
        whole = torch.arange(groups * width, device=self.members.device).view(width, groups).T
        return width if torch.equal(self.members, whole) else 0

    def by_group(self, values: Tensor) -> Tensor:
        """Any numbers of values, ``[rows, groups, width]`` from ``[rows, values]``: a view where groups are planes."""
        if self.planes:
            return values.reshape(len(values), self.planes, self.groups).transpose(1, 2)
        return values[:, self.members]

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest values, float32 ``shape`` each."""
        return self.low.view(self.shape), self.high.view(self.shape)

    def to(self, device: torch.device) -> "Domain":
        """The same domain with its tensors on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("members", "sizes", "ids", "low", "high")}
        return replace(self, **moved, rules=self.rules.to(device) if isinstance(self.rules, Rules) else self.rules)

    def check(self, images: Tensor, indices: tuple[int, ...]) -> None:
        """Refuse images of another shape or with values outside the box.

        Args:
            images: ``[images, *shape]``.
            indices: Their positions in the user's data, for the message.

        Raises:
            DataError: Naming the first image that does not fit.
        """
        if tuple(images.shape[1:]) != self.shape:
            raise DataError(f"inputs have shape {tuple(images.shape[1:])}, the network takes {self.shape}")
        flat = images.flatten(1).cpu()
        bad = (flat < self.low.cpu()) | (flat > self.high.cpu())
        if bad.any():
            row, position = (int(i) for i in bad.nonzero()[0])
            raise DataError(
                f"input {indices[row]} has the value {flat[row, position]:.6g} {self._where([position])}, outside the "
                f"domain [{self.low[position]:.6g}, {self.high[position]:.6g}]: scale the data (`scale`) or widen the "
                "domain (`low`, `high`); normalisation belongs to the model (`mean`, `std`)"
            )
        if isinstance(self.rules, Rules):
            self._check_rules(flat, indices, self.rules)

    def _check_rules(self, flat: Tensor, indices: tuple[int, ...], rules: Rules) -> None:
        broken = (flat != flat.round()) & rules.whole.cpu()
        if broken.any():
            row, position = (int(i) for i in broken.nonzero()[0])
            raise DataError(
                f"input {indices[row]} has the value {flat[row, position]:.6g} {self._where([position])}, which "
                "may hold whole numbers only"
            )
        for place in rules.listed.tolist():
            members, count = self.members[place].cpu(), int(rules.counts[place])
            among = (flat[:, None, members] == rules.vectors[place, :count].cpu()).all(2).any(1)
            if not among.all():
                row = int((~among).nonzero()[0])
                held = ", ".join(f"{value:.6g}" for value in flat[row, members].tolist())
                raise DataError(
                    f"input {indices[row]} holds ({held}) {self._where(members.tolist())}, which is none of "
                    f"the {count} allowed values there"
                )

    def _where(self, positions: Sequence[int]) -> str:
        """Positions of an input in words."""
        if self.names.features:
            return f"in column{'' if len(positions) == 1 else 's'} {', '.join(map(self.names.feature, positions))}"
        return f"at position {positions[0]}" if len(positions) == 1 else f"at positions {list(positions)}"


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


def restrict(
    domain: Domain,
    *,
    listed: Mapping[int, np.ndarray | Tensor] | None = None,
    whole: Sequence[int] = (),
    upwards: Sequence[int] = (),
    downwards: Sequence[int] = (),
) -> Domain:
    """Allow only some of the values that lie in a domain's box.

    Args:
        domain: Groups and ranges, without rules.
        listed: By the number of a group (see ``Domain.ids``) the vectors that it may take, ``[vectors, size]``, in the
            order of its values; one-hot columns, for example, list the unit vectors. The box becomes that of the list.
        whole: Positions of values that are whole numbers.
        upwards: Positions of values that may only rise above the original ones.
        downwards: Positions of values that may only fall.

    Returns:
        The domain with these rules.

    Raises:
        ConfigError: If a group or position is not one of the domain's, or a list does not fit its group.
    """
    places = {number: place for place, number in enumerate(domain.ids.tolist())}
    vectors = {}
    low, high = domain.low.clone(), domain.high.clone()
    for number, given in (listed or {}).items():
        if number not in places:
            raise ConfigError(f"values are listed for group {number}, which is not one of those that may change")
        place = places[number]
        size, table = int(domain.sizes[place]), _array(given).to(torch.float32)
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or table.shape[1] != size or not len(table) or not bool(torch.isfinite(table).all()):
            raise ConfigError(
                f"the list of group {number} has shape {tuple(table.shape)}: give finite numbers, (values, {size})"
            )
        vectors[place] = table.unique(dim=0)
        own = domain.members[place, :size]
        low[own], high[own] = table.amin(0), table.amax(0)
    width = domain.members.shape[1]
    most = max((len(table) for table in vectors.values()), default=0)
    counts = torch.zeros(domain.groups, dtype=torch.int64)
    full = torch.zeros(domain.groups, most, width)
    for place, table in vectors.items():
        counts[place] = len(table)
        wide = torch.cat([table, table[:, :1].expand(-1, width - table.shape[1])], 1)
        full[place] = torch.cat([wide, wide[-1:].expand(most - len(wide), -1)])
    numbers = torch.zeros(len(low), dtype=torch.bool)
    numbers[list(whole)] = True
    low, high = torch.where(numbers, low.ceil(), low), torch.where(numbers, high.floor(), high)
    direction = torch.zeros(len(low), dtype=torch.int8)
    direction[list(upwards)] = 1
    direction[list(downwards)] = -1
    if set(upwards) & set(downwards):
        raise ConfigError("a value may either only rise or only fall: name it once")
    return replace(domain, low=low, high=high, rules=Rules(counts, full, numbers, direction))


def same_domain(a: Domain, b: Domain) -> bool:
    """Whether two domains let the same values change, within the same ranges and rules."""
    names = ("members", "low", "high")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names) and same_rules(a.rules, b.rules)


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
