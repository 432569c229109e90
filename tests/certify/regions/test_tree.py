"""The tree of cells: every group in one slot, halves of images are rectangles, the depth stays small."""

from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.domain import Domain, make_domain
from l0tre.model.graph import Graph, GraphBuilder
from tests.certify.proving import groups_of
from tests.certify.random_networks import KINDS, random_case


def dense(weight: Tensor) -> Graph:
    builder = GraphBuilder((weight.shape[1],))
    top = builder.add("scale", [0], {"scale": torch.tensor(2.0), "shift": torch.tensor(-1.0)})
    return builder.build(builder.add("linear", [top], {"weight": weight}))


def check_tree(tree: Tree, domain: Domain) -> None:
    assert tree.slots == 2**tree.depth
    assert sorted(tree.order[tree.order >= 0].tolist()) == list(range(domain.groups))
    assert bool((tree.order >= -1).all())
    assert len(tree.sizes) == len(tree.heights) == 2 * tree.slots
    for cell in range(1, 2 * tree.slots):
        groups = groups_of(tree, cell)
        assert int(tree.sizes[cell]) == len(groups)
        height = int(tree.heights[cell])
        assert tree.slots <= cell << height < 2 * tree.slots
        start = (cell << height) - tree.slots
        assert [group for group in tree.order[start : start + 2**height].tolist() if group >= 0] == groups
        if cell < tree.slots:
            assert int(tree.sizes[cell]) == int(tree.sizes[2 * cell] + tree.sizes[2 * cell + 1])
        if len(groups) == 1:  # its leaf lies at the left edge
            assert int(tree.order[start]) == groups[0]
        if len(groups) > 1:  # no cell is only handed down
            assert 0 < int(tree.sizes[2 * cell]) < len(groups)


def random_options(shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    return {
        "mask": torch.rand(shape, generator=random) < 0.7,
        "groups": torch.randint(-1, 15, shape, generator=random),
    }


DOMAINS = [
    make_domain((1, 28, 28)),
    make_domain((3, 5, 7)),
    make_domain((5, 7, 3)),
    make_domain((1, 1, 9)),
    make_domain((4, 6)),
    make_domain((3, 4, 4), groups="feature"),  # channels of a pixel lie at the same place
    *(make_domain((3, 6, 5), **random_options((3, 6, 5), seed)) for seed in range(5)),
    *(make_domain((2, 6, 5), mask=random_options((2, 6, 5), seed)["mask"]) for seed in range(5)),
    *(make_domain((size,)) for size in (1, 2, 3, 5, 8, 13)),
    make_domain((13,), groups=torch.arange(13) // 3),
]


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: f"{domain.shape} {domain.groups} {domain.unit}")
def test_every_group_is_in_one_slot_and_cells_are_counted(domain: Domain) -> None:
    tree = make_tree(domain)
    check_tree(tree, domain)
    assert tree.depth <= 2 * (domain.groups - 1).bit_length() + 1


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_trees_of_random_cases(seed: int) -> None:
    case = random_case(seed)
    check_tree(make_tree(case.domain, case.graph), case.domain)


def rectangle(tree: Tree, domain: Domain, cell: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a cell whose groups are all pixels of a rectangle."""
    pixels = domain.ids[torch.tensor(groups_of(tree, cell))]
    rows, columns = pixels // domain.shape[-1], pixels % domain.shape[-1]
    top, left = int(rows.min()), int(columns.min())
    height, width = int(rows.max()) - top + 1, int(columns.max()) - left + 1
    assert len(pixels) == height * width
    return top, left, height, width


def test_an_image_is_cut_into_rectangles_at_the_middle_of_the_longer_side() -> None:
    domain = make_domain((1, 28, 28))
    tree = make_tree(domain)
    sizes = {1: {(28, 28)}, 2: {(14, 28)}, 4: {(14, 14)}, 8: {(7, 14)}, 16: {(7, 7)}, 32: {(3, 7), (4, 7)}}
    for first, wanted in sizes.items():
        assert {rectangle(tree, domain, cell)[2:] for cell in range(first, 2 * first)} == wanted
    for cell in range(1, 64):
        top, left, height, width = rectangle(tree, domain, cell)
        if height >= width:
            cut = (top + top + height) // 2
            wanted_halves = (top, left, cut - top, width), (cut, left, top + height - cut, width)
        else:
            cut = (left + left + width) // 2
            wanted_halves = (top, left, height, cut - left), (top, cut, height, left + width - cut)
        assert (rectangle(tree, domain, 2 * cell), rectangle(tree, domain, 2 * cell + 1)) == wanted_halves
    assert tree.depth == 10


def test_masked_pixels_are_in_no_cell() -> None:
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[1:3, 2:5] = True
    domain = make_domain((1, 6, 6), mask=mask)
    tree = make_tree(domain)
    assert rectangle(tree, domain, 1) == (1, 2, 2, 3)
    assert int(tree.sizes[1]) == 6


def test_features_that_act_alike_stay_together() -> None:
    """Even features push one way and odd ones the other: the first halves are the even and the odd ones."""
    weight = torch.zeros(3, 8)
    weight[0, ::2], weight[0, 1::2] = 1.0, -1.0
    weight += 0.01 * torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    domain = make_domain((8,))
    tree = make_tree(domain, dense(weight))
    check_tree(tree, domain)
    assert sorted(sorted(groups_of(tree, cell)) for cell in (2, 3)) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [groups_of(make_tree(domain), cell) for cell in (2, 3)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(make_tree(domain, dense(weight)).order, tree.order)


@pytest.mark.parametrize("weight", [torch.zeros(3, 5), torch.ones(1, 5)])
def test_features_without_a_direction_are_halved_all_the_same(weight: Tensor) -> None:
    domain = make_domain((5,))
    check_tree(make_tree(domain, dense(weight)), domain)


def test_a_single_group_is_the_root() -> None:
    tree = make_tree(make_domain((3, 1, 1)))
    assert tree.depth == 0
    assert tree.order.tolist() == [0]
    assert tree.sizes.tolist() == [0, 1]
    assert tree.heights[1] == 0


@pytest.mark.parametrize("seed", range(6))
def test_masked_images_are_halved_as_one_cell_after_the_other_would_be(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    height, width = torch.randint(1, 9, (2,), generator=random).tolist()
    mask = torch.rand(height, width, generator=random) < 0.7
    mask[0, 0] = True
    tree = make_tree(make_domain((1, height, width), mask=mask))
    places = mask.nonzero().tolist()

    def check(cell: int, groups: list[int]) -> None:
        assert sorted(groups_of(tree, cell)) == groups
        if len(groups) == 1:
            return
        sides = [[places[group][axis] for group in groups] for axis in (0, 1)]
        extent = [max(side) - min(side) for side in sides]
        axis = 0 if extent[0] >= extent[1] else 1
        middle = (min(sides[axis]) + max(sides[axis])) / 2
        check(2 * cell, [group for group in groups if places[group][axis] < middle])
        check(2 * cell + 1, [group for group in groups if places[group][axis] >= middle])

    check(1, list(range(len(places))))
