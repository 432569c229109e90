"""The first look at a level: every set of pixels at once, those that are far apart decided by sums of tables."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.clusters.forms import Forms, least
from l0tre.certify.clusters.margins import (
    Ground,
    behind,
    behind_bytes,
    box_items,
    carry_items,
    lower_forms,
    near_pixels,
)
from l0tre.certify.clusters.pairs import Singles, add_forms, make_singles, pair_forms, singles_bytes
from l0tre.certify.nodes import Nodes, join, split_boxes

__all__ = ["Found", "errors", "full_boxes", "sets_of", "survey"]

SINGLE_HALVINGS = 4  # of the range of every value, for the table of single pixels
PAIR_HALVINGS = 4  # of the boxes of two pixels that are near
TRIPLE_HALVINGS = 2  # of the boxes of three pixels: hardly any is proved whole
FINEST = 3  # halvings of single pixels whose effects are not only added up
ENTRIES = 2**22  # numbers of a table that are worked on at a time


@dataclass(frozen=True)
class Found:
    """What a survey found.

    Attributes:
        proved: For each image how many sets are proved, exactly; a part of a set's values counts as a fraction.
        left: The boxes that are not.
        bounded: For each image how many boxes were bounded.
    """

    proved: list[Fraction]
    left: Nodes
    bounded: list[int]


def sets_of(ground: Ground, t: int) -> int:
    """How many sets a survey looks at."""
    return math.comb(int(ground.scene.tree.sizes[1]), t)


def errors(ground: Ground, image: Tensor, t: int) -> Tensor:
    """What bounds of margins must exceed, ``[batch, classes - 1]``: several of them are added up."""
    return 4 * (t + 1) * ground.scene.slack[image]


def survey(ground: Ground, images: Tensor, t: int) -> Found:
    """Look at all sets of ``t`` pixels.

    Args:
        ground: Network and images.
        images: int64 ``[images]``, rows of the scene's images.
        t: 1, 2, or if scores follow the windows at once 3.

    Returns:
        What is proved, and all else as boxes.
    """
    tree = ground.scene.tree
    cells = (tree.order >= 0).nonzero()[:, 0] + tree.slots
    if t == 1:
        left = [full_boxes(ground, image, cells[:, None]) for image in images.tolist()]
        return Found([Fraction(0)] * len(images), join(left), [0] * len(images))
    if not ground.local.flat:
        return _pairs(ground, images, cells)
    singles = _losses(ground, images, cells[:, None], SINGLE_HALVINGS)
    bounded = len(cells) * 2**SINGLE_HALVINGS
    if t == 2:
        sets = torch.combinations(torch.arange(len(cells), device=cells.device))
        open_ = near_pixels(ground.local, *_pixels(ground, cells[sets]).T)
        bounded += len(cells) + int(open_.sum())
        table = None
    else:
        sets, open_, near = _triples(ground, cells)
        pairs = _losses(ground, images, cells[near], PAIR_HALVINGS)
        bounded += len(near) * 2**PAIR_HALVINGS
        table = singles[:, :, None] + singles[:, None]
        table[:, near[:, 0], near[:, 1]] = pairs
    near_safe = _near_safe(ground, images, cells, sets[open_]) if t == 2 else None
    proved, left = [], []
    for row, image in enumerate(images.tolist()):
        own = images[row : row + 1]
        floor = errors(ground, own, t) - ground.scene.margins[own]
        safe = torch.zeros_like(open_)
        for start in range(0, len(sets), ENTRIES // floor.shape[1]):
            part = sets[start : start + ENTRIES // floor.shape[1]]
            first = (
                singles[row][part[:, 0]] + singles[row][part[:, 1]]
                if table is None
                else table[row][part[:, 0], part[:, 1]]
            )
            total = first if t == 2 else first + singles[row][part[:, 2]]
            safe[start : start + len(part)] = ((total > floor) & torch.isfinite(total)).all(1)
        safe &= ~open_
        apart = full_boxes(ground, image, cells[sets[~(safe | open_)]])
        if near_safe is not None:
            safe[open_] = near_safe[row]
        # Near pairs that are left were not proved whole.
        together = _halved(full_boxes(ground, image, cells[sets[open_ & ~safe]]), 1 if t == 2 else TRIPLE_HALVINGS)
        proved.append(Fraction(int(safe.sum())))
        left.append(join([apart, together]))
    return Found(proved, join(left), [bounded] * len(images))


def full_boxes(ground: Ground, image: int, cells: Tensor) -> Nodes:
    """Nodes of single groups ``[nodes, t]`` with the whole range of their values."""
    scene = ground.scene
    members = scene.members[cells - scene.tree.slots]
    own = torch.nn.functional.pad(scene.images[image], (0, 1))[members]
    low, high = (own + torch.nn.functional.pad(part[image], (0, 1))[members] for part in (scene.down, scene.up))
    images = torch.full((len(cells),), image, device=cells.device)
    return Nodes(images, cells, low, high, torch.zeros_like(images))


def _halved(nodes: Nodes, times: int) -> Nodes:
    """Boxes halved so many times, always the longest side."""
    for _ in range(times):
        assert nodes.low is not None
        nodes = split_boxes(nodes, torch.ones_like(nodes.low))
    return nodes


def _pixels(ground: Ground, cells: Tensor) -> Tensor:
    """Numbers of the groups' pixels in the input's plane."""
    _, height, width = ground.local.plan.graph.input_shape
    return ground.scene.members[cells - ground.scene.tree.slots][..., 0] % (height * width)


def _triples(ground: Ground, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All triples, those that are one cluster, and all near pairs; the two that are near come first."""
    count = len(cells)
    pixels = _pixels(ground, cells)
    near = near_pixels(ground.local, pixels[:, None], pixels[None])
    a, b, c = torch.combinations(torch.arange(count, device=cells.device), 3).T
    ab, ac, bc = near[a, b], near[a, c], near[b, c]
    connected = (ab.int() + ac.int() + bc.int()) > 1
    first = torch.where(bc & ~ab & ~ac, b, a)
    second = torch.where(ac & ~ab, c, torch.where(bc & ~ab, c, b))
    third = a + b + c - first - second
    pairs = near.triu(1).nonzero()
    return torch.stack([first, second, third], 1), connected, pairs


def _losses(ground: Ground, images: Tensor, cells: Tensor, halvings: int) -> Tensor:
    """The least that each set of pixels can change each margin, ``[images, sets, classes - 1]``."""
    scene = ground.scene
    result = scene.images.new_empty(len(images), len(cells), scene.margins.shape[1])
    for row, image in enumerate(images.tolist()):
        nodes = _halved(full_boxes(ground, image, cells), halvings)
        change = least(lower_forms(ground, nodes)) - scene.margins[image]
        # What is not a number must not vanish in a minimum: it becomes a change that proves nothing.
        change = torch.where(torch.isfinite(change), change, -torch.inf)
        result[row] = change.view(2**halvings, *result.shape[1:]).amin(0)
    return result


def _pairs(ground: Ground, images: Tensor, cells: Tensor) -> Found:
    """Pairs in a network with more layers behind the windows.

    The forms of single pixels are worked out once. Two of them that are near are bounded where their windows meet; far
    apart they cost no more than a sum and the layers behind, and are looked at over finer and finer parts of their
    ranges.
    """
    sets = torch.combinations(torch.arange(len(cells), device=cells.device))
    near = near_pixels(ground.local, *_pixels(ground, cells[sets]).T)
    found = []
    for part, nodes, singles in _single_tables(ground, images, cells):
        safe = _near_pairs(ground, singles, sets[near])
        for row, image in enumerate(part.tolist()):
            own = nodes.pick(nodes.image == image)
            table = Forms(singles.head.centre[row], singles.head.radius[row])
            far = _far_pairs(ground, own, table, sets[~near], cells)
            open_ = _halved(full_boxes(ground, image, cells[sets[near][~safe[row]]]), 1)
            bounded = len(own) + len(safe[row]) + far.bounded[0]
            found.append(Found([far.proved[0] + int(safe[row].sum())], join([open_, far.left]), [bounded]))
    return Found([f.proved[0] for f in found], join([f.left for f in found]), [f.bounded[0] for f in found])


def _single_tables(ground: Ground, images: Tensor, cells: Tensor) -> Iterator[tuple[Tensor, Nodes, Singles]]:
    """Some images at a time, their single pixels as nodes, and the forms of these."""
    width = ground.scene.members.shape[1]
    most = max(1, ground.budget // (len(cells) * singles_bytes(ground.local, width)))
    for start in range(0, len(images), most):
        part = images[start : start + most]
        nodes = join([full_boxes(ground, image, cells[:, None]) for image in part.tolist()])
        yield part, nodes, make_singles(ground, part, box_items(ground, nodes))


def _near_safe(ground: Ground, images: Tensor, cells: Tensor, pairs: Tensor) -> Tensor:
    """Which near pairs are proved over all their values, bool ``[images, pairs]``."""
    tables = _single_tables(ground, images, cells)
    return torch.cat([_near_pairs(ground, singles, pairs) for _, _, singles in tables])


def _near_pairs(ground: Ground, singles: Singles, pairs: Tensor) -> Tensor:
    """The same for the images of some tables."""
    safe = torch.zeros(len(singles.images), len(pairs), dtype=torch.bool, device=pairs.device)
    for image, which, forms in pair_forms(ground, singles, pairs):
        safe[image, which] = _proves(ground, singles.images[image], forms, 2)
    return safe


def _proves(ground: Ground, images: Tensor, forms: Forms, t: int) -> Tensor:
    """Whether forms behind the windows prove that no margin falls to zero, bool ``[batch]``."""
    most = max(1, ground.budget // behind_bytes(ground, forms.centre.shape[1]))
    result = torch.empty(len(images), dtype=torch.bool, device=images.device)
    for start in range(0, len(images), most):
        part = slice(start, start + most)
        margins = least(behind(ground, images[part], Forms(forms.centre[part], forms.radius[part])))
        result[part] = ((margins > errors(ground, images[part], t)) & torch.isfinite(margins)).all(1)
    return result


def _far_pairs(ground: Ground, nodes: Nodes, table: Forms, pairs: Tensor, cells: Tensor) -> Found:
    """Pairs of pixels of one image that are far apart.

    Args:
        ground: Network and images.
        nodes: The image's single pixels.
        table: Their forms behind the windows, ``[pixels, 1 + width, features]``.
        pairs: int64 ``[pairs, 2]``, numbers of pixels.
        cells: int64 ``[pixels]``.

    Returns:
        What was found.
    """
    image, count = nodes.image[:1], len(cells)
    open_ = torch.cat([pairs, torch.zeros_like(pairs)], 1)  # two pixels, a part of each one's range
    proved, bounded = Fraction(0), 0
    for level in range(FINEST + 1):
        if level:
            nodes = _halved(nodes, 1)
            open_ = _children(open_, level)
            table = carry_items(ground, box_items(ground, nodes))
            bounded += len(nodes)
        bounded += len(open_)
        safe = _sums_prove(ground, image, table, open_[:, :2] + open_[:, 2:] * count)
        proved += Fraction(int(safe.sum()), 4**level)
        open_ = open_[~safe]
        if not len(open_):
            break
    rows = open_[:, :2] + open_[:, 2:] * count
    assert nodes.low is not None
    assert nodes.high is not None
    depth = torch.full((len(rows),), 2 * FINEST, device=cells.device)
    low, high = (part[rows][:, :, 0] for part in (nodes.low, nodes.high))
    left = Nodes(image.expand(len(rows)), cells[open_[:, :2]], low, high, depth)
    return Found([proved], left, [bounded])


def _children(open_: Tensor, level: int) -> Tensor:
    """Pairs with halves of both parts: splitting lays the upper halves behind all lower ones."""
    step = 2 ** (level - 1)
    shifts = torch.tensor([[0, 0, 0, 0], [0, 0, 0, step], [0, 0, step, 0], [0, 0, step, step]], device=open_.device)
    return (open_[:, None] + shifts).flatten(0, 1)


def _sums_prove(ground: Ground, image: Tensor, table: Forms, rows: Tensor) -> Tensor:
    """Whether sums of two rows of a table of forms ``[rows, 1 + width, features]`` prove a pair, bool ``[pairs]``."""
    most = max(1, ground.budget // behind_bytes(ground, 2 * table.centre.shape[1] - 1))
    result = torch.empty(len(rows), dtype=torch.bool, device=rows.device)
    for start in range(0, len(rows), most):
        ground.scene.pulse()
        first, second = rows[start : start + most].T
        sums = Forms(*(add_forms(part[first], part[second]) for part in (table.centre, table.radius)))
        result[start : start + most] = _proves(ground, image.expand(len(first)), sums, 2)
    return result
