"""What the groups of every cell can add at the most: tables by cell and rank, whole or filled as they are asked for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.regions.tree import Tree

__all__ = ["CellTable", "make_table", "ranked_together", "smallest", "table_row"]

CACHED = 2**16  # numbers that a CPU's caches hold
TOGETHER = 2**18  # entries of a table filled as needed that are worked out at once
MOST_TOGETHER = 2**25  # entries up to which many ranks are merged in one operation
# A neuron that at most one in so many groups reach: a row of its table is worked out alone when it is needed.
SPARSE = 8


@dataclass(frozen=True)
class CellTable:
    """What groups of cells can add to neurons that depend on the input linearly.

    Attributes:
        rows: float64 ``[2, images, rows, neurons]``, at :func:`table_row` of a cell and a rank what the ``rank + 1``-th
            strongest group of the cell can add to each neuron at the least and, with the sign turned, at the most.
        known: bool ``[images, rows]``, which rows are filled; none if all are.
        effects: float64 ``[2, images, most, neurons]``, what the groups that reach each neuron add alone, likewise.
        slots: int64 ``[most, neurons]``, the slots of these groups, -1 for none.
    """

    rows: Tensor
    known: Tensor | None = None
    effects: Tensor | None = None
    slots: Tensor | None = None

    def look_up(self, tree: Tree, image: Tensor, cells: Tensor, ranks: Tensor) -> Tensor:
        """What nodes can add.

        Args:
            tree: The cells.
            image: int64 ``[nodes]``.
            cells: int64 ``[nodes, t]``.
            ranks: int64 ``[nodes, t]``, for every cell how many equal ones come before it.

        Returns:
            float64 ``[2, nodes, neurons]``, at the least and, with the sign turned, at the most.
        """
        rows = table_row(tree, cells, ranks)
        if self.known is not None:
            missing = ~self.known[image[:, None], rows]
            if bool(missing.any()):
                self._fill(tree, image[:, None].expand_as(rows)[missing], cells[missing], ranks[missing])
        total = self.rows[:, image, rows[:, 0]]
        for place in range(1, rows.shape[1]):
            total += self.rows[:, image, rows[:, place]]
        return total

    def _fill(self, tree: Tree, image: Tensor, cells: Tensor, ranks: Tensor) -> None:
        """Work out rows, given by int64 ``[rows]`` each."""
        assert self.known is not None
        assert self.effects is not None
        assert self.slots is not None
        kinds = torch.stack([ranks, image, cells], 1).unique(dim=0)
        for part in kinds.split(max(1, TOGETHER // self.effects[:, 0].numel())):
            rank, image, cell = part.T
            height = tree.heights[cell]
            first = (cell << height) - tree.slots
            last = first + (torch.ones_like(cell) << height)
            inside = (self.slots >= first[:, None, None]) & (self.slots < last[:, None, None])
            left = torch.where(inside, self.effects[:, image], 0.0)
            for taken in range(int(rank.max())):
                rows = (rank > taken).nonzero()[:, 0]
                some = left[:, rows]
                left[:, rows] = some.scatter_(2, some.argmin(2, keepdim=True), 0.0)
            place = table_row(tree, cell, rank)
            self.rows[:, image, place] = left.amin(2)
            self.known[image, place] = True


def make_table(tree: Tree, jacobian: Tensor, members: Tensor, down: Tensor, up: Tensor, ranks: int) -> CellTable:
    """The table of neurons that are a linear map of the input.

    Args:
        tree: The cells.
        jacobian: float64 ``[values, neurons]``.
        members: int64 ``[slots, width]``, values of the group in each slot; ``values`` for none.
        down: float64 ``[images, values]``, how far each value may fall, at most 0.
        up: Likewise how far it may rise.
        ranks: Largest number of groups that change together.

    Returns:
        The table; on a CPU, if each neuron depends on few groups, without any row as yet.
    """
    neurons = jacobian.shape[1]
    rows = jacobian.new_empty(2, len(down), (ranks + 1) * tree.slots, neurons)
    slots = None if jacobian.is_cuda else _reaching(tree, jacobian, members)
    down, up = (torch.nn.functional.pad(change, (0, 1))[:, members] for change in (down, up))  # [images, slots, width]
    padded = torch.nn.functional.pad(jacobian, (0, 0, 0, 1))
    if slots is not None:
        columns = padded[members[slots], torch.arange(neurons, device=rows.device)[:, None]]  # [most, neurons, width]
        first, second = (columns * change[:, slots] for change in (down, up))
        effects = torch.stack([torch.minimum(first, second).sum(3), -torch.maximum(first, second).sum(3)])
        known = torch.zeros(rows.shape[1:3], dtype=torch.bool, device=rows.device)
        return CellTable(rows, known, effects, slots)  # a slot of -1 lies in no cell
    # On a CPU so few neurons at a time that what is computed on the way stays in its caches.
    most = neurons if jacobian.is_cuda else max(1, CACHED // members.numel())
    for start in range(0, neurons, most):
        part = slice(start, start + most)
        columns = padded[:, part][members]  # [slots, width, neurons]
        for image in range(len(down)):
            first, second = (columns * change[image][..., None] for change in (down, up))
            rows[0, image, :, part] = smallest(torch.minimum(first, second).sum(1), ranks)
            rows[1, image, :, part] = smallest(-torch.maximum(first, second).sum(1), ranks)
    return CellTable(rows)


def _reaching(tree: Tree, jacobian: Tensor, members: Tensor) -> Tensor | None:
    """The slots of the groups that reach each neuron, int64 ``[most, neurons]``; ``None`` if they are many."""
    values, neurons = jacobian.shape
    slot_of = torch.full((values + 1,), -1, device=members.device)
    slot_of[members] = torch.arange(tree.slots, device=members.device)[:, None]
    value, neuron = (jacobian != 0).nonzero(as_tuple=True)
    slot = slot_of[value]
    keys = (neuron * tree.slots + slot)[slot >= 0].unique()  # ascending by neuron
    neuron, slot = keys // tree.slots, keys % tree.slots
    counts = neuron.bincount(minlength=neurons)
    most = max(1, int(counts.max()))
    if most * SPARSE > tree.slots:
        return None
    found = torch.full((most, neurons), -1, device=members.device)
    place = torch.arange(len(keys), device=keys.device) - (counts.cumsum(0) - counts)[neuron]
    found[place, neuron] = slot
    return found


def smallest(values: Tensor, ranks: int) -> Tensor:
    """The smallest values of every cell of a tree.

    Args:
        values: ``[..., slots, columns]``, at most 0.
        ranks: How many of the smallest to give.

    Returns:
        ``[..., rows, columns]``, at :func:`table_row` of a cell and rank ``r`` its ``r + 1``-th smallest value; 0 where
        a cell has fewer groups.
    """
    slots = values.shape[-2]
    if values.is_cuda and values.numel() * ranks * ranks < MOST_TOGETHER:
        return ranked_together(values, ranks)
    result = values.new_empty(*values.shape[:-2], (ranks + 1) * slots, values.shape[-1])
    result[..., slots:, :] = 0.0
    result[..., slots : 2 * slots, :] = values
    result[..., 0, :] = 0.0

    def level(rank: int, width: int) -> Tensor:
        start = width + (rank + 1) * slots if rank else width
        return result[..., start : start + width, :]

    width, filled = slots, 1
    while width > 1:
        lists = [level(rank, width) for rank in range(filled)]
        width //= 2
        # The r-th smallest of two lists is the least, over i + j = r - 1, of the larger of the i-th and the j-th. A
        # list is only filled as far as its cell can have groups.
        for rank in range(min(ranks, 2 * filled)):
            target = level(rank, width)
            if rank < filled:
                target.copy_(torch.minimum(lists[rank][..., 0::2, :], lists[rank][..., 1::2, :]))
            for i in range(max(0, rank - filled), min(rank, filled)):
                larger = torch.maximum(lists[i][..., 0::2, :], lists[rank - 1 - i][..., 1::2, :])
                target.copy_(torch.minimum(target, larger))
        filled = min(ranks, 2 * filled)
    return result


def ranked_together(values: Tensor, ranks: int) -> Tensor:
    """:func:`smallest` with all ranks of a level at once: more memory, a fraction of the launches on a GPU."""
    # Ranks come first. With minus infinity before them, entry r of two lists together is the least, over i + j = r, of
    # the larger of the i-th and the j-th entry.
    pairs = [(min(i, rank + 1), max(0, rank + 1 - i)) for rank in range(ranks) for i in range(ranks + 1)]
    left, right = torch.tensor(pairs, device=values.device).T
    lists = torch.cat([values[None], values.new_zeros(ranks - 1, *values.shape)])
    none = values.new_full((1,), -torch.inf).expand(1, *values.shape)
    levels = []
    while lists.shape[-2] > 1:
        both = torch.cat([none[..., : lists.shape[-2], :], lists])
        larger = torch.maximum(both[left][..., 0::2, :], both[right][..., 1::2, :])
        lists = larger.unflatten(0, (ranks, ranks + 1)).amin(1)
        levels.append(lists)
    levels.append(torch.zeros_like(lists))
    tables = torch.cat(levels[::-1], -2)
    return torch.cat([tables[0], values, *tables[1:]], -2)


def table_row(tree: Tree, cells: Tensor, ranks: Tensor) -> Tensor:
    """Where :func:`smallest` puts a cell's value of a rank; above rank 0 leaves, which hold one group, have none."""
    return cells + torch.where(ranks > 0, (ranks + 1) * tree.slots, 0)
