"""Parts of the search space around known flips, and whether a proved part holds one."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fuzz.calibrate import Flip
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.certify.regions.tree import Tree
from l0tre.domain import Domain

__all__ = ["Space", "box_nodes", "cell_nodes", "held"]

HALVINGS = (0, 3, 8, 16, 23, 40)  # of the ranges around a flip


class Space:
    """What the nodes of a search are made of: the tree of cells, the domain and the image.

    Attributes:
        inside: The groups of every cell; entry 0 is unused.
        leaf: The leaf that holds each group.
    """

    def __init__(self, tree: Tree, domain: Domain, image: Tensor) -> None:
        self.tree, self.domain, self.image = tree, domain, image
        order = tree.order.tolist()
        self.leaf = {group: tree.slots + slot for slot, group in enumerate(order) if group >= 0}
        self.inside = [frozenset[int]() for _ in range(2 * tree.slots)]
        for cell in range(2 * tree.slots - 1, 0, -1):
            if cell < tree.slots:
                self.inside[cell] = self.inside[2 * cell] | self.inside[2 * cell + 1]
            else:
                self.inside[cell] = frozenset({order[cell - tree.slots]} - {-1})

    def values(self, x: np.ndarray, group: int) -> np.ndarray:
        """The values that an input has in a group, one for each of its members."""
        members = self.domain.members[group, : int(self.domain.sizes[group])]
        return np.asarray(x[members.numpy()])


def held(space: Space, nodes: Nodes, flips: Sequence[Flip]) -> Iterator[tuple[int, Flip]]:
    """The nodes that stand for a known flip, by row, with the flip."""
    image = space.image.flatten().double().numpy()
    for row in range(len(nodes)):
        cells = nodes.cells[row].tolist()
        counts = {cell: (times, space.inside[cell]) for cell, times in Counter(cells).items()}
        for flip in flips:
            taken = {cell: inside.intersection(flip.groups) for cell, (_, inside) in counts.items()}
            if sum(map(len, taken.values())) < len(flip.groups):
                continue
            if any(len(taken[cell]) > times for cell, (times, _) in counts.items()):
                continue
            if isinstance(nodes, CellNodes) or nodes.high is None or _in_box(space, nodes, row, flip, image):
                yield row, flip


def _in_box(space: Space, nodes: Nodes, row: int, flip: Flip, image: np.ndarray) -> bool:
    """Whether a flip lies in the box of a node; groups that it leaves alone have the image's values."""
    assert isinstance(nodes, BoxNodes)
    for slot, cell in enumerate(nodes.cells[row].tolist()):
        (group,) = space.inside[cell]
        values = space.values(flip.x if group in flip.groups else image, group)
        low, high = (end[row, slot, : len(values)].numpy() for end in (nodes.low, nodes.high))
        if not bool(((low <= values) & (values <= high)).all()):
            return False
    return True


def box_nodes(space: Space, flips: Sequence[Flip], t: int) -> BoxNodes | None:
    """Boxes around the flips of ``t`` groups, from their whole ranges to the flip alone; none without such flips."""
    chosen = [flip for flip in flips if len(flip.groups) == t]
    if not chosen:
        return None
    width = space.domain.members.shape[1]
    ends = [end.double().numpy() for end in (space.domain.low, space.domain.high)]
    cells, lows, highs = [], [], []
    for flip in chosen:
        order = sorted(flip.groups, key=space.leaf.__getitem__)
        for halvings in (*HALVINGS, None):
            low, high = np.zeros((2, t, width))
            for slot, group in enumerate(order):
                values = space.values(flip.x, group)
                least, most = (space.values(end, group) for end in ends)
                reach = 0.0 if halvings is None else (most - least) * 2.0**-halvings
                low[slot, : len(values)] = np.maximum(values - reach, least)
                high[slot, : len(values)] = np.minimum(values + reach, most)
            cells.append([space.leaf[group] for group in order])
            lows.append(low)
            highs.append(high)
    zeros = torch.zeros(len(cells), dtype=torch.int64)
    least_values, most_values = (torch.from_numpy(np.stack(values)) for values in (lows, highs))
    return BoxNodes(zeros, torch.tensor(cells), least_values, most_values, zeros)


def cell_nodes(space: Space, flips: Sequence[Flip], t: int) -> CellNodes | None:
    """Nodes of cells around the flips of ``t`` groups, from the root down to the last that hold several groups."""
    rows = set()
    for flip in flips:
        if len(flip.groups) == t:
            leaves = [space.leaf[group] for group in flip.groups]
            for height in range(1, space.tree.depth + 1):
                cells = tuple(sorted(leaf >> height for leaf in leaves))
                if max(int(space.tree.sizes[cell]) for cell in cells) > 1:
                    rows.add(cells)
    if not rows:
        return None
    return CellNodes(torch.zeros(len(rows), dtype=torch.int64), torch.tensor(sorted(rows)))
