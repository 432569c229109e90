"""The survey: every set is proved or left, none twice, and what is proved is safe."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

from l0tre.certify.clusters import survey as survey_module
from l0tre.certify.clusters.forms import Forms
from l0tre.certify.clusters.margins import Ground, lower_forms, near_pixels
from l0tre.certify.clusters.survey import Found, full_boxes, sets_of, survey
from l0tre.certify.nodes import Nodes, shares
from tests.certify.clusters.cases import (
    all_cells,
    balanced,
    cluster_search,
    directions,
    every_set,
    inputs_at,
    margins_at,
    several,
    whole_boxes,
)
from tests.certify.clusters.planted import PLANTED, PLANTED_DEPTHS, planted_windows, tied
from tests.certify.clusters.recipes import RELU, SIGMOID, TANH, Recipe, conv, leaky, pool
from tests.certify.random_networks import Case

FLAT = {
    "plain": Recipe((1, 5, 4), (conv(3, 2), RELU)),
    "padded": Recipe((1, 4, 4), (conv(3, 2, padding=1), leaky(0.2))),
    "stride": Recipe((1, 5, 4), (conv(3, 3, 2, 1), RELU)),
    "pool": Recipe((1, 7, 3), (conv(2, 2), RELU, pool(2, 2))),
    "colours": Recipe((3, 4, 4), (conv(3, 2), RELU)),
    "narrow": Recipe((1, 3, 7), (conv(3, (1, 3)), RELU)),
    "smooth": Recipe((1, 4, 5), (conv(3, 2), TANH)),
    "linear": Recipe((1, 4, 5), ()),
}
DEEP = {
    "hidden": Recipe((1, 4, 5), (conv(3, 2), RELU), (5,)),
    "two hidden": Recipe((1, 5, 4), (conv(2, 2, 1, 1), RELU), (5, 4), leaky(0.2)),
    "pool": Recipe((1, 7, 3), (conv(2, 2), RELU, pool(2, 2)), (5,)),
    "colours": Recipe((3, 4, 4), (conv(3, 2), RELU), (4,)),
    "smooth": Recipe((1, 5, 5), (conv(2, 2), SIGMOID), (4,), TANH),
    "dense": Recipe((1, 4, 5), (), (6,)),
}


def start(case: Case, t: int, images: int = 1, memory: int = 2**24) -> tuple[Ground, Found]:
    """The survey of the case's image, and others with the network's own decisions."""
    chosen, _ = several(case, images)
    labels = case.network.scores(chosen).argmax(1).tolist()
    ground = cluster_search(case, t, chosen, [case.label, *labels[1:]], memory=memory).ground
    return ground, survey(ground, torch.arange(images), t)


def check_counts(ground: Ground, found: Found, t: int) -> None:
    """Each set is proved or left exactly once: the boxes of a set are different cells of one grid."""
    tree, total = ground.scene.tree, math.comb(len(all_cells(ground)), t)
    assert sets_of(ground, t) == total
    assert found.left.low is not None
    assert found.left.high is not None
    assert found.left.depth is not None
    left = shares(tree, found.left) if len(found.left) else {}
    assert all(isinstance(proved, Fraction) for proved in found.proved)
    for image, proved in enumerate(found.proved):
        assert proved + left.get(image, Fraction(0)) == total
    cells, order = found.left.cells.sort(1)
    assert bool((cells[:, 1:] > cells[:, :-1]).all())
    index = order[:, :, None].expand_as(found.left.low)
    ends = [part.gather(1, index).flatten(1) for part in (found.left.low, found.left.high)]
    rows = torch.cat([found.left.image[:, None], cells, *ends], 1)
    assert len(rows.unique(dim=0)) == len(rows)
    for image in found.left.image.unique().tolist():
        own = (found.left.image == image).nonzero()[:, 0]
        whole = full_boxes(ground, image, found.left.cells[own])
        assert whole.low is not None
        assert whole.high is not None
        used = (whole.high > whole.low).flatten(1)
        extent = (found.left.high[own] - found.left.low[own]).flatten(1) / (whole.high - whole.low).flatten(1)
        volume = torch.where(used, extent, 1.0).prod(1)
        assert torch.allclose(volume, 0.5 ** found.left.depth[own].double(), rtol=1e-9, atol=0)
        assert bool(((found.left.low[own] >= whole.low) & (found.left.high[own] <= whole.high)).all())


def covers(ground: Ground, left: Nodes, boxes: Nodes, row: int, points: torch.Tensor) -> torch.Tensor:
    """Which inputs ``[points, values]`` of a set lie in boxes that are left, bool ``[points]``."""
    assert left.low is not None
    assert left.high is not None
    same = (left.cells.sort(1).values == boxes.cells[row].sort().values).all(1) & (left.image == boxes.image[row])
    inside = torch.zeros(len(points), dtype=torch.bool)
    padded = torch.nn.functional.pad(points, (0, 1))
    for own in same.nonzero()[:, 0].tolist():
        values = padded[:, ground.scene.members[left.cells[own] - ground.scene.tree.slots].flatten()]
        low, high = left.low[own].flatten() - 1e-12, left.high[own].flatten() + 1e-12
        inside |= ((values >= low) & (values <= high)).all(1)
    return inside


def check_safe(case: Case, ground: Ground, found: Found, t: int, image: int = 0) -> tuple[int, int]:
    """Every input that changes the decision is left; returns how many sets have one, and how many are not left."""
    boxes = whole_boxes(ground, every_set(ground, t), image)
    u = directions(t * case.domain.members.shape[1], torch.Generator().manual_seed(t))
    if t * case.domain.members.shape[1] <= 3:
        u = torch.cat([u, torch.tensor(list(itertools.product((-0.75, -0.3, 0.2, 0.6), repeat=u.shape[1]))).double()])
    truth = margins_at(case, ground, boxes, u).amin(2)
    unsafe = (truth <= 0).any(1).nonzero()[:, 0].tolist()
    kept = {tuple(sorted(cells)) for cells in found.left.cells[found.left.image == image].tolist()}
    for row in unsafe:
        x = inputs_at(ground, boxes.pick(torch.tensor([row])), u)[0][truth[row] <= 0]
        assert tuple(sorted(boxes.cells[row].tolist())) in kept
        if found.left.depth is not None and bool(found.left.depth.any()):
            assert bool(covers(ground, found.left, boxes, row, x).all())
    return len(unsafe), len(boxes) - len(kept)


def check(case: Case, t: int, images: int = 1, memory: int = 2**24) -> tuple[int, int]:
    ground, found = start(case, t, images, memory)
    check_counts(ground, found, t)
    seen = [check_safe(case, ground, found, t, image) for image in range(images)]
    return seen[0]


SIZES = [
    ("plain", 1),
    ("colours", 1),
    *((name, 2) for name in FLAT),
    *((name, 3) for name in FLAT if name != "colours"),
]


@pytest.mark.parametrize(("name", "t"), SIZES)
def test_networks_that_are_linear_behind_windows(name: str, t: int) -> None:
    unsafe = proved = 0
    for seed, share in ((0, 0.02), (1, 0.3))[: 2 if t < 3 else 1]:
        bad, gone = check(balanced(FLAT[name], seed, t, share), t)
        unsafe, proved = unsafe + bad, proved + gone
    assert unsafe > 0
    assert proved > 0 or t == 1  # a survey of single pixels only lists them


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("t", [1, 2])
def test_networks_with_hidden_layers(name: str, t: int) -> None:
    unsafe = proved = 0
    for seed, share in ((0, 0.02), (1, 0.3)):
        bad, gone = check(balanced(DEEP[name], seed, t, share), t)
        unsafe, proved = unsafe + bad, proved + gone
    assert unsafe > 0
    assert proved > 0 or t == 1


@pytest.mark.parametrize("finest", [0, 2])
@pytest.mark.parametrize("name", ["two hidden", "colours"])
def test_parts_of_ranges_at_every_depth(name: str, finest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boxes of the last depth are left, whatever that is; a little memory makes many small sums."""
    monkeypatch.setattr(survey_module, "FINEST", finest)
    case = balanced(DEEP[name], 2 + finest, 2, 0.1)
    ground, found = start(case, 2)
    check_counts(ground, found, 2)
    check_safe(case, ground, found, 2)
    assert found.left.depth is not None
    assert set(found.left.depth.tolist()) == {1, 2 * finest}  # of near and of far pairs
    _, small = start(case, 2, memory=2**14)
    assert small.proved == found.proved


@pytest.mark.parametrize(("single", "pair", "entries"), [(0, 0, 2), (1, 3, 7), (2, 1, 64)])
@pytest.mark.parametrize("t", [2, 3])
def test_tables_of_every_size(t: int, single: int, pair: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges cut into few parts or none, sets added up a few at a time: coarser, never wrong."""
    case = balanced(FLAT["plain"], 4, t, 0.1)
    _, fine = start(case, t)
    monkeypatch.setattr(survey_module, "SINGLE_HALVINGS", single)
    monkeypatch.setattr(survey_module, "PAIR_HALVINGS", pair)
    _, coarse = start(case, t)
    monkeypatch.setattr(survey_module, "ENTRIES", entries)
    if t == 2:
        _, parts = start(case, t)
        assert parts.proved == coarse.proved
    check(case, t)
    assert coarse.proved[0] <= fine.proved[0]


@pytest.mark.parametrize("t", [1, 2, 3])
def test_several_images_are_surveyed_as_one_at_a_time(t: int) -> None:
    for recipe in (FLAT["padded"], DEEP["two hidden"])[: 2 if t < 3 else 1]:
        case = balanced(recipe, 1, t, 0.2)
        ground, together = start(case, t, 3)
        check_counts(ground, together, t)
        for image in range(3):
            check_safe(case, ground, together, t, image)
            alone = survey(ground, torch.tensor([image]), t)
            assert alone.proved == together.proved[image : image + 1]
            assert len(alone.left) == int((together.left.image == image).sum())
        turned = survey(ground, torch.tensor([2, 0]), t)
        assert turned.proved == [together.proved[2], together.proved[0]]


@pytest.mark.parametrize(("name", "deep"), PLANTED_DEPTHS)
def test_a_planted_change_is_left(name: str, deep: bool) -> None:
    """The only set that changes the decision, and only for values inside its ranges."""
    spots, sight, stride = PLANTED[name]
    case = planted_windows(spots, sight, stride=stride, deep=deep)
    pixels = sorted({y * 6 + x for spot in spots for (y, x), _ in spot})
    t = len(pixels)
    ground, found = start(case, t)
    assert ground.local.sight == sight
    check_counts(ground, found, t)
    point = torch.full((1, 36), 0.5, dtype=torch.float64)
    for spot in spots:
        for (y, x), value in spot:
            point[0, y * 6 + x] = value
    boxes = whole_boxes(ground, [pixels])
    assert bool(covers(ground, found.left, boxes, 0, point))
    assert found.proved[0] > 0


@pytest.mark.parametrize("deep", [False, True])
def test_a_tie_that_rounding_hides_is_left(deep: bool) -> None:
    for seed in range(4):
        case = tied(seed, deep=deep)
        for t in (2,) if deep else (2, 3):
            ground, found = start(case, t)
            assert 0 < float(ground.scene.margins.min()) < 1e-12
            assert found.proved == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("t", [2, 3])
def test_a_bound_that_is_no_number_proves_nothing(t: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one part of the range of one pixel: no set with this pixel counts as proved."""
    case = balanced(FLAT["plain"], 0, t, 0.0, by=5.0)
    ground, found = start(case, t)
    cell = int(all_cells(ground)[3])
    assert not bool((found.left.cells == cell).any()) or t == 3

    def broken(ground: Ground, nodes: Nodes) -> torch.Tensor:
        forms = lower_forms(ground, nodes).clone()
        forms[(nodes.cells == cell).any(1).nonzero()[:1, 0], 0, 0] = value
        return forms

    monkeypatch.setattr(survey_module, "lower_forms", broken)
    again = survey(ground, torch.tensor([0]), t)
    check_counts(ground, again, t)
    sets = {tuple(sorted(cells)) for cells in again.left.cells.tolist()}
    far = [tuple(sorted(cells)) for cells in whole_boxes(ground, every_set(ground, t)).cells.tolist() if cell in cells]
    assert len(sets.intersection(far)) > len(far) // 2
    if t == 2:
        pixels = ground.scene.members[torch.tensor(far) - ground.scene.tree.slots][:, :, 0]
        near = near_pixels(ground.local, pixels[:, 0], pixels[:, 1]).tolist()
        assert all(cells in sets or close for cells, close in zip(far, near, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_margins_that_are_no_numbers_prove_no_pairs(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Ground, image: torch.Tensor, forms: Forms) -> torch.Tensor:
        lower = torch.zeros(len(image), 2, forms.centre.shape[1], dtype=torch.float64)
        lower[..., 0] = value
        return lower

    ground, found = start(balanced(DEEP["hidden"], 0, 2, 0.0, by=5.0), 2)
    assert found.proved[0] > 0
    monkeypatch.setattr(survey_module, "behind", broken)
    assert survey(ground, torch.tensor([0]), 2).proved == [0]
