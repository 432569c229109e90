"""Pairs of pixels from single ones and a rest: the forms that the pair has when it is carried as one."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from l0tre.certify.boxes.affine_forms import AffineForms
from l0tre.certify.boxes.box_bounds import box_items, carry_items
from l0tre.certify.boxes.pair_forms import PixelForms, add_forms, pair_forms
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import join
from tests.certify.boxes.cases import (
    directions,
    features_at,
    make_case,
    pixel_sets,
    singles_of,
    values_of,
    whole_boxes,
    windowed_of,
)
from tests.certify.boxes.recipes import RECIPES


def found_pairs(windowed: Windowed, singles: PixelForms, pairs: torch.Tensor) -> AffineForms:
    """AffineForms of all pairs in all images, ``[images * pairs, ...]``; each is given exactly once."""
    seen: Counter[int] = Counter()
    shape = (len(singles.images), len(pairs), 2 * singles.head.centre.shape[2] - 1, singles.head.centre.shape[3])
    centre, radius = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(2))
    images, numbers = torch.tensor(list(itertools.product(range(shape[0]), range(shape[1])))).T
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))  # images in any order
    images, numbers = images[order], numbers[order]
    for which, forms in pair_forms(windowed, singles, images, pairs[numbers]):
        seen.update(which.tolist())
        centre[images[which], numbers[which]] = forms.centre
        radius[images[which], numbers[which]] = forms.radius
    assert seen == Counter(range(len(images)))
    return AffineForms(centre.flatten(0, 1), radius.flatten(0, 1))


@pytest.mark.family
@pytest.mark.parametrize("name", RECIPES)
def test_pairs_have_the_forms_of_the_whole(name: str) -> None:
    """In every arrangement, first and second pixel in either order, for some of the images in another order."""
    case, generator = make_case(RECIPES[name], 2 + len(name) % 3), torch.Generator().manual_seed(0)
    windowed, images = windowed_of(case, 2, 3), torch.tensor([2, 0])
    singles, number = singles_of(windowed, images)
    sets = pixel_sets(windowed, 2, random.Random(0), 40)
    found = found_pairs(windowed, singles, torch.tensor([[number[a], number[b]] for a, b in sets]))
    nodes = join([whole_boxes(windowed, sets, image) for image in images.tolist()])
    whole = carry_items(windowed, box_items(windowed, nodes))
    assert torch.allclose(found.centre, whole.centre, rtol=0, atol=1e-9)
    assert torch.allclose(found.radius, whole.radius, rtol=0, atol=1e-9)
    u = directions(found.centre.shape[1] - 1, generator)
    truth, centre, radius = features_at(windowed, nodes, u), values_of(found.centre, u), values_of(found.radius, u)
    assert bool(((truth >= centre - radius - 1e-9) & (truth <= centre + radius + 1e-9)).all())


@pytest.mark.parametrize("name", ["stride", "padded pool", "smooth", "two hidden", "hidden, colours"])
def test_rounding_errors_count_as_in_the_whole(name: str) -> None:
    """Of neighbours: a box around others holds neurons that see neither of the two, which pairs do not pay for."""
    case = make_case(RECIPES[name], 1)
    windowed, columns = windowed_of(case, 2, 2), case.image.shape[2]
    slack = tuple(0.2 for _ in windowed.local.slack)
    windowed = replace(windowed, local=replace(windowed.local, slack=slack))
    singles, number = singles_of(windowed, torch.tensor([0, 1]))
    sets = [
        (a, a + step) for a in number for step in (1, columns) if a + step in number and (step > 1 or (a + 1) % columns)
    ]
    found = found_pairs(windowed, singles, torch.tensor([[number[a], number[b]] for a, b in sets]))
    nodes = join([whole_boxes(windowed, sets, image) for image in (0, 1)])
    whole = carry_items(windowed, box_items(windowed, nodes))
    assert torch.allclose(found.centre, whole.centre, rtol=0, atol=1e-9)
    assert torch.allclose(found.radius, whole.radius, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["stride", "padded pool", "two hidden", "hidden, colours"])
def test_batches_of_one_give_the_same(name: str) -> None:
    case = make_case(RECIPES[name], 1)
    windowed, images = windowed_of(case, 2, 2), torch.tensor([0, 1])
    singles, number = singles_of(windowed, images)
    pairs = torch.tensor([[number[a], number[b]] for a, b in pixel_sets(windowed, 2, random.Random(1), 12)])
    many, one = found_pairs(windowed, singles, pairs), found_pairs(windowed_of(case, 2, 2, memory=1), singles, pairs)
    assert torch.allclose(many.centre, one.centre, rtol=0, atol=1e-12)
    assert torch.allclose(many.radius, one.radius, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["skipping", "padded pool", "stride, colours", "hidden, stride"])
def test_single_pixels_are_carried_as_ever(name: str) -> None:
    case = make_case(RECIPES[name], 2)
    windowed, images = windowed_of(case, 1, 2), torch.tensor([1, 0])
    singles, number = singles_of(windowed, images)
    nodes = join([whole_boxes(windowed, [(pixel,) for pixel in number], image) for image in images.tolist()])
    alone = carry_items(windowed, box_items(windowed, nodes))
    for part, own in ((singles.head.centre, alone.centre), (singles.head.radius, alone.radius)):
        assert torch.allclose(part.flatten(0, 1), own, rtol=0, atol=1e-12)
    none = torch.zeros(0, 2, dtype=torch.int64)
    assert list(pair_forms(windowed, singles, none[:, 0], none)) == []


def test_sums_keep_variables_apart() -> None:
    first, second = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)
    total = add_forms(first, second)
    u = directions(3, torch.Generator().manual_seed(0))
    assert torch.allclose(values_of(total, u), values_of(first, u[:, :2]) + values_of(second, u[:, 2:]))
