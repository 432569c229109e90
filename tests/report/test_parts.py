import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from l0tre.domain import make_domain
from l0tre.evaluation.results import Guarantee, HistoryPoint, ImageBounds, Snapshot, make_witness
from l0tre.report import chart
from l0tre.report.pictures import make_cards
from l0tre.report.words import answer, guarantees
from l0tre.store import Inputs

WITNESS = make_witness(torch.zeros(1), torch.ones(1), (0,), 1, -1.0, 1)
SETTINGS = {"settings": {"max_t": 2, "epsilon": 0.25, "grid": "uniform", "colours": "grid"}}


def bounds(lower: int, upper: int, *, witness: bool = True, guarantee: Guarantee = "grid") -> ImageBounds:
    return ImageBounds(0, 0, 784, lower, upper, guarantee, WITNESS if witness else None)


def snapshot(images: list[ImageBounds], history: list[HistoryPoint], seconds: float = 1.0) -> Snapshot:
    return Snapshot(tuple(images), (), seconds, 1, "pixel", history=tuple(history), config=SETTINGS)


def decode(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def inside(drawn: chart.Chart) -> bool:
    on_x = [x for x, _ in (*drawn.area, *drawn.x_ticks, *drawn.marks)]
    on_y = [y for y, _ in drawn.y_ticks] + [y for _, y in drawn.area]
    wide = all(chart.LEFT <= x <= chart.RIGHT for x in on_x)
    return wide and all(chart.TOP <= y <= chart.BOTTOM for y in on_y)


interval = st.tuples(st.integers(0, 5), st.integers(1, 784), st.booleans()).map(
    lambda t: bounds(t[0], t[0] + t[1], witness=t[2])
)
moment = st.tuples(st.floats(0, 1e6), st.integers(1, 3), st.floats(0, 5), st.floats(5, 785))


@settings(deadline=None)
@given(st.lists(interval, min_size=1, max_size=60), st.lists(moment, max_size=60).map(sorted), st.floats(0, 1e6))
def test_charts_stay_inside_and_upper_stays_above(
    images: list[ImageBounds], moments: list[tuple[float, int, float, float]], seconds: float
) -> None:
    end = max([seconds, *(m[0] for m in moments)])
    run = snapshot(images, [HistoryPoint(*m) for m in moments], end)
    for drawn in (chart.bounds_over_time(run), chart.sorted_images(run)):
        assert inside(drawn)
        assert [x for x, _ in drawn.lower] == sorted(x for x, _ in drawn.lower)
        assert [x for x, _ in drawn.upper] == sorted(x for x, _ in drawn.upper)
        assert max(y for _, y in drawn.upper) <= chart.BOTTOM
        assert drawn.upper[-1][1] <= drawn.lower[-1][1]
        assert 2 <= len(drawn.x_ticks) <= 11 or len(images) == 1


def test_step_lines_hold_each_value_until_the_next() -> None:
    run = snapshot([bounds(1, 2)], [HistoryPoint(0.0, 1, 0.0, 4.0), HistoryPoint(2.0, 2, 1.0, 2.0)], 4.0)
    drawn = chart.bounds_over_time(run)
    middle, half = (chart.LEFT + chart.RIGHT) / 2, (chart.TOP + chart.BOTTOM) / 2
    assert drawn.upper == ((chart.LEFT, chart.TOP), (middle, chart.TOP), (middle, half), (chart.RIGHT, half))
    assert drawn.lower[0] == (chart.LEFT, chart.BOTTOM)
    assert drawn.marks == ((middle, "t = 2"),)
    assert [label for _, label in drawn.y_ticks] == ["0", "1", "2", "3", "4"]


def test_a_run_without_history_is_a_point() -> None:
    drawn = chart.bounds_over_time(snapshot([bounds(0, 3)], [], 0.0))
    assert inside(drawn)
    assert len(drawn.lower) == len(drawn.upper) == 2


def test_images_are_sorted_and_those_without_witness_come_last() -> None:
    run = snapshot([bounds(0, 785, witness=False), bounds(1, 4), bounds(0, 1), bounds(1, 2)], [])
    drawn = chart.sorted_images(run)
    heights = [y for _, y in drawn.upper]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] == chart.TOP
    assert drawn.y_ticks[-1] == (chart.TOP, "none")
    # The trivial bound does not stretch the axis.
    assert drawn.y_ticks[-2][1] == "4"


def test_thousands_of_images_give_a_small_chart() -> None:
    images = [bounds(i % 3, 4 + i) for i in range(20_000)]
    history = [HistoryPoint(i / 10, 1, i / 20_000, 785 - i / 30) for i in range(20_000)]
    run = snapshot(images, history, 2000.0)
    for drawn in (chart.sorted_images(run), chart.bounds_over_time(run)):
        assert len(drawn.area) < 8 * (chart.RIGHT - chart.LEFT)
        assert inside(drawn)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (5, 7, 1), (5, 7, 3), (5, 7)])
def test_pictures_show_the_values_and_the_changed_pixels(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    domain = make_domain(shape, low=-1.0, high=3.0)
    original = torch.rand(shape) * 4 - 1
    first = shape[0] in (1, 3)

    def plane(values: Tensor) -> np.ndarray:
        full = values if len(shape) == 3 else values[:, :, None]
        full = full.permute(1, 2, 0) if first else full
        return ((full.numpy() + 1) / 4 * 255).round().astype(int).squeeze()

    changed = original.clone()
    spot: tuple[int | slice, ...] = (slice(None), 2, 6) if first else (2, 6)
    changed[spot] = 3.0
    witness = make_witness(original, changed, (20,), 1, -1.0, 1)
    image = ImageBounds(9, 0, 35, 0, 1, "grid", witness)
    (card,) = make_cards([image], Inputs(original[None], None, (9,), domain), 10)
    assert card.picture is not None
    assert (card.picture.height, card.picture.width) == (5, 7)
    assert card.picture.pixels == ((2, 6),)
    assert np.abs(decode(card.picture.original).astype(int) - plane(original)).max() <= 1
    assert np.abs(decode(card.picture.adversarial).astype(int) - plane(changed)).max() <= 1
    assert (decode(card.picture.adversarial)[2, 6] == 255).all()


@pytest.mark.parametrize(
    ("shape", "position"),
    [((6,), "value 4"), ((2, 3, 4), "row 1, column 0, channel 0"), ((2, 2, 2, 2), "value (0, 1, 0, 0)")],
)
def test_other_shapes_list_their_changes(shape: tuple[int, ...], position: str) -> None:
    domain = make_domain(shape, groups="feature")
    original = torch.zeros(shape)
    changed = original.clone()
    changed.view(-1)[4] = 0.5
    image = ImageBounds(0, 0, 6, 0, 1, "grid", make_witness(original, changed, (4,), 1, -1.0, 1))
    (card,) = make_cards([image], Inputs(original[None], None, (0,), domain), 10)
    assert card.picture is None
    assert [(c.place, c.before, c.after) for c in card.changes] == [(position, "0", "0.5")]


def test_long_lists_of_changes_are_cut() -> None:
    original = torch.zeros(100)
    image = ImageBounds(0, 0, 100, 0, 90, "grid", make_witness(original, original + 1, tuple(range(100)), 1, -1.0, 1))
    (card,) = make_cards([image], Inputs(original[None], None, (0,), make_domain((100,))), 10)
    assert len(card.changes) == 40
    assert card.more == 60


def test_large_pictures_do_not_swell_the_page() -> None:
    torch.manual_seed(0)
    images = torch.rand(30, 3, 224, 224)
    changed = images.clone()
    changed[:, :, 0, 0] = 1.0
    witnesses = [make_witness(*pair, (0,), 1, -1.0, 1) for pair in zip(images, changed, strict=True)]
    found = [ImageBounds(i, 0, 50176, 0, 1, "grid", witness) for i, witness in enumerate(witnesses)]
    cards = make_cards(found, Inputs(images, None, tuple(range(30)), make_domain((3, 224, 224))), 30)
    assert 0 < len(cards) < 30


@pytest.mark.parametrize(
    ("kinds", "claim"),
    [
        (["grid"], "for changes to grid values"),
        (["certified", "lipschitz"], "for all real values of the domain"),
        (["certified", "grid"], "in the sense of the guarantees below"),
        (["sampled"], "in the sense of the guarantees below"),
    ],
)
def test_each_kind_of_guarantee_is_named(kinds: list[Guarantee], claim: str) -> None:
    run = snapshot([bounds(1, 3, guarantee=kind) for kind in kinds], [])
    assert claim in answer(run)
    assert sorted(kind for kind, _, _ in guarantees(run, make_domain((1, 28, 28)))) == sorted(kinds)


def test_fine_grids_are_not_listed_value_by_value() -> None:
    fine = {"settings": {**SETTINGS["settings"], "epsilon": 1 / 255}}
    run = Snapshot((bounds(1, 2),), (), 1.0, 1, "pixel", config=fine)
    ((_, _, text),) = guarantees(run, make_domain((1, 28, 28)))
    assert "256 values (0, 0.00392157, ..., 1)" in text
