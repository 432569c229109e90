"""The first_pass: every set is proved or left, none twice, and what is proved is safe."""

import math

import pytest
import torch

from l0tre.certify.boxes import disjoint_pairs as disjoint_module
from l0tre.certify.boxes import first_pass as first_pass_module
from l0tre.certify.boxes import head as head_module
from l0tre.certify.boxes import overlapping_pairs as overlapping_module
from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.box_bounds import lower_forms
from l0tre.certify.boxes.first_pass import first_pass
from l0tre.certify.boxes.range_parts import FirstLook
from l0tre.certify.boxes.windowed import Windowed, can_interact
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.interval import Interval
from tests.certify.boxes.cases import (
    all_cells,
    balanced,
    cluster_search,
    every_set,
    whole_boxes,
    windows_of,
)
from tests.certify.boxes.checks import check_counts, check_safe, covers, windowed_with_labels
from tests.certify.boxes.planted import PLANTED, PLANTED_DEPTHS, planted_windows, tied
from tests.certify.boxes.recipes import RELU, SIGMOID, TANH, Recipe, conv, leaky, pool
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
    "shortcut": Recipe((1, 4, 4), (conv(2, 2), RELU), (4,), join="add"),
}


def start(case: Case, t: int, images: int = 1, memory: int = 2**24) -> tuple[Windowed, FirstLook]:
    """The first_pass of the case's image, and others with the network's own decisions."""
    windowed = windowed_with_labels(case, images, memory, t)
    return windowed, first_pass(windowed, torch.arange(images), t)


def check_all(windowed: Windowed, found: FirstLook, t: int) -> None:
    """Of images 0, 1, ..."""
    total = math.comb(len(all_cells(windowed)), t)
    check_counts(windowed, found, total, range(len(found.proved)))


def check(case: Case, t: int, images: int = 1, memory: int = 2**24) -> tuple[int, int]:
    windowed, found = start(case, t, images, memory)
    check_all(windowed, found, t)
    seen = [
        check_safe(case, windowed, found, whole_boxes(windowed, every_set(windowed, t), row)) for row in range(images)
    ]
    return seen[0]


SIZES = [
    ("plain", 1),
    ("colours", 1),
    *((name, 2) for name in FLAT),
    *((name, 3) for name in FLAT if name != "colours"),
]


@pytest.mark.family
@pytest.mark.parametrize(("name", "t"), SIZES)
def test_networks_that_are_linear_behind_windows(name: str, t: int) -> None:
    unsafe = proved = 0
    for seed, share in ((0, 0.02), (1, 0.3))[: 2 if t < 3 else 1]:
        bad, gone = check(balanced(FLAT[name], seed, t, share), t)
        unsafe, proved = unsafe + bad, proved + gone
    assert unsafe > 0
    assert proved > 0 or t == 1  # a first_pass of single pixels only lists them


@pytest.mark.family
@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("t", [1, 2])
def test_networks_with_hidden_layers(name: str, t: int) -> None:
    unsafe = proved = 0
    for seed, share in ((0, 0.02), (1, 0.3)):
        bad, gone = check(balanced(DEEP[name], seed, t, share), t)
        unsafe, proved = unsafe + bad, proved + gone
    assert unsafe > 0
    assert proved > 0 or t == 1


@pytest.mark.family
@pytest.mark.parametrize(("near", "far"), [(0, (0,)), (2, (0, 1)), (1, (1, 3))])
@pytest.mark.parametrize("name", ["two hidden", "colours"])
def test_parts_of_ranges_at_every_depth(
    name: str, near: int, far: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boxes of the last depth are left, whatever that is; a little memory makes many small sums."""
    monkeypatch.setattr(overlapping_module, "HALVINGS", near)
    monkeypatch.setattr(overlapping_module, "FEW", {"cpu": 0})
    monkeypatch.setattr(disjoint_module, "HALVINGS", far)
    case = balanced(DEEP[name], 2 + far[-1], 2, 0.1)
    windowed, found = start(case, 2)
    check_all(windowed, found, 2)
    check_safe(case, windowed, found, whole_boxes(windowed, every_set(windowed, 2)))
    pixels = windowed.instance.members[found.left.cells - windowed.instance.tree.slots][:, :, 0]
    close = can_interact(windowed.local, *(pixels % case.image[0].numel()).T)
    assert set(found.left.depth[close].tolist()) == {2 * near + 1}  # as they are they were not proved
    assert set(found.left.depth[~close].tolist()) == {2 * far[-1]}
    _, small = start(case, 2, memory=2**14)
    assert small.proved == found.proved


@pytest.mark.family
@pytest.mark.parametrize(("single", "pair", "entries"), [(0, 0, 2), (1, 3, 7), (2, 1, 64)])
@pytest.mark.parametrize("t", [2, 3])
def test_tables_of_every_size(t: int, single: int, pair: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges cut into few parts or none, sets added up a few at a time: coarser, never wrong."""
    case = balanced(FLAT["plain"], 4, t, 0.1)
    _, fine = start(case, t)
    monkeypatch.setattr(first_pass_module, "SINGLE_HALVINGS", single)
    monkeypatch.setattr(first_pass_module, "PAIR_HALVINGS", pair)
    _, coarse = start(case, t)
    monkeypatch.setattr(first_pass_module, "ENTRIES", entries)
    _, parts = start(case, t)
    assert parts.proved == coarse.proved
    check(case, t)
    assert coarse.proved[0] <= fine.proved[0]


@pytest.mark.parametrize("t", [1, 2, 3])
def test_the_first_pass_over_several_images_is_that_over_each(t: int) -> None:
    """By the same tables, and without any other image at hand."""
    for recipe in (FLAT["padded"], DEEP["two hidden"])[: 2 if t < 3 else 1]:
        case = balanced(recipe, 1, t, 0.2)
        windowed, together = start(case, t, 3)
        check_all(windowed, together, t)
        found = set()
        for image in range(3):
            check_safe(case, windowed, together, whole_boxes(windowed, every_set(windowed, t), image))
            own = windows_of(
                cluster_search(
                    case,
                    t,
                    windowed.instance.images[[image]].float().view(1, *recipe.shape),
                    [int(windowed.instance.specification.labels[image])],
                )
            )
            for alone in (first_pass(windowed, torch.tensor([image]), t), first_pass(own, torch.tensor([0]), t)):
                assert alone.proved == together.proved[image : image + 1]
                assert len(alone.left) == int((together.left.image == image).sum())
            found.add(together.proved[image])
        assert len(found) > 1 or t == 1
        turned = first_pass(windowed, torch.tensor([2, 0]), t)
        assert turned.proved == [together.proved[2], together.proved[0]]


@pytest.mark.family
@pytest.mark.parametrize(("name", "deep"), PLANTED_DEPTHS)
def test_a_planted_change_is_left(name: str, deep: bool) -> None:
    """The only set that changes the decision, and only for values inside its ranges."""
    spots, sight, stride = PLANTED[name]
    case = planted_windows(spots, sight, stride=stride, deep=deep)
    pixels = sorted({y * 6 + x for spot in spots for (y, x), _ in spot})
    t = len(pixels)
    windowed, found = start(case, t)
    assert windowed.local.sight == sight
    check_all(windowed, found, t)
    point = torch.full((1, 36), 0.5, dtype=torch.float64)
    for spot in spots:
        for (y, x), value in spot:
            point[0, y * 6 + x] = value
    boxes = whole_boxes(windowed, [pixels])
    assert bool(covers(windowed, found.left, boxes, 0, point))
    assert found.proved[0] > 0


@pytest.mark.parametrize("deep", [False, True])
def test_a_tie_that_rounding_hides_is_left(deep: bool) -> None:
    for seed in range(4):
        case = tied(seed, deep=deep)
        for t in (2,) if deep else (2, 3):
            windowed, found = start(case, t)
            assert 0 < float(windowed.instance.margins.min()) < 1e-12
            assert found.proved == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("t", [2, 3])
def test_a_bound_that_is_no_number_proves_nothing(t: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one part of the range of one pixel: no set with this pixel counts as proved."""
    case = balanced(FLAT["plain"], 0, t, 0.0, by=5.0)
    windowed, found = start(case, t)
    cell = int(all_cells(windowed)[3])
    assert not bool((found.left.cells == cell).any()) or t == 3

    def broken(windowed: Windowed, nodes: BoxNodes) -> torch.Tensor:
        forms = lower_forms(windowed, nodes).clone()
        forms[(nodes.cells == cell).any(1).nonzero()[:1, 0], 0, 0] = value
        return forms

    monkeypatch.setattr(first_pass_module, "lower_forms", broken)
    again = first_pass(windowed, torch.tensor([0]), t)
    check_all(windowed, again, t)
    sets = {tuple(sorted(cells)) for cells in again.left.cells.tolist()}
    far = [
        tuple(sorted(cells)) for cells in whole_boxes(windowed, every_set(windowed, t)).cells.tolist() if cell in cells
    ]
    assert len(sets.intersection(far)) > len(far) // 2
    if t == 2:
        pixels = windowed.instance.members[torch.tensor(far) - windowed.instance.tree.slots][:, :, 0]
        near = can_interact(windowed.local, pixels[:, 0], pixels[:, 1]).tolist()
        assert all(cells in sets or close for cells, close in zip(far, near, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_margins_that_are_no_numbers_prove_no_pairs(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_forms(_: Windowed, image: torch.Tensor, forms: AffineForms) -> torch.Tensor:
        lower = torch.zeros(len(image), 2, forms.centre.shape[1], dtype=torch.float64)
        lower[..., 0] = value
        return lower

    def broken_ranges(_: Windowed, __: torch.Tensor, ranges: Interval) -> torch.Tensor:
        return torch.full((len(ranges[0]), 2), value, dtype=torch.float64)

    windowed, found = start(balanced(DEEP["hidden"], 0, 2, 0.0, by=5.0), 2)
    assert found.proved[0] > 0
    monkeypatch.setattr(head_module, "margin_forms", broken_forms)
    for module in (head_module, disjoint_module, overlapping_module):
        monkeypatch.setattr(module, "interval_margins", broken_ranges)
    again = first_pass(windowed, torch.tensor([0]), 2)
    assert again.proved == [0]
    check_all(windowed, again, 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_sums_that_are_no_numbers_prove_no_sets(value: float) -> None:
    windowed, _ = start(balanced(FLAT["plain"], 0, 2, 0.0, by=5.0), 2)
    sets = torch.tensor([[0, 1], [0, 2], [1, 2]])
    change = torch.zeros(3, 2, dtype=torch.float64)
    change[1, 0] = value
    assert first_pass_module._sums_prove(windowed, 0, sets, lambda part: change[: len(part)]).tolist() == [
        True,
        False,
        True,
    ]
