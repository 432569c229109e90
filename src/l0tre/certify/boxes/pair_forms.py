"""Two near pixels, bounded only where their windows meet.

A neuron that sees one of two changed pixels has the form that it has when this pixel changes alone. So with the forms
of all single pixels at hand, what a pair does is their sum and a rest, which is not zero only where both windows meet.
A linear operation maps rests to rests; after any other one the rest is the difference between the form of the pair and
the sum of the two alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from l0tre.certify.boxes.affine_forms import AffineForms, bend, pool
from l0tre.certify.boxes.window_forms import Items, LocalNetwork, WindowSite, dense, dense_values, stages
from l0tre.certify.boxes.windowed import Windowed
from l0tre.locality.local_part import Span, local_place, need, overlap, selects
from l0tre.locality.pair_interactions import carry_rest
from l0tre.locality.windows import Box, common_part, convolve_window, patches, shifted, sums_products
from l0tre.model.graph import Operation, run_operation

__all__ = [
    "PairPattern",
    "Pixel",
    "PixelForms",
    "add_forms",
    "cut_out",
    "make_singles",
    "map_interaction",
    "pair_forms",
    "patterns",
    "singles_bytes",
]

Pixel = tuple[int, int]


@dataclass(frozen=True)
class PixelForms:
    """Single pixels over the whole range of their values, for some images.

    Attributes:
        images: int64 ``[images]``, rows of the instance's images.
        places: int64 ``[pixels, 2]``, row and column of each pixel in the input.
        row: int64 ``[pixels]``, which row of its phase's tables each pixel is.
        tables: For every phase of the stride the forms by position, ``[images, rows, 1 + width, C, height, width]``.
        head: AffineForms of the dense layer after the windows, ``[images, pixels, 1 + width, features]``.
    """

    images: Tensor
    places: Tensor
    row: Tensor
    tables: dict[Pixel, dict[int, AffineForms]]
    head: AffineForms


def singles_bytes(local: LocalNetwork, width: int) -> int:
    """Memory that the tables of one pixel of one image take."""
    boxes = zip(local.plan.graph.operations, local.windows((0, 0), (1, 1)), strict=False)
    neurons = sum(operation.shape[0] * (box[0].size + 1) * (box[1].size + 1) for operation, box in boxes)
    return 16 * (1 + width) * neurons


def make_singles(windowed: Windowed, images: Tensor, items: Items) -> PixelForms:
    """Carry all single pixels.

    Args:
        windowed: Network and images.
        images: int64 ``[images]``, rows of the instance's images.
        items: Every pixel of the first of them, then every pixel of the next one, each time in the same order.

    Returns:
        The forms of all.
    """
    local, instance = windowed.local, windowed.instance
    count, stride = len(items) // len(images), local.plan.stride
    width = local.plan.graph.input_shape[2]
    plane = items.members[:count, 0, 0] % (local.plan.graph.input_shape[1] * width)
    places = torch.stack([plane // width, plane % width], 1)
    row = torch.zeros_like(plane)
    shape = (len(images), count, 1 + items.members.shape[2], windowed.weights.shape[-1])
    centre, radius = (instance.images.new_empty(shape) for _ in range(2))
    tables: dict[Pixel, dict[int, AffineForms]] = {}
    for phase in ((row_phase, column_phase) for row_phase in range(stride) for column_phase in range(stride)):
        own = (places % stride == torch.tensor(phase, device=plane.device)).all(1).nonzero()[:, 0]
        if not len(own):
            continue
        row[own] = torch.arange(len(own), device=own.device)
        every = (torch.arange(len(images), device=own.device)[:, None] * count + own).flatten()
        site, values = stages(local, instance, items.pick(every), keep=True)
        found = dense(site, values[local.plan.cut], (windowed.kinds, windowed.weights))
        centre[:, own], radius[:, own] = (
            p.view(len(images), len(own), *p.shape[1:]) for p in (found.centre, found.radius)
        )
        tables[phase] = {
            place: AffineForms(*(p.view(len(images), len(own), *p.shape[1:]) for p in (forms.centre, forms.radius)))
            for place, forms in values.items()
        }
    return PixelForms(images, places, row, tables, AffineForms(centre, radius))


def add_forms(first: Tensor, second: Tensor) -> Tensor:
    """The sum of forms ``[batch, 1 + variables, ...]`` of different variables, the first one's before the second's."""
    return torch.cat([first[:, :1] + second[:, :1], first[:, 1:], second[:, 1:]], 1)


def pair_forms(
    windowed: Windowed, singles: PixelForms, image: Tensor, pairs: Tensor
) -> Iterator[tuple[Tensor, AffineForms]]:
    """Bound pairs of pixels, batch by batch.

    Args:
        windowed: Network and images.
        singles: All pixels alone.
        image: int64 ``[pairs]``, the image of each pair, a place in ``singles.images``.
        pairs: int64 ``[pairs, 2]``, numbers of two different pixels each.

    Yields:
        Which pairs, int64 ``[batch]``, and forms of the dense layer after the windows,
        ``[batch, 1 + 2 * width, features]``.
    """
    columns = singles.head.centre.shape[2] * 2 - 1
    for pattern, which in patterns(windowed, singles, pairs, columns):
        yield which, _bound(windowed, singles, pattern, image[which], pairs[which])


def patterns(
    windowed: Windowed, singles: PixelForms, pairs: Tensor, columns: int
) -> Iterator[tuple["PairPattern", Tensor]]:
    """Pairs of pixels ``[pairs, 2]`` by their arrangement, as many together as the budget allows.

    Yields:
        The arrangement, and which pairs have it, int64 ``[batch]``.
    """
    stride, (_, height, width) = windowed.local.plan.stride, windowed.local.plan.graph.input_shape
    first, second = singles.places[pairs[:, 0]], singles.places[pairs[:, 1]]
    parts = torch.cat([first % stride, second - first], 1).T
    # One number for each arrangement: far quicker to sort than four.
    key = ((parts[0] * stride + parts[1]) * 2 * height + parts[2] + height) * 2 * width + parts[3] + width
    group = key.unique(return_inverse=True)[1]
    order = group.argsort(stable=True)
    stops = group.bincount().cumsum(0).tolist()
    for start, stop in zip([0, *stops], stops, strict=False):  # of no pairs there are no kinds
        phase_row, phase_column, down, right = parts[:, order[start]].tolist()
        pattern = PairPattern(windowed.local, (phase_row, phase_column), (down, right))
        most = max(1, windowed.budget // pattern.item_bytes(columns))
        for begin in range(start, stop, most):
            windowed.instance.pulse()
            yield pattern, order[begin : min(begin + most, stop)]


class PairPattern:
    """Pairs of one arrangement: the phase of the first pixel, and how far away the second one is."""

    def __init__(self, local: LocalNetwork, phase: Pixel, offset: Pixel) -> None:
        stride = local.plan.stride
        there = [phase[axis] + offset[axis] for axis in (0, 1)]
        self.local = local
        self.phases: tuple[Pixel, Pixel] = (phase, (there[0] % stride, there[1] % stride))
        self.boxes = (
            local.windows(phase, (1, 1)),
            tuple(
                _moved(box, (there[0] // stride, there[1] // stride), stride // local.plan.strides[place])
                for place, box in enumerate(local.windows(self.phases[1], (1, 1)))
            ),
        )
        self.meets: tuple[Box, ...] = tuple(
            (overlap(a[0], b[0]), overlap(a[1], b[1])) for a, b in zip(*self.boxes, strict=True)
        )

    def met(self, place: int) -> bool:
        """Whether the windows meet at a position."""
        return all(span.size for span in self.meets[place])

    def site(self, windowed: Windowed, singles: PixelForms, image: Tensor, pairs: Tensor) -> WindowSite:
        """Where pairs of this arrangement meet."""
        stride = self.local.plan.stride
        row, column = singles.places[pairs[:, 0]].T
        return WindowSite(
            self.local, windowed.instance, singles.images[image], (row // stride, column // stride), self.meets
        )

    def item_bytes(self, columns: int) -> int:
        """Memory that one pair takes."""
        operations = self.local.plan.graph.operations
        widest = max(1, dense_values(self.local, self.meets[-1]) // 2)
        for place, box in enumerate(self.meets):
            wider = selects(operations[place]) and self.met(place)
            sizes = [need(operations[place], span, axis).size if wider else span.size for axis, span in enumerate(box)]
            widest = max(widest, operations[place].shape[0] * sizes[0] * sizes[1])
        return 8 * widest * (12 * columns + 16)


def _moved(box: Box, steps: tuple[int, int], pace: int) -> Box:
    rows, columns = (
        Span(span.first + step * pace, span.last + step * pace) for span, step in zip(box, steps, strict=True)
    )
    return rows, columns


def _bound(windowed: Windowed, singles: PixelForms, pattern: PairPattern, image: Tensor, pairs: Tensor) -> AffineForms:
    """The forms of pairs of one arrangement after the windows."""
    local, width = windowed.local, singles.head.centre.shape[2] - 1
    site = pattern.site(windowed, singles, image, pairs)
    rows = [singles.row[pairs[:, side]] for side in (0, 1)]

    def alone(place: int, wanted: Box) -> list[Tensor]:
        """The sum of both pixels alone, in a box."""
        sides = []
        for side in (0, 1):
            forms, box = singles.tables[pattern.phases[side]][place], pattern.boxes[side][place]
            sides.append([cut_out(part, box, wanted, image, rows[side]) for part in (forms.centre, forms.radius)])
        return [add_forms(first, second) for first, second in zip(*sides, strict=True)]

    def curved(place: int, before: list[Tensor] | None) -> list[Tensor]:
        """The rest after an operation that is not linear: the forms of the pair less the sum of both alone."""
        operation, box = local.plan.graph.operations[place], pattern.meets[place]
        source = operation.inputs[0]
        wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
        together = alone(source, wanted)
        if before is not None:
            now = pattern.meets[source]
            together = [a.add_(shifted(b, now, wanted)) for a, b in zip(together, before, strict=True)]
        forms = AffineForms(together[0], together[1])
        if selects(operation):
            own, after = site.own(source, wanted, float("-inf")), site.own(place, box)
            forms = pool(operation, forms, own, after, local.slack[source], (box[0].size, box[1].size))
        else:
            own = site.own(source, box)
            forms = bend(operation, forms, own, run_operation(operation, own), local.slack[source])
        forms = site.inside(place, forms)
        return [a.sub_(b) for a, b in zip((forms.centre, forms.radius), alone(place, box), strict=True)]

    rest = carry_rest(local.plan, pattern.meets.__getitem__, 0, partial(_linear, site), curved)
    total = [
        add_forms(part[image, pairs[:, 0]], part[image, pairs[:, 1]])
        for part in (singles.head.centre, singles.head.radius)
    ]
    if rest is not None:
        more = dense(site, AffineForms(*rest), (windowed.kinds, windowed.weights))
        total = [total[0] + more.centre, total[1] + more.radius]
    assert total[0].shape[1] == 1 + 2 * width
    return AffineForms(total[0], total[1])


def cut_out(table: Tensor, box: Box, wanted: Box, image: Tensor, rows: Tensor) -> Tensor:
    """Rows ``[batch]`` of a table ``[images, rows, ..., height, width]`` known in a box, in another box."""
    part, common = common_part(table, box, wanted)
    return shifted(part[image, rows], common, wanted)


def _linear(site: WindowSite, place: int, rest: list[Tensor]) -> list[Tensor]:
    """The rest after a linear operation."""
    positive = site.local.positive[place]
    return [
        map_interaction(site, place, kind, part)
        for kind, part in zip((site.local.plain[place], positive), rest, strict=True)
    ]


def map_interaction(site: WindowSite, place: int, operation: Operation, rest: Tensor) -> Tensor:
    """Numbers ``[items, columns, C, rows, columns]`` after a linear operation, or the one of its absolute weights."""
    box, now = site.windows[place], site.windows[operation.inputs[0]]
    wanted = (need(operation, box[0], 0), need(operation, box[1], 1))
    if sums_products(operation):
        moved = convolve_window(site.local.plan, operation, rest[:, :, None], now, wanted, box)[:, :, 0]
    else:
        moved = patches(operation, shifted(rest, now, wanted)[:, :, None])[:, :, 0]
    return site.clear(place, moved) if local_place(operation).spills else moved
