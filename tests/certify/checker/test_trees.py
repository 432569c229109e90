"""Numbers of sets, trees of halvings, and what the prover's boxes become in them."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.checker.minimum import Scope, make_scope
from l0tre.certify.checker.trees import DEEPEST, cover_trees, halves, leaf_boxes, sets_of
from l0tre.certify.regions.leaves import ClosedSets, leaves_of, trees_of
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.regions.tree import make_tree
from l0tre.domain import Domain, make_domain
from l0tre.errors import CertificateError, InternalError


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def depths(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


@pytest.mark.parametrize(("groups", "t"), [(5, 1), (6, 2), (7, 3), (4, 4)])
def test_sets_are_numbered_in_lexicographic_order(groups: int, t: int) -> None:
    wanted = [list(one) for one in itertools.combinations(range(groups), t)]
    assert sets_of(torch.arange(len(wanted)), groups, t).tolist() == wanted


def test_whole_trees_are_taken() -> None:
    rows, places = cover_trees(numbers(3, 8), depths(1, 2, 2, 0), 10)
    half = 2 ** (DEEPEST - 1)
    assert rows.tolist() == [0, 0, 0, 1]
    assert places.tolist() == [0, half, half + half // 2, 0]
    assert [len(part) for part in cover_trees(numbers(), depths(), 10)] == [0, 0]


@pytest.mark.parametrize(
    ("sets", "leaves"),
    [
        ((3, 8), (1, 2, 2)),  # a tree is missing
        ((3,), (1, 2, 2, 0)),  # one too many
        ((3, 8), (1, 2, 2, 1)),  # a leaf is dropped
        ((3, 8), (1, 2, 2, 2, 0)),  # doubled
        ((3, 8), (2, 1, 2, 0)),  # not at its place
        ((8, 3), (0, 0)),
        ((3, 3), (0, 0)),
        ((3, 10), (0, 0)),
        ((-1, 3), (0, 0)),
        ((3, 8), (0, DEEPEST + 1)),
    ],
)
def test_what_is_no_cover_is_refused(sets: tuple[int, ...], leaves: tuple[int, ...]) -> None:
    with pytest.raises(CertificateError):
        cover_trees(numbers(*sets), depths(*leaves), 10)


def test_sides_are_halved_in_turn() -> None:
    low, high = torch.zeros(1, 2, 2), torch.tensor([[[1.0, 0.0], [4.0, 2.0]]])
    cuts = []
    for level in range(4):
        lows, highs = halves(low, high, high, level)
        cuts.append((highs[0] < highs[1])[0].flatten().tolist())
        assert torch.equal(torch.maximum(lows[0], low), low)
    side = [[True, False, False, False], [False, False, True, False], [False, False, False, True]]
    assert cuts == [*side, side[0]]  # the second value cannot change


def prepared(domain: Domain) -> tuple[Scope, tuple[Tensor, Tensor, Tensor]]:
    tree = make_tree(domain)
    values = math.prod(domain.shape)
    members = torch.full((tree.slots, domain.members.shape[1]), values)
    for slot, group in enumerate(tree.order.tolist()):
        if group >= 0:
            size = int(domain.sizes[group])
            members[slot, :size] = domain.members[group][:size]
    lengths, start = (torch.nn.functional.pad(end.double(), (0, 1)) for end in (domain.high - domain.low, domain.low))
    scope = make_scope(domain, torch.arange(domain.groups), torch.zeros(values, dtype=torch.float64))
    return scope, (members, lengths, start)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_of_any_halvings_become_leaves_that_cover_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    high = torch.ones(2, 2, 2)
    high[0, 0, 0], high[1, 1, 1] = 3.0, 0.0
    domain = make_domain((2, 2, 2), low=torch.zeros(2, 2, 2), high=high)
    scope, (members, lengths, start) = prepared(domain)
    tree, sets = make_tree(domain), list(itertools.combinations(range(domain.groups), 2))
    cells, low, top = [], [], []
    for chosen in sets[::2]:
        slots = [int((tree.order == group).nonzero()) for group in rng.permutation(chosen)]
        whole = start[members[slots]], (start + lengths)[members[slots]]
        pending = [(*whole, 0)]
        while pending:
            least, most, times = pending.pop()
            if times == 4 or rng.random() < 0.3:
                if rng.random() < 0.8:  # the others were proved by something else
                    cells.append([slot + tree.slots for slot in slots])
                    low.append(least)
                    top.append(most)
                continue
            side = (int(rng.integers(2)), int(rng.integers(2)))
            middle = (least[side] + most[side]) / 2
            if lengths[members[slots]][side] > 0:
                below, above = most.clone(), least.clone()
                below[side] = above[side] = middle
                pending += [(least, below, times + 1), (above, most, times + 1)]
    zeros = torch.zeros(len(cells), dtype=torch.int64)
    nodes = BoxNodes(zeros, torch.tensor(cells), torch.stack(low), torch.stack(top), zeros)
    _, leaves = leaves_of(tree, members, lengths, start, nodes)
    listed, depth = trees_of(ClosedSets((leaves,)))
    rows, places = cover_trees(listed, depth, len(sets))
    groups = sets_of(torch.from_numpy(listed[rows]), domain.groups, 2)
    ends = leaf_boxes(scope, groups, torch.from_numpy(places), torch.from_numpy(depth.astype("i8")))
    for row, named in enumerate(cells):
        own = [int(tree.order[cell - tree.slots]) for cell in named]
        order = np.argsort(own)
        least, most = (x[row][order].flatten() for x in (nodes.low, nodes.high))
        real, same = most > least, (groups == torch.tensor(sorted(own))).all(1)
        shared = torch.minimum(ends[1][same].flatten(1), most) - torch.maximum(ends[0][same].flatten(1), least)
        volume = shared[:, real].clamp(min=0).prod(1)
        assert float(volume.sum()) == pytest.approx(float((most - least)[real].prod())) or not same.any()
        inside = volume > 0
        assert (volume[inside] == (ends[1] - ends[0])[same].flatten(1)[inside][:, real].prod(1)).all()


def test_a_box_that_was_proved_twice_is_an_error() -> None:
    leaf = torch.tensor([[4], [0], [2]])
    with pytest.raises(InternalError, match="twice"):
        trees_of(ClosedSets((leaf, leaf)))
