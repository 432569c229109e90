"""The data behind every figure, and that it is drawn (or left out without matplotlib)."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from l0tre.figures.comparison import accuracy_and_robustness
from l0tre.store import read_snapshot
from l0tre.studies.adversarial import adversarial_images
from l0tre.studies.figures import global_bounds, one_image, seconds_per_level, sorted_images
from l0tre.studies.network_figures import bounds_of_networks, level_rows, spread_of_networks
from l0tre.studies.runs import RunData, read_run, read_runs

PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def run(study: Path) -> RunData:
    return read_run(study / "dnn-2-paper")


def rows_of(files: tuple[Path, ...]) -> list[dict[str, str]]:
    """The rows of a figure's CSV, after a look at its PNG."""
    data, image = files
    assert image.read_bytes().startswith(PNG)
    with data.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_image_over_t(run: RunData, tmp_path: Path) -> None:
    rows = rows_of(one_image(run, tmp_path / "deep" / "v1.5"))
    assert (tmp_path / "deep" / "v1.5.png").is_file()  # a point in the name is no suffix
    top = max(image.upper for image in run.levels[0].images)
    assert [int(row["t"]) for row in rows] == [1, 2]
    assert int(rows[0]["upper"]) == top
    shown = int(rows[0]["index"])
    assert [(int(r["lower"]), int(r["upper"])) for r in rows] == [(s[shown].lower, s[shown].upper) for s in run.levels]
    other = run.levels[0].images[0].index
    assert {int(row["index"]) for row in rows_of(one_image(run, tmp_path / "other", other))} == {other}


def test_global_bounds_over_t_and_time(run: RunData, tmp_path: Path) -> None:
    rows = rows_of(global_bounds(run, tmp_path / "global"))
    ends = [row for row in rows if row["over"] == "t"]
    assert [float(row["lower"]) for row in ends] == pytest.approx([level.lower for level in run.levels])
    moments = [row for row in rows if row["over"] == "seconds"]
    assert [float(row["upper"]) for row in moments] == pytest.approx([p.upper for p in run.latest.history])
    assert float(moments[-1]["upper"]) == pytest.approx(run.latest.upper)


def test_seconds_of_the_levels_add_up(run: RunData, tmp_path: Path) -> None:
    rows = rows_of(seconds_per_level(run, tmp_path / "seconds"))
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(sum(i.seconds for i in run.latest.images))
    second = {int(row["index"]) for row in rows if row["t"] == "2"}
    assert second == {image.index for image in run.latest.images if image.level == 2}
    assert 0 < len(second) < len(run.latest.images)


def test_images_that_the_attack_settles_have_no_seconds_at_a_level(study: Path, tmp_path: Path) -> None:
    run = read_run(study / "dnn-7-grid")
    rows = rows_of(seconds_per_level(run, tmp_path / "seconds"))
    settled = {image.index for image in run.latest.images if image.attacked and image.level == 0}
    assert settled
    assert {int(row["index"]) for row in rows} == {image.index for image in run.latest.images} - settled


def test_images_are_in_the_order_of_their_first_upper_bounds(run: RunData, tmp_path: Path) -> None:
    rows = rows_of(sorted_images(run, tmp_path / "images"))
    first = [int(row["upper"]) for row in rows if row["t"] == "1"]
    assert first == sorted(first)
    order = [[row["index"] for row in rows if row["t"] == t] for t in ("1", "2")]
    assert order[0] == order[1]
    for row in rows:
        image = run.levels[int(row["t"]) - 1][int(row["index"])]
        assert (int(row["lower"]), int(row["upper"])) == (image.lower, image.upper)


def test_adversarial_images_are_stored_as_their_changes(run: RunData, tmp_path: Path) -> None:
    rows = rows_of(adversarial_images(run, tmp_path / "adversarial", count=4))
    assert [row["moment"] for row in rows] == ["t = 1", "latest"] * 4
    for row in rows:
        assert len(row["positions"].split()) == len(row["values"].split()) == int(row["upper"])
        assert row["becomes"] != row["label"]
    converged = [row["converged"] for row in rows if row["moment"] == "latest"]
    assert converged == sorted(converged, reverse=True)  # True before False


def test_networks_side_by_side(study: Path, tmp_path: Path) -> None:
    runs = [run for run in read_runs(study) if run.kind == "paper"]
    for draw in (bounds_of_networks, spread_of_networks):
        rows = rows_of(draw(runs, tmp_path / draw.__name__))
        assert [(row["network"], row["t"]) for row in rows] == [
            (name, t) for name in ("dnn-2", "dnn-3", "dnn-7") for t in ("1", "2")
        ]
    row = level_rows(runs)[1]
    stored = read_snapshot(study / "dnn-2-paper")
    estimates = [(image.lower + image.upper) / 2 for image in stored.images]
    mean = sum(estimates) / len(estimates)
    assert row["estimate"] == pytest.approx(mean) == pytest.approx(stored.estimate)
    assert (row["kind"], row["guarantee"]) == ("paper", "grid")
    assert row["estimate_sd"] ** 2 == pytest.approx(sum((e - mean) ** 2 for e in estimates) / len(estimates))


@pytest.mark.parametrize("high", [0.0, 1.5, 784.0])
def test_any_radius_can_be_drawn(tmp_path: Path, high: float) -> None:
    row = {"network": "a", "accuracy": 1.0, "radius_low": 0.0, "radius_high": high, "unit": "pixel", "groups": 784}
    assert len(rows_of(accuracy_and_robustness([row, {**row, "groups": 196}], tmp_path / "both"))) == 2


@pytest.mark.parametrize("draw", [one_image, global_bounds, seconds_per_level, sorted_images, adversarial_images])
def test_without_matplotlib_the_data_is_still_written(
    run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw: Callable[[RunData, Path], tuple[Path, ...]]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(run, tmp_path / "figure") == (tmp_path / "figure.csv",)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.csv"]
    assert (tmp_path / "figure.csv").read_text().count("\n") > 1
