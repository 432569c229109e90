import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.domain import Groups, make_domain
from l0tre.errors import ConfigError, DataError
from l0tre.exhaustive.accumulate import changed_groups
from l0tre.grid import axis_points, make_grid


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    low=st.floats(-5, 5, width=32),
    width=st.floats(0.0625, 5, width=32),
    epsilon=st.floats(0.01, 3),
)
def test_uniform_grid_has_both_ends_and_the_spacing(low: float, width: float, epsilon: float) -> None:
    points = axis_points(low, low + width, epsilon, "uniform").double()
    assert float(points[0]) == float(np.float32(low))
    assert float(points[-1]) == float(np.float32(low + width))
    assert float(points.diff().max()) <= epsilon + 1e-5
    assert float(points.diff().min()) > 0
    # and no finer than needed: one point fewer would be too coarse
    assert len(points) == 2 or width / (len(points) - 2) > epsilon - 1e-9


def test_known_grids() -> None:
    assert axis_points(0, 1, 0.25, "uniform").tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert axis_points(0, 1, 0.5, "uniform").tolist() == [0, 0.5, 1]
    assert axis_points(0, 1, 0.5, "paper").tolist() == [0, 1]
    assert axis_points(0, 1, 0.25, "paper").tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert len(axis_points(0, 1, 0.3, "uniform")) == 5
    assert len(axis_points(0, 1, 0.3, "paper")) == 3


def test_pixels_hold_all_their_channels() -> None:
    domain = make_domain((3, 2, 2))
    assert domain.unit == "pixel"
    assert domain.members.tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
    last = make_domain((5, 6, 3))
    assert last.members[0].tolist() == [0, 1, 2]
    assert last.groups == 30
    assert make_domain((5, 6)).groups == 30
    assert make_domain((7,)).unit == "feature"
    assert make_domain((3, 2, 2), groups="feature").groups == 12


@pytest.mark.parametrize(
    ("shape", "groups", "masked", "planes"),
    [
        ((3, 2, 4), "pixel", False, 3),
        ((3, 2, 4), "feature", False, 1),
        ((5, 4, 3), "pixel", False, 0),  # channels last
        ((3, 2, 4), "pixel", True, 0),
        ((7,), "auto", False, 1),
        ((6,), np.array([0, 1, 0, 1, 0, 1]), False, 3),
        ((6,), np.array([1, 0, 1, 0, 1, 0]), False, 0),
        ((6,), np.array([0, 0, 0, 1, 1, 2]), False, 0),
        ((6,), np.array([0, 1, 2, 0, 1, 2]), False, 2),
    ],
)
def test_groups_that_are_planes_are_seen_without_looking_up(
    shape: tuple[int, ...], groups: Groups | np.ndarray, masked: bool, planes: int
) -> None:
    mask = np.arange(np.prod(shape)).reshape(shape) > 0 if masked else None
    domain = make_domain(shape, groups=groups, mask=mask)
    values = torch.rand(4, len(domain.low))
    assert domain.planes == planes
    assert torch.equal(domain.by_group(values), values[:, domain.members])
    other = torch.where(torch.rand(values.shape) < 0.2, 0.5, values)
    assert torch.equal(changed_groups(domain, values, other), (values != other)[:, domain.members].any(2))


def test_colour_grid_is_the_product_of_the_channels() -> None:
    domain = make_domain((3, 2, 2))
    grid = make_grid(domain, 0.5)
    wanted = sorted(itertools.product([0.0, 0.5, 1.0], repeat=3))
    for group in grid:
        assert sorted(map(tuple, group.tolist())) == wanted
    corners = make_grid(domain, 0.5, colours="corners")
    assert sorted(map(tuple, corners[0].tolist())) == sorted(itertools.product([0.0, 1.0], repeat=3))


def test_own_groups_mask_and_ranges() -> None:
    domain = make_domain(
        (5,),
        groups=np.array([7, 7, 3, 9, -1]),
        mask=np.array([True, True, True, False, True]),
        low=np.array([0, 0, -1, 0, 0]),
        high=np.array([1, 1, 1, 1, 1]),
    )
    assert domain.unit == "group"
    assert domain.ids.tolist() == [3, 7]
    assert domain.sizes.tolist() == [1, 2]
    assert domain.members.tolist() == [[2, 2], [0, 1]]
    grid = make_grid(domain, 1.0)
    assert {tuple(p) for p in grid[0].tolist()} == {(-1, -1), (0, 0), (1, 1)}
    assert {tuple(p) for p in grid[1].tolist()} == set(itertools.product([0.0, 1.0], repeat=2))


def test_values_with_an_empty_range_never_change() -> None:
    domain = make_domain((3,), low=np.array([0, 0.5, 0]), high=np.array([1, 0.5, 1]))
    assert domain.ids.tolist() == [0, 2]


def test_a_mask_of_height_and_width_covers_all_channels() -> None:
    mask = np.zeros((2, 2), bool)
    mask[1, 0] = True
    for shape in ((3, 2, 2), (1, 2, 2)):
        assert make_domain(shape, mask=mask).ids.tolist() == [2]
    wide = np.zeros((5, 6), bool)
    wide[0, 1] = True
    assert make_domain((5, 6, 3), mask=wide).members.tolist() == [[3, 4, 5]]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"low": 1.0, "high": 0.0}, "above high"),
        ({"low": float("nan")}, "not finite"),
        ({"mask": np.zeros(4, bool)}, "freeze"),
        ({"mask": np.ones(3, bool)}, "does not fit"),
        ({"groups": np.array([0.5, 1, 2, 3])}, "integers"),
        ({"groups": "pixel"}, "no pixels"),
        ({"groups": "column"}, "unknown"),
    ],
)
def test_bad_domains_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make_domain((4,), **options)  # type: ignore[arg-type]


def test_too_many_points_are_refused_with_a_way_out() -> None:
    domain = make_domain((40,), groups=np.zeros(40, int))
    with pytest.raises(ConfigError, match="`colours='corners'`"):
        make_grid(domain, 0.25)
    with pytest.raises(ConfigError, match="spacing above 0"):
        make_grid(domain, float("nan"))


def test_images_outside_the_box_are_refused_by_number() -> None:
    images = torch.zeros(3, 4)
    images[2, 1] = 1.5
    with pytest.raises(DataError, match=r"input 12 has the value 1\.5 at position 1"):
        make_domain((4,)).check(images, (10, 11, 12))
    with pytest.raises(DataError, match="shape"):
        make_domain((5,)).check(images, (0, 1, 2))
