"""Tables of what the groups of cells can add: whole or filled as they are asked for, they say the same."""

import pytest
import torch
from torch import Tensor

from l0tre.certify.regions.nodes import root, split_cells
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.certify.relax import cell_tables
from l0tre.certify.relax.cell_tables import make_table, ranked_together, smallest
from l0tre.domain import make_domain

WIDTH = 2  # values of a group
SIDE = 6


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_of_cells_are_the_same_together_and_one_by_one(ranks: int) -> None:
    rng = torch.Generator().manual_seed(ranks)
    values = -torch.rand(2, 3, 16, 2, generator=rng, dtype=torch.float64).floor_divide(0.05)
    assert torch.equal(ranked_together(values, ranks), smallest(values, ranks))


def strongest(effects: Tensor, tree: Tree, cells: list[int]) -> Tensor:
    """The sum over a node's cells of the least effects ``[groups, neurons]`` of different groups, by sorting them."""
    total = torch.zeros(effects.shape[1], dtype=torch.float64)
    for cell in set(cells):
        height = int(tree.heights[cell])
        groups = tree.order[(cell << height) - tree.slots : ((cell + 1) << height) - tree.slots]
        inside = effects[groups[groups >= 0]].sort(0).values
        total += inside[: cells.count(cell)].clamp(max=0).sum(0)
    return total


@pytest.mark.parametrize("sparse", [8, 10**9])
@pytest.mark.parametrize("t", [1, 2, 4])
def test_rows_are_those_of_the_strongest_groups(sparse: int, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_tables, "SPARSE", sparse)
    monkeypatch.setattr(cell_tables, "TOGETHER", 1000)
    rng = torch.Generator().manual_seed(t)
    domain = make_domain((WIDTH, SIDE, SIDE))
    tree = make_tree(domain)
    members = torch.cat([domain.members, torch.full((1, WIDTH), WIDTH * SIDE**2)])[tree.order]
    images, values, neurons = 2, WIDTH * SIDE**2, 7
    down, up = (sign * torch.rand(images, values, generator=rng, dtype=torch.float64) for sign in (-1, 1))
    # Five groups at the most reach a neuron, and none the last one.
    jacobian = torch.zeros(values, neurons, dtype=torch.float64)
    for neuron in range(neurons - 1):
        jacobian[torch.randperm(values, generator=rng)[: neuron + 1], neuron] = 1 - 2 * torch.rand(
            neuron + 1, generator=rng, dtype=torch.float64
        )
    table = make_table(tree, jacobian, members, down, up, t)
    assert (table.known is None) == (sparse > 8)
    nodes = root(0, t, torch.device("cpu"))
    for _ in range(3):
        image = torch.arange(len(nodes)) % images
        found = table.look_up(tree, image, nodes.cells, nodes.ranks())
        for row, cells in enumerate(nodes.cells.tolist()):
            for side, sign in enumerate((1, -1)):
                ends = torch.stack([sign * jacobian * end[image[row]][:, None] for end in (down, up)])
                groups = ends.amin(0)[domain.members].sum(1)
                torch.testing.assert_close(found[side, row], strongest(groups, tree, cells))
        nodes = split_cells(tree, nodes)[0]
