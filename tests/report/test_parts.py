import base64
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from l0tre.domain import make_domain
from l0tre.evaluation.results import Guarantee, HistoryPoint, ImageBounds, Snapshot, make_witness
from l0tre.report.blocks import Block
from l0tre.report.charts import over_time, radii, shares, sorted_bounds, times
from l0tre.report.pictures import make_sheets
from l0tre.report.words import answer, guarantees

WITNESS = make_witness(torch.zeros(1), torch.ones(1), (0,), 1, -1.0, 1)
SETTINGS = {"settings": {"max_t": 2, "epsilon": 0.25, "grid": "uniform", "colours": "grid"}}


def bounds(lower: int, upper: int, *, witness: bool = True, guarantee: Guarantee = "grid") -> ImageBounds:
    return ImageBounds(0, 0, 784, lower, upper, guarantee, WITNESS if witness else None)


def snapshot(images: list[ImageBounds], history: list[HistoryPoint], seconds: float = 1.0) -> Snapshot:
    return Snapshot(tuple(images), (), seconds, 1, "pixel", history=tuple(history), config=SETTINGS)


def decode(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


interval = st.tuples(st.integers(0, 5), st.integers(1, 784), st.booleans()).map(
    lambda t: bounds(t[0], t[0] + t[1], witness=t[2])
)


def lines(block: Block, variant: int = 0) -> tuple[list[Any], list[list[Any]]]:
    """The horizontal places of a chart, and the values of its lines."""
    chosen = block["variants"][variant]
    return chosen["x"], [one["values"] for one in chosen["series"]]


@given(st.lists(interval, min_size=1, max_size=40))
def test_shares_count_the_images_proved_and_those_without_a_known_change(images: list[ImageBounds]) -> None:
    places, (proved, kept) = lines(shares(snapshot(images, [])))
    for place, low, high in zip(places, proved, kept, strict=True):
        assert low == pytest.approx(sum(image.lower >= place for image in images) / len(images), abs=1e-5)
        known = sum(image.witness is not None and image.upper <= place for image in images)
        assert high == pytest.approx(1 - known / len(images), abs=1e-5)


def test_shares_of_large_inputs_keep_every_step() -> None:
    far = [bounds(4_000, 9_000), bounds(1, 5)]
    places, (proved, kept) = lines(shares(snapshot(far, [])))
    assert len(places) < 20
    assert [proved[places.index(place)] for place in (1, 2, 4_000, 4_001)] == [1.0, 0.5, 0.5, 0.0]
    assert [kept[places.index(place)] for place in (4, 5, 8_999, 9_000)] == [1.0, 0.5, 0.5, 0.0]


def test_images_are_sorted_and_those_without_witness_come_last() -> None:
    images = [bounds(0, 785, witness=False), bounds(1, 4), bounds(0, 1), bounds(1, 2)]
    run = snapshot([replace(image, index=number) for number, image in enumerate(images)], [])
    drawn = sorted_bounds(run, (run,))
    assert lines(drawn) == ([1, 2, 3, 4], [[0, 1, 1, 0], [1, 2, 4, None]])
    assert drawn["pick"] == [[2, 3, 1, 0]]
    assert not drawn["log"]  # the trivial bound does not stretch the axis


def test_every_level_is_a_figure_of_its_own_the_last_one_first() -> None:
    early, late = snapshot([bounds(0, 9)], []), snapshot([bounds(1, 2)], [])
    drawn = sorted_bounds(late, (early, late))
    assert [one["name"] for one in drawn["variants"]] == ["up to t = 2", "up to t = 1"]
    assert lines(drawn, 1)[1] == [[0], [9]]


def test_means_over_time_end_with_the_present_ones() -> None:
    run = snapshot([bounds(1, 2)], [HistoryPoint(0.0, 1, 0.0, 4.0), HistoryPoint(2.0, 2, 1.0, 2.0)], 4.0)
    drawn = over_time(run)
    assert lines(drawn) == ([0.0, 2.0, 4.0], [[0.0, 1.0, 1.0], [4.0, 2.0, 2.0]])
    assert drawn["marks"] == [[2.0, "t = 2"]]
    assert lines(over_time(snapshot([bounds(0, 3)], [], 0.0))) == ([0.0], [[0.0], [3.0]])


def test_long_histories_are_thinned_and_keep_their_end() -> None:
    history = [HistoryPoint(i / 10, 1, i / 20_000, 785 - i / 30) for i in range(20_000)]
    places, _ = lines(over_time(snapshot([bounds(1, 2)], history, 2000.0)))
    assert len(places) < 2_500
    assert (places[0], places[-1]) == (0.0, 2000.0)


def test_the_histogram_tells_exact_radii_from_open_ones() -> None:
    drawn = radii(snapshot([bounds(2, 3), bounds(2, 9), bounds(0, 1)], []))
    assert lines(drawn) == ([0, 1, 2], [[1, 0, 2], [1, 0, 1]])


def test_times_are_those_of_the_level_alone() -> None:
    first = snapshot([replace(bounds(0, 9), seconds=1.0, queries=10)], [])
    second = snapshot([replace(bounds(1, 9), seconds=4.0, queries=50)], [])
    assert times((first, second))[1] == [[1, 1, 1.0, 1.0, 1.0, 10], [2, 1, 3.0, 3.0, 3.0, 40]]


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (5, 7, 1), (5, 7, 3), (5, 7)])
def test_sheets_hold_the_shades_of_every_input(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    images = torch.rand(300, *shape) * 4 - 1
    sheets = make_sheets(images, -1.0, 3.0, room=10**7)
    assert sheets is not None
    assert (sheets.exact, sheets.cells, sheets.height, sheets.width) == (True, None, 5, 7)
    full = images if len(shape) == 3 else images[:, :, :, None]
    full = full.permute(0, 2, 3, 1) if shape[0] in (1, 3) else full
    for row in (0, 120, 299):
        sheet, cell = divmod(row, sheets.sheet)
        down, across = divmod(cell, sheets.across)
        pixels = decode(sheets.files[sheet])[down * 5 : down * 5 + 5, across * 7 : across * 7 + 7]
        expected = ((full[row].double().numpy() + 1) / 4 * 255).round().astype(int)
        assert np.abs(pixels.reshape(expected.shape).astype(int) - expected).max() <= 1


def test_what_does_not_fit_is_left_out_the_hardest_first() -> None:
    torch.manual_seed(0)
    images = torch.rand(40, 3, 64, 64)
    assert make_sheets(images, 0.0, 1.0, room=10**7).exact  # type: ignore[union-attr]
    sheets = make_sheets(images, 0.0, 1.0, first=[7, 3, 9], room=30_000)
    assert sheets is not None
    assert not sheets.exact
    assert sheets.cells is not None
    shown = [row for row, cell in enumerate(sheets.cells) if cell >= 0]
    assert [sheets.cells[row] for row in (7, 3, 9)] == [0, 1, 2]
    assert 3 < len(shown) < 40
    assert sum(map(len, sheets.files)) <= 30_000
    assert make_sheets(images, 0.0, 1.0, room=0) is None
    assert make_sheets(torch.rand(3, 9), 0.0, 1.0, room=10**6) is None


def test_the_answer_claims_no_pixels_where_none_is_proved() -> None:
    text = answer(snapshot([bounds(0, 1), bounds(0, 3)], []))
    assert text == (
        "No change of even one pixel is proved to keep the decision, while 2.000 well-chosen ones suffice to alter it "
        "(shown by stored inputs): [0.000, 2.000] over 2 inputs."
    )


@pytest.mark.parametrize(
    ("kinds", "claim"),
    [
        (["grid"], "(proved for changes to grid values)"),
        (["certified", "lipschitz"], "(proved for all real values of the domain)"),
        (["certified", "grid"], "(in the sense of the guarantees below)"),
        (["sampled"], "random samples claim no lower bound"),
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
