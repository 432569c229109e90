import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ConfigError, StoreError
from l0tre.grid import Colours
from l0tre.report import write_report
from l0tre.store import read_snapshot
from tests.tools import NO_ATTACK

VOID = {"meta", "br"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only lose by waiting for a second, busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Page(HTMLParser):
    """Checks that every element is closed in order; keeps the elements, the ids and the text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


class Weighted(nn.Module):
    """Two classes: 9 times the first value against the sum of all others; integers make the radii plain."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return torch.stack([9 * x[:, 0], x[:, 1:].sum(1)], 1)


class Constant(nn.Module):
    """Never changes its decision."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.flatten(1).sum(1) * 0 + 1, x.flatten(1).sum(1) * 0], 1)


def conv(channels: int, height: int, width: int) -> nn.Module:
    torch.manual_seed(3)
    values = 4 * (height - 2) * (width - 2)
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(values, 3))


def frozen_first(shape: tuple[int, ...]) -> l0tre.Domain:
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[0] = False
    return l0tre.make_domain(shape, mask=mask)


def report(folder: Path, pictures: int = 100) -> tuple[str, Page]:
    path = write_report(folder, pictures=pictures)
    assert path == folder / "report.html"
    assert not list(folder.glob(".report.html*")), "the temporary file is left"
    source = path.read_text(encoding="utf-8")
    assert source.lstrip().startswith("<!DOCTYPE html>")
    page = Page(source)
    check_page(page, source)
    return source, page


def check_page(page: Page, source: str) -> None:
    """What holds for every report: self-contained, accessible, drawings inside their view box."""
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "iframe", "img")
        for name in ("href", "src"):
            value = attributes.get(name, "#")
            assert value.startswith("data:image/png;base64,") or value.lstrip("#") in [*ids, ""]
    assert "@import" not in source
    assert set(re.findall(r"url\(#?([^)]*)\)", source)) <= set(ids)
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert all("scope" in header for header in page.all("th"))
    width = height = 0.0
    for tag, attributes in page.elements:
        if tag == "svg":
            _, _, width, height = (float(number) for number in attributes["viewbox"].split())
        places = [pair.split(",") for pair in attributes.get("points", "").split()]
        places += [
            [attributes[a], attributes[b]] for a, b in (("x1", "y1"), ("x2", "y2"), ("cx", "cy")) if a in attributes
        ]
        if tag == "text" and "x" in attributes:
            places.append([attributes["x"], attributes["y"]])
        places += [
            [str(int(c) + 1), str(int(r) + 1)] for c, r in re.findall(r"M(\d+) (\d+)h1", attributes.get("d", ""))
        ]
        for x, y in places:
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_vectors_show_figures_and_changes(tmp_path: Path) -> None:
    # 9 * 0.3 = 2.7 needs three of the others at 1; 9 * 0.1 = 0.9 needs one.
    images = torch.zeros(2, 7)
    images[:, 0] = torch.tensor([0.3, 0.1])
    l0tre.evaluate(Weighted(), images, max_t=3, domain=frozen_first((7,)), out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "Weighted on array: 2 images" in page.text
    assert "On average 2.000 features must change before the decision can change" in page.text
    assert "the answer is exact for every image (for changes to grid values)" in page.text
    assert "mean lower bound 1.000" in page.text
    assert "mean upper bound 2.000" in page.text
    assert "estimate 1.500 ± 0.500" in page.text
    assert "converged 2 of 2" in page.text
    assert "the values 0, 0.25, 0.5, 0.75, 1 from the smallest to the largest" in page.text
    assert "Nothing is claimed for values between grid points" in page.text
    assert page.text.index("image 1: 0 → 1 L = 0, U = 1") < page.text.index("image 0: 0 → 1 L = 2, U = 3")
    assert page.text.count("✓ exact") == 4  # in the cards and in the table
    changed = read_snapshot(tmp_path / "run")[1].witness
    assert changed is not None
    assert f"position before after value {int(changed.positions[0])} 0 1 image 1" in page.text
    assert not page.all("image")


def test_open_bounds_are_given_as_an_interval(tmp_path: Path) -> None:
    images = torch.zeros(2, 7)
    images[:, 0] = torch.tensor([0.5, 0.1])  # distances 5 and 1; the search stops at 2
    l0tre.evaluate(Weighted(), images, max_t=2, domain=frozen_first((7,)), out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    snapshot = read_snapshot(tmp_path / "run")
    assert [(image.lower, image.upper) for image in snapshot.images] == [(2, 5), (0, 1)]
    assert "On average at least 2.000 and at most 3.000 features must change" in page.text
    assert "on average between 2.000 and 3.000" in page.text
    assert "0 1 0" in page.text  # safe radius 0: one exact, none open
    assert "2 0 1 all 1 1" in page.text


def test_no_witness_at_all(tmp_path: Path) -> None:
    l0tre.evaluate(Constant(), torch.rand(3, 4), max_t=2, out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "On average at least 3.000 features must change" in page.text
    assert "No input with another decision is known for any image" in page.text
    assert "at most" not in page.text.split("mean lower bound")[0]
    assert "without witness 3" in page.text
    assert "each counts as 5 (all 4 features and one more)" in page.text
    assert "Inputs with another decision" not in page.text
    assert "none" in page.texts  # the mark on the chart


def test_a_decision_that_nothing_changes(tmp_path: Path) -> None:
    l0tre.evaluate(Constant(), torch.rand(2, 2), max_t=2, out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "No change of any number of features changes the decision of any image" in page.text
    assert "2 (all: nothing changes it)" in page.text


def test_some_witnesses_missing(tmp_path: Path) -> None:
    images = torch.zeros(2, 7)
    images[:, 0] = torch.tensor([1.0, 0.1])
    l0tre.evaluate(Weighted(), images, max_t=1, domain=frozen_first((7,)), out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "On average at least 1.500 features" in page.text
    assert "For 1 of 2 images an input with another decision is known; over these alone, it changes 1.000" in page.text


def test_excluded_images_and_names_are_escaped(tmp_path: Path) -> None:
    images = torch.zeros(3, 4)
    images[:, 0] = 0.1
    data = l0tre.Dataset(images, torch.tensor([0, 1, 0]), (4, 8, 15), "a<b>&\"c'")
    l0tre.evaluate(Weighted(), data, max_t=1, out=tmp_path / "run")
    source, page = report(tmp_path / "run")
    assert "a<b>" not in source
    assert "Weighted on a<b>&\"c': 2 images" in page.text
    assert "left out 1" in page.text
    assert "8 classified as 0, labelled 1" in page.text
    assert "settings.epsilon 0.25" in page.text
    assert "versions.torch" in page.text


@pytest.mark.parametrize(("channels", "colours"), [(1, "grid"), (3, "corners")])
def test_pictures(tmp_path: Path, channels: int, colours: Colours) -> None:
    torch.manual_seed(0)
    images = torch.rand(6, channels, 6, 5)
    out = tmp_path / "run"
    result = l0tre.evaluate(conv(channels, 6, 5), images, max_t=1, colours=colours, guarantee="grid", out=out)
    _, page = report(tmp_path / "run")
    shown = len(images) - result.without_witness
    assert shown > 0
    assert len(page.all("image")) == 2 * shown
    assert all((image["width"], image["height"]) == ("5", "6") for image in page.all("image"))
    # Each picture outlines the pixels that the witness of its image changes, here of 6 rows and 5 columns.
    outlines = {path["id"]: set(re.findall(r"M(\d+) (\d+)h1v1h-1z", path["d"])) for path in page.all("path")}
    for image in result.images:
        if image.witness is not None:
            changed = {divmod(position % 30, 5) for position in image.witness.positions.tolist()}
            assert len(changed) == image.upper
            for kind in "oa":
                assert outlines[f"{kind}{image.index}p"] == {(str(column), str(row)) for row, column in changed}
    if channels == 3:
        assert "only the smallest or the largest value of its range (0 or 1)" in page.text
        assert "a pixel of 3 values takes all combinations" in page.text
    _, fewer = report(tmp_path / "run", pictures=1)
    assert len(fewer.all("image")) == 2
    _, none = report(tmp_path / "run", pictures=0)
    assert not none.all("image")


def test_the_published_grid(tmp_path: Path) -> None:
    images = torch.zeros(1, 4)
    images[:, 0] = 0.1
    l0tre.evaluate(Weighted(), images, max_t=1, epsilon=0.5, grid="paper", out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "the values 0, 1 of the published code's grid, linspace(low, high, floor(1/ε)) with ε = 0.5" in page.text
    assert "whose spacing is 1, not ε" in page.text


def test_ranges_that_differ(tmp_path: Path) -> None:
    high = torch.tensor([1.0, 2.0, 3.0, 4.0])
    images = torch.zeros(1, 4)
    images[:, 0] = 0.1
    domain = l0tre.make_domain((4,), high=high)
    l0tre.evaluate(Weighted(), images, max_t=1, domain=domain, out=tmp_path / "run")
    _, page = report(tmp_path / "run")
    assert "A changed value takes the values from the smallest to the largest value of its range" in page.text


def test_a_run_that_was_stopped(tmp_path: Path) -> None:
    snapshots = l0tre.anytime(Constant(), torch.rand(2, 5), max_t=3, out=tmp_path / "run")
    next(snapshots)
    _, page = report(tmp_path / "run")
    assert "The search stopped at level t = 1 of 3" in page.text
    assert "The bounds hold; resuming improves them." in page.text
    list(snapshots)
    _, page = report(tmp_path / "run")
    assert "The search is complete up to 3 features changed together" in page.text


@pytest.mark.slow
def test_size_of_a_hundred_pictures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.rand(100, 1, 28, 28)  # noise: the worst case for a PNG
    l0tre.evaluate(conv(1, 28, 28), images, max_t=1, epsilon=1.0, out=tmp_path / "run", **NO_ATTACK)
    source, page = report(tmp_path / "run")
    assert len(page.all("image")) == 200
    assert len(source.encode()) < 1_000_000


def test_long_tables_are_cut(tmp_path: Path) -> None:
    images = torch.zeros(1200, 4)
    images[:, 0] = torch.rand(1200, generator=torch.Generator().manual_seed(0)) + 0.001
    images.clamp_(0, 1)
    labels = (torch.arange(1200) % 2).tolist()
    l0tre.evaluate(Weighted(), images, labels, max_t=1, out=tmp_path / "run", **NO_ATTACK)
    source, page = report(tmp_path / "run", pictures=0)
    assert "The first 500 of 600 images; bounds.csv has all." in page.text
    assert "The first 500 of 600; result.json has all." in page.text
    assert len(source) < 300_000


def test_errors_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a run folder"):
        write_report(tmp_path)
    with pytest.raises(ConfigError, match="pictures is -1"):
        write_report(tmp_path, pictures=-1)
