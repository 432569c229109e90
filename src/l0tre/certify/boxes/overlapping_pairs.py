"""Two pixels that are near, over finer and finer parts of both ranges."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.box_bounds import box_items
from l0tre.certify.boxes.head import interval_margins, proves
from l0tre.certify.boxes.interaction_sizes import interaction_sizes, make_sizes
from l0tre.certify.boxes.margin_errors import is_safe
from l0tre.certify.boxes.pair_forms import PixelForms, make_singles, pair_forms, singles_bytes
from l0tre.certify.boxes.range_parts import SAMPLE, FirstLook, children, full_boxes, halved, look, pair_boxes, too_many
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import join
from l0tre.certify.relax.interval import Interval

__all__ = ["overlapping_pairs"]

HALVINGS = 2  # of the ranges, if there are hidden layers after the windows: else boxes by themselves are cheap
FEW = {"cpu": 2**10, "cuda": 2**18}  # pairs for which no further tables are made: they go on as boxes


def overlapping_pairs(
    windowed: Windowed, images: Tensor, cells: Tensor, pairs: Tensor, hulls: Interval | None = None
) -> FirstLook:
    """Prove pairs of all images.

    Args:
        windowed: Network and images.
        images: int64 ``[images]``, rows of the instance's images.
        cells: int64 ``[pixels]``.
        pairs: int64 ``[pairs, 2]``, numbers of pixels that a neuron before the dense layer may see together.
        hulls: What each pixel can do to the dense layer alone, ``[images, pixels, features]`` each, for a quick look
            before; none if scores follow the windows at once.

    Returns:
        What was found.
    """
    rows = torch.arange(len(images), device=pairs.device).repeat_interleave(len(pairs))
    both = pairs.repeat(len(images), 1)
    open_ = torch.cat([rows[:, None], both, torch.zeros_like(both)], 1)  # image, two pixels, a part of each one's range
    proved, bounded, level = [Fraction(0)] * len(images), [0] * len(images), 0
    finest = 0 if windowed.local.flat else HALVINGS
    for depth in range(finest + 1):
        few = len(open_) < (FEW[open_.device.type] if depth else 1)
        if few or too_many(open_, depth, len(images)):
            break
        open_, level = children(open_, depth), depth
        safe = torch.zeros(len(open_), dtype=torch.bool, device=open_.device)
        for start, singles in _tables(windowed, images, cells, level):
            own = ((open_[:, 0] >= start) & (open_[:, 0] < start + len(singles.images))).nonzero()[:, 0]
            table = _Table(windowed, singles, start, len(cells))
            if hulls is not None and not level:
                safe[own] = table.glance(open_[own], hulls)
                own = own[~safe[own]]
            # Whole arrangements of two pixels: those of one arrangement are bounded together.
            sample = ((open_[own, 2] - open_[own, 1]) % SAMPLE == 1) & (level < finest)
            safe[own] = look(open_[own], open_[own, 0], sample, table.prove)
        counts = (rows.bincount(minlength=len(images)).tolist() for rows in (open_[:, 0], open_[safe, 0]))
        for row, (seen, done) in enumerate(zip(*counts, strict=True)):
            bounded[row] += seen + len(cells) * 2**level
            proved[row] += Fraction(done, 4**level)
        open_ = open_[~safe]
    left = [
        pair_boxes(windowed, image, cells, open_[open_[:, 0] == row, 1:], level)
        for row, image in enumerate(images.tolist())
    ]
    return FirstLook(proved, halved(join(left), 1), bounded)  # as they are they were not proved


def _tables(windowed: Windowed, images: Tensor, cells: Tensor, level: int) -> Iterator[tuple[int, PixelForms]]:
    """Some images at a time: the place of the first one, and the forms of all parts of all single pixels."""
    width = windowed.instance.members.shape[1]
    most = max(1, windowed.budget // (len(cells) * 2**level * singles_bytes(windowed.local, width)))
    for start in range(0, len(images), most):
        part = images[start : start + most]
        nodes = join([halved(full_boxes(windowed.instance, image, cells[:, None]), level) for image in part.tolist()])
        yield start, make_singles(windowed, part, box_items(windowed, nodes))


@dataclass(frozen=True)
class _Table:
    """Single pixels of some images, the first of them at ``start``; ``count`` pixels for each part of the ranges."""

    windowed: Windowed
    singles: PixelForms
    start: int
    count: int

    def glance(self, open_: Tensor, hulls: Interval) -> Tensor:
        """Which pairs of whole ranges are proved by the sizes of their interactions, bool ``[pairs]``."""
        image, pairs = open_[:, 0] - self.start, open_[:, 1:3]
        safe = torch.empty(len(open_), dtype=torch.bool, device=open_.device)
        sizes = make_sizes(self.windowed, self.singles)
        for which, together in interaction_sizes(self.windowed, self.singles, sizes, image, pairs):
            place, (first, second) = open_[which, 0], pairs[which].T
            low, high = (side[place, first] + side[place, second] for side in hulls)
            ranges, instance_image = (low - together, high + together), self.singles.images[image[which]]
            safe[which] = is_safe(
                self.windowed.instance, instance_image, interval_margins(self.windowed, instance_image, ranges), 2
            )
        return safe

    def prove(self, open_: Tensor) -> Tensor:
        """Which pairs are proved over their parts of the ranges, bool ``[pairs]``."""
        image, rows = open_[:, 0] - self.start, open_[:, 1:3] + open_[:, 3:] * self.count
        safe = torch.empty(len(open_), dtype=torch.bool, device=open_.device)
        for which, forms in pair_forms(self.windowed, self.singles, image, rows):
            safe[which] = proves(self.windowed, self.singles.images[image[which]], forms, 2)
        return safe
