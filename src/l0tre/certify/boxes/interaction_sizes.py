"""A quick look at near pairs: how much two pixels can do together beyond what each does alone.

Let ``a`` and ``b`` be what either does alone to the input of an operation ``f`` whose slopes, and zero, lie in a range
of length ``L``. Then ``f(x + a + b) - f(x + b)`` and ``f(x + a) - f(x)`` are both ``a`` times such slopes, so they
differ by ``L |a|`` at the most, and likewise by ``L |b|``. What operations before have left, ``r``, adds ``L |r|``.
For a max pool both lie between the least and the largest ``a`` of a patch. So sizes alone, carried where the windows
meet, bound the interaction, for a fraction of the cost of forms; it is small unless the pixels are very near.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes.pair_forms import PairPattern, Pixel, PixelForms, cut_out, map_interaction, patterns
from l0tre.certify.boxes.window_forms import gather_dense
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.relax.supported import curve_bounds, is_nonlinear
from l0tre.locality.local_part import local_place, need
from l0tre.locality.pair_interactions import carry_rest
from l0tre.locality.windows import Box, shifted
from l0tre.model.graph import Operation

__all__ = ["Sizes", "interaction_sizes", "make_sizes"]

ROUNDING = 1 + 2.0**-30  # nothing but sums of products that are not negative: more than all their rounding errors


@dataclass(frozen=True)
class Sizes:
    """How far single pixels can move the inputs of operations that are not linear.

    Attributes:
        up: By phase and position, ``[images, rows, C, height, width]``; not negative, rounding errors included.
        down: Likewise downwards.
    """

    up: dict[Pixel, dict[int, Tensor]]
    down: dict[Pixel, dict[int, Tensor]]


def make_sizes(windowed: Windowed, singles: PixelForms) -> Sizes:
    """The sizes of all single pixels."""
    operations = windowed.local.plan.graph.operations[: windowed.local.plan.cut + 1]
    sources = {operation.inputs[0] for operation in operations if is_nonlinear(operation)}
    up: dict[Pixel, dict[int, Tensor]] = {}
    down: dict[Pixel, dict[int, Tensor]] = {}
    for phase, tables in singles.tables.items():
        up[phase], down[phase] = {}, {}
        for place in sources:
            centre, radius, slack = tables[place].centre, tables[place].radius, windowed.local.slack[place]
            for found, part in ((up, centre + radius), (down, radius - centre)):
                most = part[:, :, 0] + part[:, :, 1:].abs().sum(2) + slack
                found[phase][place] = most.clamp_(min=0.0)
    return Sizes(up, down)


def interaction_sizes(
    windowed: Windowed, singles: PixelForms, sizes: Sizes, image: Tensor, pairs: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Bound the interactions of pairs of pixels, batch by batch.

    Args:
        windowed: Network and images.
        singles: All pixels alone.
        sizes: Their sizes.
        image: int64 ``[pairs]``, the image of each pair, a place in ``singles.images``.
        pairs: int64 ``[pairs, 2]``, numbers of two different pixels each.

    Yields:
        Which pairs, int64 ``[batch]``, and the largest interaction at the dense layer, ``[batch, features]``.
    """
    for pattern, which in patterns(windowed, singles, pairs, 1):
        yield which, _bound(windowed, singles, sizes, pattern, image[which], pairs[which])


def _bound(
    windowed: Windowed, singles: PixelForms, sizes: Sizes, pattern: PairPattern, image: Tensor, pairs: Tensor
) -> Tensor:
    """The interactions of pairs of one arrangement."""
    local = windowed.local
    site = pattern.site(windowed, singles, image, pairs)

    def alone(side: int, place: int, wanted: Box) -> tuple[Tensor, Tensor]:
        """How far one pixel moves what is in a box, up and down."""
        phase, box, rows = pattern.phases[side], pattern.boxes[side][place], singles.row[pairs[:, side]]
        up, down = (cut_out(kind[phase][place], box, wanted, image, rows) for kind in (sizes.up, sizes.down))
        return up, down

    def linear(place: int, before: Tensor) -> Tensor:
        return map_interaction(site, place, local.positive[place], before[:, None])[:, 0]

    def curved(place: int, before: Tensor | None) -> Tensor:
        operation, box = local.plan.graph.operations[place], pattern.meets[place]
        source = operation.inputs[0]
        wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
        left = None if before is None else shifted(before, pattern.meets[source], wanted)
        found = _bend(operation, [alone(side, source, wanted) for side in (0, 1)], left)
        return site.clear(place, found[:, None])[:, 0]

    rest = carry_rest(local.plan, pattern.meets.__getitem__, 0, linear, curved)
    if rest is None:
        return windowed.weights.new_zeros(len(pairs), windowed.weights.shape[-1])
    (total,) = gather_dense(site, [(rest[:, None], True)], (windowed.kinds, windowed.weights))
    return total[:, 0] * ROUNDING


def _bend(operation: Operation, alone: Sequence[tuple[Tensor, Tensor]], rest: Tensor | None) -> Tensor:
    """The largest rest after an operation that is not linear, ``[batch, C, rows, columns]``."""
    curve = curve_bounds(operation)
    if curve is None:
        sides = [_largest(operation, up) + _largest(operation, down) for up, down in alone]
        left = None if rest is None else _largest(operation, rest)
        slope = 1.0
    else:
        sides = [torch.maximum(up, down) for up, down in alone]
        left = rest
        least, most = curve.slopes(operation)
        slope = most - min(0.0, least)
    result = torch.minimum(sides[0], sides[1])
    if left is not None:
        result += left
    return result * slope


def _largest(operation: Operation, patches: Tensor) -> Tensor:
    """The largest values of patches that are laid out without padding."""
    return local_place(operation).patches(operation, patches)
