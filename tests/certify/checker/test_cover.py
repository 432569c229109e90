"""Coverage: exactly the partitions of all choices of groups and values pass."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.certify.checker.certificate import make_certificate
from l0tre.certify.checker.cover import Regions, cover_boxes, cover_cells, make_regions, make_tree
from l0tre.domain import make_domain
from l0tre.errors import CertificateError
from tests.certify.checker.cases import (
    Case,
    certify,
    changed,
    make_case,
)

NETWORK = make_case("grey", 0).network


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(3, 9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_coverage_is_decided_as_by_enumeration(seed: int, radius: int, groups: int, spoil: bool) -> None:
    """Partitions by splits pass; after a random change of cells, what passes is a partition by enumeration."""
    rng = np.random.default_rng(seed)
    domain = make_domain((groups,))
    case = Case(NETWORK, torch.rand(groups), domain, 0)
    made = certify(case, radius, seed, stop=0.3)
    plain = replace(made, cells=np.unique(made.cells, axis=0))
    if spoil:
        row, column = int(rng.integers(len(plain.cells))), int(rng.integers(radius))
        cells = changed(plain.cells, (row, column), int(rng.integers(1, 2 * len(made.order))))
        plain = replace(plain, cells=np.sort(cells, axis=1))
    plain = replace(plain, box=np.full(len(plain.cells), -1), low=made.low[:0], high=made.high[:0])
    tree = make_tree(plain, groups)
    try:
        cover_cells(tree, make_regions(plain, tree, domain).cells, plain.box >= 0)
    except CertificateError:
        assert spoil
        return
    seen = []
    for cells in plain.cells.tolist():
        below = [
            [g for g, c in leaves(made.order) if c >> (c.bit_length() - cell.bit_length()) == cell]
            for cell in set(cells)
        ]
        taken = [cells.count(cell) for cell in set(cells)]
        choices = (itertools.combinations(b, k) for b, k in zip(below, taken, strict=True))
        seen += [tuple(sorted(itertools.chain(*choice))) for choice in itertools.product(*choices)]
    assert sorted(seen) == sorted(itertools.combinations(range(groups), radius))


def leaves(order: np.ndarray) -> list[tuple[int, int]]:
    return [(int(group), slot + len(order)) for slot, group in enumerate(order) if group >= 0]


def test_holes_and_overlaps_that_cancel_in_the_count_are_noticed() -> None:
    """Two of four groups: a node twice and another not at all, and a pinwheel of boxes around a hole."""
    pairs = np.array(list(itertools.combinations(range(4, 8), 2)))
    domain = make_domain((4,))
    made = certify(Case(NETWORK, torch.rand(4), domain, 0), 2, 0, stop=1.0)
    tree = make_tree(replace(made, order=np.arange(4, dtype=np.int32), depth=2), 4)
    none = np.zeros(6, np.bool_)
    cover_cells(tree, pairs, none)
    with pytest.raises(CertificateError, match="covered"):
        cover_cells(tree, pairs[[0, 0, 2, 3, 4, 5]], none)
    wheel = [((0, 2), (0, 1)), ((2, 3), (0, 2)), ((1, 3), (2, 3)), ((0, 1), (1, 3)), ((1, 2), (1, 2))]
    boxes = np.array(wheel, np.float64)[..., None] / 3
    boxes[boxes == 1] = 1.0
    cells = np.tile([4, 5], (5, 1))
    with pytest.raises(CertificateError, match="gaps or overlap"):  # no line cuts it: not from bisections
        cover_boxes(tree, Regions(cells, boxes[:, :, 0], boxes[:, :, 1], np.arange(5)), domain)


def test_overlapping_cells_in_a_node_are_refused() -> None:
    domain = make_domain((4,))
    made = certify(Case(NETWORK, torch.rand(4), domain, 0), 2, 0, stop=1.0)
    tree = make_tree(replace(made, order=np.arange(4, dtype=np.int32), depth=2), 4)
    for cells in ([[2, 4]], [[1, 7]], [[2, 5]]):
        with pytest.raises(CertificateError, match="they overlap"):
            make_regions(replace(made, cells=np.array(cells, np.int32)), tree, domain)
    make_regions(replace(made, cells=np.array([[2, 6]], np.int32)), tree, domain)


@pytest.mark.parametrize(
    ("boxes", "match"),
    [
        ([(0, 0.5), (0.5, 1)], ""),
        ([(0, 0.25), (0.25, 0.5), (0.5, 1)], ""),
        ([(0, 0.5), (0, 0.5)], "gaps or overlap"),
        ([(0, 1), (0, 1)], "overlap"),
        ([(0, 0.5), (0.75, 1)], "gaps or overlap"),
        ([(0, 0.5), (0.25, 1)], "gaps or overlap"),
        ([(0, 0.5)], "gaps or overlap"),
        ([(0, 1), (1, 1)], "empty or leaves"),
        ([(0, 0.5), (0.5, 2)], "empty or leaves"),
        ([(-1, 0.5), (0.5, 1)], "empty or leaves"),
    ],
)
def test_boxes_of_a_group_with_unused_columns(boxes: list[tuple[float, float]], match: str) -> None:
    """Intervals of the first of two values, beside a group of three values."""
    domain = make_domain((5,), groups=torch.tensor([0, 0, 1, 1, 1]))
    made = certify(Case(NETWORK, torch.rand(5), domain, 0), 1, 0, stop=1.0)
    tree = make_tree(replace(made, order=np.arange(2, dtype=np.int32), depth=1), 2)
    ends = np.array([[[(low, 0.0, 0.0)], [(high, 1.0, 0.0)]] for low, high in boxes])
    regions = Regions(np.full((len(boxes), 1), 2), ends[:, 0], ends[:, 1], np.arange(len(boxes)))
    if match:
        with pytest.raises(CertificateError, match=match):
            cover_boxes(tree, regions, domain)
    else:
        cover_boxes(tree, regions, domain)


def test_coverage_of_many_nodes_is_quick() -> None:
    groups = 400
    domain = make_domain((groups,))
    case = Case(NETWORK, torch.rand(groups), domain, 0)
    cells = np.array(list(itertools.combinations(range(512, 512 + groups), 2)))
    made = make_certificate(
        case.network,
        case.image,
        domain,
        label=0,
        order=np.pad(np.arange(groups), (0, 112), constant_values=-1),
        cells=cells,
        bounds=np.zeros(len(cells)),
        arithmetic="real",
    )
    tree = make_tree(made, groups)
    cover_cells(tree, make_regions(made, tree, domain).cells, made.box >= 0)
    wrong = replace(made, cells=changed(made.cells, 7, made.cells[8]))
    with pytest.raises(CertificateError, match="covered"):
        cover_cells(tree, make_regions(wrong, tree, domain).cells, made.box >= 0)
