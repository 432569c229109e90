"""Nodes: splits lose no set and count none twice; shares count sets exactly."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, CellNodes, join, root, shares, split_boxes, split_cells
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.domain import make_domain
from tests.certify.proving import CPU, box_nodes, cell_nodes, groups_of, sets_of

MASK = torch.rand(4, 4, generator=torch.Generator().manual_seed(3)) < 0.5
TREES = {
    "eight": make_tree(make_domain((8,))),
    "five": make_tree(make_domain((5,))),
    "masked": make_tree(make_domain((1, 4, 4), mask=MASK)),
    "blocks": make_tree(make_domain((7,), groups=torch.tensor([0, 0, 1, 2, 3, 3, 4]))),
    "one": make_tree(make_domain((1,))),
}


def every_node(tree: Tree, t: int, seed: int) -> CellNodes:
    """Many random nodes with a cell to split."""
    nodes = cell_nodes(tree, t, np.random.default_rng(seed), 40, 0.15)
    return nodes.pick((tree.sizes[nodes.cells] > 1).any(1))


def any_weights(nodes: CellNodes, seed: int) -> Tensor:
    """Weights of cells, some of them no numbers that could be compared."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.choice([0.0, 0.5, 1.0, math.inf, math.nan], tuple(nodes.cells.shape)))


def test_the_heaviest_cell_is_halved() -> None:
    """By the root of its size; never a single group, and where nothing matters the largest."""
    nodes = CellNodes(torch.zeros(4, dtype=torch.int64), torch.tensor([[4, 10, 3], [4, 10, 3], [4, 10, 3], [8, 10, 3]]))
    weight = torch.tensor([[3.0, 1.0, 2.0], [2.0, 1.0, 2.0], [0.0, 0.0, 0.0], [9.0, 9.0, 1.0]]).double()
    children, parent = split_cells(TREES["eight"], nodes, weight)  # cells of 2, 1 and 4 groups
    halved = (nodes.cells[parent] != children.cells).int().argmax(1)
    assert {*zip(parent.tolist(), halved.tolist(), strict=True)} == {(0, 0), (1, 2), (2, 2), (3, 2)}


@pytest.mark.parametrize("name", [name for name in TREES if name != "one"])
@pytest.mark.parametrize("t", [1, 2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_children_part_the_sets_of_their_parent(name: str, t: int, weighted: bool) -> None:
    tree = TREES[name]
    nodes = every_node(tree, t, t)
    children, parent = split_cells(tree, nodes, any_weights(nodes, t) if weighted else None)
    assert len(children) == len(parent)
    assert torch.equal(children.image, nodes.image[parent])
    for row in range(len(nodes)):
        own = [sets_of(tree, cells) for cells in children.cells[parent == row].tolist()]
        assert len(own) >= 1
        assert all(own), "a child stands for nothing"
        assert Counter(itertools.chain(*own)) == Counter(sets_of(tree, nodes.cells[row].tolist()))
    for cells in children.cells.tolist():  # equal cells beside each other, others disjoint
        assert [cell for cell, _ in itertools.groupby(cells)] == list(dict.fromkeys(cells))
        different = [set(groups_of(tree, cell)) for cell in dict.fromkeys(cells)]
        assert sum(map(len, different)) == len(set().union(*different))


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("t", [1, 2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_splitting_to_the_end_gives_every_set_once(name: str, t: int, weighted: bool) -> None:
    tree = TREES[name]
    groups = int(tree.sizes[1])
    if t > groups:
        return
    nodes, leaves = root(0, t, CPU), []
    while len(nodes):
        single = (tree.sizes[nodes.cells] == 1).all(1)
        leaves += nodes.pick(single).cells.tolist()
        nodes = nodes.pick(~single)
        weights = any_weights(nodes, len(leaves)) if weighted else None
        nodes = split_cells(tree, nodes, weights)[0] if len(nodes) else nodes
    found = Counter(itertools.chain(*(sets_of(tree, cells) for cells in leaves)))
    assert found == Counter(itertools.combinations(range(groups), t))


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("t", [1, 2, 3, 4])
def test_shares_count_sets(name: str, t: int) -> None:
    tree = TREES[name]
    if t > int(tree.sizes[1]):
        return
    nodes = cell_nodes(tree, t, np.random.default_rng(t), 25, 0.2)
    nodes = replace(nodes, image=torch.arange(25) % 3)
    counted = shares(tree, nodes)
    assert shares(tree, root(5, t, CPU)) == {5: Fraction(math.comb(int(tree.sizes[1]), t))}
    for image in range(3):
        own = nodes.cells[nodes.image == image].tolist()
        assert counted[image] == sum(len(sets_of(tree, cells)) for cells in own)
        assert isinstance(counted[image], Fraction)


def random_weights(nodes: BoxNodes, random: torch.Generator) -> Tensor:
    assert isinstance(nodes, BoxNodes)
    weights = torch.randn(nodes.low.shape, dtype=torch.float64, generator=random)
    weights[: len(nodes) // 2] = 0.0  # nothing matters
    return weights


def test_boxes_are_parted_and_counted() -> None:
    domain = make_domain((2, 3, 2), groups=torch.tensor([[0, 1], [2, 0], [3, 3]]), low=-1.0, high=0.7)
    tree, random = make_tree(domain), torch.Generator().manual_seed(0)
    nodes = box_nodes(tree, domain, 2, np.random.default_rng(0), 12).pick(slice(0, 11))  # the last has no room
    total = shares(tree, nodes)
    for depth in range(1, 6):
        children = split_boxes(nodes, random_weights(nodes, random))
        assert len(children) == 2 * len(nodes)
        assert isinstance(nodes, BoxNodes)
        assert isinstance(children, BoxNodes)
        lower, upper = children.pick(slice(0, len(nodes))), children.pick(slice(len(nodes), None))
        for half in (lower, upper):
            assert torch.equal(half.cells, nodes.cells)
            assert torch.equal(half.image, nodes.image)
            assert bool((half.depth == depth).all())
        assert isinstance(lower, BoxNodes)
        assert isinstance(upper, BoxNodes)
        # They meet in one plane and are else the parent's box.
        assert torch.equal(lower.low, nodes.low)
        assert torch.equal(upper.high, nodes.high)
        cut = (lower.high != nodes.high) | (upper.low != nodes.low)
        assert bool((cut.flatten(1).sum(1) == 1).all())
        assert torch.equal(lower.high[cut], upper.low[cut])
        assert bool(((upper.low[cut] > nodes.low[cut]) & (lower.high[cut] < nodes.high[cut])).all())
        assert shares(tree, children) == total
        nodes = children


def test_the_value_that_matters_most_is_halved() -> None:
    low, high = torch.zeros(1, 2, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64)
    high[0, 0, 1] = 0.0
    nodes = BoxNodes(torch.zeros(1, dtype=torch.int64), torch.tensor([[4, 5]]), low, high, torch.zeros(1))
    weight = torch.tensor([[[0.1, 9.0], [-0.5, 0.2]]], dtype=torch.float64)
    upper = split_boxes(nodes, weight).low
    assert upper[1].tolist() == [[0.0, 0.0], [0.5, 0.0]]


def test_ranks_number_equal_cells() -> None:
    nodes = CellNodes(torch.zeros(2, dtype=torch.int64), torch.tensor([[4, 4, 4, 5], [4, 5, 5, 6]]))
    assert nodes.ranks().tolist() == [[0, 1, 2, 0], [0, 0, 1, 0]]


def test_parts_are_joined_and_picked() -> None:
    domain = make_domain((5,))
    boxes = box_nodes(TREES["five"], domain, 2, np.random.default_rng(0), 6)
    again = join([boxes.pick(slice(0, 2)), boxes.pick(torch.tensor([2, 3])), boxes.pick(torch.arange(6) > 3)])
    for name in ("image", "cells", "low", "high", "depth"):
        assert torch.equal(getattr(again, name), getattr(boxes, name))
    cells = root(1, 3, CPU)
    assert join([cells, cells]).cells.tolist() == [[1, 1, 1]] * 2
    assert isinstance(join([cells, cells]), CellNodes)
