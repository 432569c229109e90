"""Two pixels that are far apart: ranges of the dense layer after the windows add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.box_bounds import box_items, carry_items
from l0tre.certify.boxes.head import form_ranges, interval_margins, margin_bytes
from l0tre.certify.boxes.margin_errors import is_safe
from l0tre.certify.boxes.range_parts import SAMPLE, FirstLook, children, full_boxes, halved, look, pair_boxes, too_many
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import join
from l0tre.certify.relax.interval import Interval

__all__ = ["coarse_ranges", "disjoint_pairs", "hulls", "table_bytes"]

TOGETHER = 16  # images whose tables are made together
ROWS = {"cpu": 2**12, "cuda": 2**22}  # of pairs together: on a CPU more would not fit its caches
HALVINGS = (2, 4)  # of single pixels' ranges: the finer ones only for what the coarser ones leave


def disjoint_pairs(
    windowed: Windowed,
    images: Tensor,
    cells: Tensor,
    pairs: Tensor,
    tables: Sequence[Interval],
    stages: Sequence[tuple[int, int]] | None = None,
) -> list[FirstLook]:
    """Prove pairs of each image over finer and finer parts of both ranges.

    What a pixel does to the dense layer over a part of its range is the hull of what it does over much smaller parts,
    so even sums over whole ranges are tight.

    Args:
        windowed: Network and images, of a network with more layers after the dense one.
        images: int64 ``[images]``, rows of the instance's images.
        cells: int64 ``[pixels]``.
        pairs: int64 ``[pairs, 2]``, numbers of pixels that no neuron before the dense layer sees together.
        tables: See :func:`coarse_ranges`.
        stages: How often single ranges are halved for a table, and those of pairs that are tried with it, at the most;
            by default the same, for each of ``HALVINGS``.

    Returns:
        What was found for each image.
    """
    stages = stages or tuple((halvings, halvings) for halvings in HALVINGS)
    return [
        _search(windowed, image, cells, pairs, table, stages)
        for image, table in zip(images.tolist(), tables, strict=True)
    ]


def coarse_ranges(windowed: Windowed, images: Tensor, cells: Tensor, halvings: int | None = None) -> list[Interval]:
    """For each image what parts of ranges do to the dense layer, ``[parts * pixels, features]`` each.

    Args:
        windowed: See :func:`disjoint_pairs`.
        images: Likewise.
        cells: Likewise.
        halvings: Of the ranges; default the first of ``HALVINGS``.
    """
    halvings = HALVINGS[0] if halvings is None else halvings
    one = 4 * table_bytes(windowed, cells, halvings)
    # A GPU would wait for the many small steps of one image.
    together = max(1, min(TOGETHER, windowed.budget // one))
    return [
        table
        for start in range(0, len(images), together)
        for table in _ranges(windowed, images[start : start + together].tolist(), cells, halvings)
    ]


def table_bytes(windowed: Windowed, cells: Tensor, halvings: int | None = None) -> int:
    """Memory that one table of :func:`coarse_ranges` takes."""
    width, features = windowed.instance.members.shape[1], windowed.weights.shape[-1]
    parts: int = 2 ** (HALVINGS[0] if halvings is None else halvings)
    return 16 * len(cells) * parts * (1 + width) * features


def hulls(tables: Sequence[Interval], cells: Tensor) -> Interval:
    """What pixels can do over their whole ranges, ``[images, pixels, features]`` each."""
    whole = [_hull(table, 0, len(cells)) for table in tables]
    return torch.stack([low for low, _ in whole]), torch.stack([high for _, high in whole])


def _search(
    windowed: Windowed,
    image: int,
    cells: Tensor,
    pairs: Tensor,
    leaves: Interval,
    stages: Sequence[tuple[int, int]],
) -> FirstLook:
    """The same for one image, whose first table is given."""
    open_ = torch.cat([pairs, torch.zeros_like(pairs)], 1)  # two pixels, a part of each one's range
    proved, bounded, level = Fraction(0), 0, 0
    for finest, deepest in stages:
        if not len(open_):
            break
        if finest > stages[0][0]:
            (leaves,) = _ranges(windowed, [image], cells, finest)
        bounded += len(cells) * 2**finest
        for depth in range(level, deepest + 1):
            if depth > level:
                if too_many(open_, depth, 1):
                    break
                open_, level = children(open_, depth), depth
            sums = _Sums(windowed, image, _hull(leaves, level, len(cells)), len(cells))
            sample = torch.zeros(len(open_), dtype=torch.bool, device=open_.device)
            sample[::SAMPLE] = level < stages[-1][1]
            safe = look(open_, torch.zeros_like(open_[:, 0]), sample, sums.prove)
            bounded += len(open_)
            proved += Fraction(int(safe.sum()), 4**level)
            open_ = open_[~safe]
    return FirstLook([proved], pair_boxes(windowed, image, cells, open_, level), [bounded])


def _ranges(windowed: Windowed, images: Sequence[int], cells: Tensor, halvings: int) -> list[Interval]:
    """For each image what each part of each pixel's range can do to the dense layer, ``[parts * pixels, features]``."""
    nodes = join([halved(full_boxes(windowed.instance, image, cells[:, None]), halvings) for image in images])
    low, high = form_ranges(carry_items(windowed, box_items(windowed, nodes)))
    return list(zip(low.chunk(len(images)), high.chunk(len(images)), strict=True))


def _hull(leaves: Interval, level: int, count: int) -> Interval:
    """The same for the wider parts of a level, each the hull of its smaller ones."""
    low, high = (part.view(-1, 2**level * count, part.shape[-1]) for part in leaves)
    return low.amin(0), high.amax(0)


@dataclass(frozen=True)
class _Sums:
    """What two parts of two pixels' ranges do together."""

    windowed: Windowed
    image: int
    table: Interval
    count: int

    def prove(self, open_: Tensor) -> Tensor:
        """Which pairs are proved, bool ``[pairs]``."""
        image = torch.tensor([self.image], device=open_.device)
        most = max(1, min(ROWS[open_.device.type], self.windowed.budget // margin_bytes(self.windowed, 1)))
        result = torch.empty(len(open_), dtype=torch.bool, device=open_.device)
        for start in range(0, len(open_), most):
            self.windowed.instance.pulse()
            part = open_[start : start + most]
            first, second = (part[:, :2] + part[:, 2:] * self.count).T
            sums = (side[first] + side[second] for side in self.table)
            margins = interval_margins(self.windowed, image, (next(sums), next(sums)))
            result[start : start + most] = is_safe(self.windowed.instance, image, margins, 2)
        return result
