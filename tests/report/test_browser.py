"""The pages in a real browser: they open from disk, sort, filter, tell values, and run nothing that data hold."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")

import torch
from playwright.sync_api import Page, expect

from l0tre.evaluation.exports import export_writes
from l0tre.evaluation.results import make_witness
from l0tre.report import PageSource, evaluation_page, save_page
from tests.report.making import HOSTILE, made_run

ROW = "table.images tbody tr"


def opened(tab: Page, run: PageSource, folder: Path, wanted: str = ROW) -> Page:
    """The page of a run, from disk."""
    tab.goto(save_page(evaluation_page(run), folder / "report.html").as_uri())
    expect(tab.locator(wanted).first).to_be_visible()
    return tab


def numbers(tab: Page, column: int) -> list[str]:
    return tab.locator(f"{ROW} > :nth-child({column})").all_inner_texts()


def test_the_table_sorts_filters_and_searches(tab: Page, tmp_path: Path) -> None:
    run = made_run(60)
    opened(tab, run, tmp_path)
    assert len(numbers(tab, 2)) == 25
    assert numbers(tab, 2)[0] == "0 file-0.png"
    tab.get_by_role("button", name="next page").click()
    assert numbers(tab, 2)[0] == "25 file-25.png"

    tab.locator("table.images").get_by_role("button", name="upper").click()
    known = sorted(image.upper for image in run.snapshot.images if image.witness is not None)
    tab.get_by_role("button", name="first page").click()
    assert numbers(tab, 5) == [str(upper) for upper in known[:25]]
    tab.locator("table.images").get_by_role("button", name="upper").click()  # the other way: those without come first
    assert numbers(tab, 5)[0] == "none"

    tab.get_by_role("searchbox").fill("file-59")
    assert numbers(tab, 2) == ["59 file-59.png"]
    tab.get_by_role("button", name="clear").click()
    tab.locator("select[data-filter=state]").select_option("exact")
    exact = [image for image in run.snapshot.images if image.converged]
    expect(tab.locator(".pages output")).to_contain_text(f"of {len(exact)} (60 in all)")


def test_the_matrix_filters_by_pairs_of_classes(tab: Page, tmp_path: Path) -> None:
    run = made_run(30)
    opened(tab, run, tmp_path)
    pair = [i for i in run.snapshot.images if i.witness is not None and (i.label, i.witness.label) == (1, 2)]
    tab.get_by_role("button", name=f"{len(pair)} inputs: one becomes two").click()
    assert numbers(tab, 2) == [f"{image.index} file-{image.index}.png" for image in pair]


def test_a_row_opens_its_image(tab: Page, tmp_path: Path) -> None:
    run = made_run(12)
    opened(tab, run, tmp_path)
    image = run.snapshot.images[4]
    assert run.inputs is not None
    assert image.witness is not None
    tab.get_by_role("button", name="4 file-4.png").click()
    view = tab.get_by_role("dialog")
    expect(view.get_by_role("heading", name="image 4 file-4.png")).to_be_visible()
    expect(view.locator("figcaption")).to_have_text(
        ["original: one", "changed: two", "difference (red: more, blue: less)"]
    )
    position, value = int(image.witness.positions[0]), float(image.witness.values[0])
    before = float(run.inputs.images[4].flatten()[position])
    changed = view.locator("section", has_text="Changed values").locator("tbody tr").first.locator("td")
    assert changed.all_inner_texts() == [str(position // 5), str(position % 5), f"{before:.6g}", "→", f"{value:.6g}"]
    scores = view.locator("section", has_text="Scores").last.locator("tbody tr").first.locator("td")
    assert scores.all_inner_texts() == ["zero", "2.000", "1.000", "-1.000"]
    # The changed picture differs from the original in the changed pixels only.
    pixels = [tab.evaluate(PIXELS, number) for number in (0, 1)]
    differ = {place for place, (a, b) in enumerate(zip(*pixels, strict=True)) if a != b}
    assert differ == {int(position) for position in image.witness.positions}
    assert pixels[0] == [int(v) for v in (run.inputs.images[4].flatten().double() * 255).round().tolist()]
    view.press("ArrowRight")
    expect(view.get_by_role("heading", name="image 5 file-5.png")).to_be_visible()
    view.press("Escape")
    expect(view).to_be_hidden()


def test_a_picture_tells_its_pixels_and_grows(tab: Page, tmp_path: Path) -> None:
    run = made_run(12)
    opened(tab, run, tmp_path)
    assert run.inputs is not None
    image = run.snapshot.images[4]
    assert image.witness is not None
    position, value = int(image.witness.positions[0]), float(image.witness.values[0])
    before = float(run.inputs.images[4].flatten()[position])
    tab.get_by_role("button", name="4 file-4.png").click()
    view = tab.get_by_role("dialog")
    button = view.get_by_role("button", name="changed, becomes two: enlarge")
    box = button.bounding_box()
    assert box is not None
    row, column = divmod(position, 5)
    button.hover(position={"x": (column + 0.5) * box["width"] / 5, "y": (row + 0.5) * box["height"] / 6})
    told = view.locator(".views .told")
    expect(told).to_have_text(f"row {row}, column {column}: about {before:.3g}; changed, {before:.4g} → {value:.4g}")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    grown = button.bounding_box()
    assert grown is not None
    assert grown["width"] > 1.5 * box["width"]


def test_pixels_with_channels_have_a_row_each(tab: Page, tmp_path: Path) -> None:
    run = made_run(6, shape=(3, 4, 4))
    image = run.snapshot.images[5]
    assert image.witness is not None
    assert run.inputs is not None
    changed = run.inputs.images[5].clone().flatten()
    changed[[1, 17, 33, 6, 22, 38]] = torch.tensor([1.0, 0.5, 0.25, 0.0, 1.0, 0.125])
    witness = make_witness(run.inputs.images[5], changed.reshape(3, 4, 4), (1, 6), 0, -0.5, 1)
    images = (*run.snapshot.images[:5], replace(image, witness=witness))
    opened(tab, replace(run, snapshot=replace(run.snapshot, images=images)), tmp_path)
    tab.get_by_role("button", name="5 file-5.png").click()
    table = tab.get_by_role("dialog").locator("section", has_text="Changed pixels (2)")
    expect(table.locator("thead th").nth(2)).to_have_text("before: red, green, blue")
    assert table.locator("tbody td:nth-child(5)").all_inner_texts() == ["1, 0.5, 0.25", "0, 1, 0.125"]
    assert table.locator("tbody td:nth-child(-n+2)").all_inner_texts() == ["0", "1", "1", "2"]


def test_the_last_image_with_an_upper_bound_has_its_step(tab: Page, tmp_path: Path) -> None:
    run = made_run(4)  # the first and the last one have no witness
    opened(tab, run, tmp_path)
    canvas = tab.locator("#sorted canvas")
    canvas.scroll_into_view_if_needed()
    seen = canvas.evaluate(
        """canvas => {
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const columns = new Set();
            for (let at = 0; at < data.length; at += 4) {
                const [red, green, blue, opaque] = data.slice(at, at + 4);
                if (red > 150 && green < 100 && blue < 60 && opaque > 200) columns.add((at / 4) % width);
            }
            return [Math.min(...columns), Math.max(...columns), width];
        }"""
    )
    # Two of four steps: the line ends in the middle of what the axis shows, not before.
    over = tab.locator("#sorted .u-over").bounding_box()
    assert over is not None
    assert 0.47 * over["width"] < seen[1] - seen[0] < 0.56 * over["width"]


PIXELS = """number => {
    const canvas = document.querySelectorAll("dialog canvas")[number];
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return Array.from(data).filter((_, place) => place % 4 === 0);
}"""


def test_charts_tell_values_and_zoom(tab: Page, tmp_path: Path) -> None:
    run = made_run(20)
    opened(tab, run, tmp_path)
    known = [image for image in run.snapshot.images if image.witness is not None]
    first = min(known, key=lambda image: (image.upper, -image.lower)).index
    chart = tab.locator("#sorted")
    chart.scroll_into_view_if_needed()
    chart.locator(".u-over").hover(position={"x": 2, "y": 60})
    expect(chart.locator(".bubble")).to_contain_text("lower bound:")
    expect(chart.locator(".bubble")).to_contain_text(f"input {first} (1 of 20)")
    chart.locator(".plot").focus()
    tab.keyboard.press("ArrowRight")
    expect(chart.locator(".bubble")).to_contain_text("(2 of 20)")
    before = chart.locator("canvas").screenshot()
    chart.get_by_role("button", name="zoom in").click()
    assert chart.locator("canvas").screenshot() != before
    chart.get_by_text("values", exact=True).click()
    chart.get_by_role("button", name="show all 20 rows").click()
    expect(chart.locator("details tbody tr")).to_have_count(20)


def test_a_step_tells_the_value_that_holds_under_the_pointer(tab: Page, tmp_path: Path) -> None:
    run = made_run(20)
    opened(tab, run, tmp_path)
    chart = tab.locator("#time")
    chart.scroll_into_view_if_needed()
    over = chart.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    # Moments are 0, 1, ..., 5 and 6 seconds; at 3.9 what was known at 3 still holds.
    over.hover(position={"x": 3.9 / 6 * box["width"], "y": 60})
    expect(chart.locator(".bubble")).to_contain_text("seconds of work: 3")
    expect(chart.locator(".bubble")).to_contain_text("lower bound: 0.75")
    # The last image of a ranking is as wide as the others, and a click on it opens it.
    ranking = tab.locator("#sorted .u-over")
    ranking.scroll_into_view_if_needed()
    box = ranking.bounding_box()
    assert box is not None
    ranking.click(position={"x": 19.6 / 20 * box["width"], "y": 60})
    last = next(block for block in evaluation_page(run).blocks if block["id"] == "sorted")["pick"][0][-1]
    expect(tab.get_by_role("dialog").get_by_role("heading", name=f"image {last} file-{last}.png")).to_be_visible()


def test_maps_tell_their_values_to_keys(tab: Page, tmp_path: Path) -> None:
    run = made_run(6)
    opened(tab, run, tmp_path)
    where = next(block for block in evaluation_page(run).blocks if block["id"] == "where")["values"]
    heat = tab.locator("#where")
    heat.locator("canvas").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    expect(heat.locator("output")).to_have_text(f"row 1, column 1: {where[1][1]} inputs")
    heat.locator("canvas").blur()
    expect(heat.locator("output")).to_contain_text("0 to")


def test_keys_go_through_images_after_a_click_too(tab: Page, tmp_path: Path) -> None:
    opened(tab, made_run(12), tmp_path)
    tab.get_by_role("button", name="4 file-4.png").click()
    view = tab.get_by_role("dialog")
    view.get_by_role("button", name="next image").click()
    expect(view.get_by_role("heading", name="image 5")).to_be_visible()
    for _ in range(3):  # faster than views are made
        tab.keyboard.press("ArrowRight")
    expect(view.get_by_role("heading", name="image 8")).to_be_visible()
    tab.keyboard.press("ArrowLeft")
    expect(view.get_by_role("heading", name="image 7")).to_be_visible()


def test_a_table_shows_the_whole_row(tab: Page, tmp_path: Path) -> None:
    run = made_run(5, shape=(6,))
    opened(tab, run, tmp_path)
    tab.get_by_role("button", name="4 file-4.png").click()
    expect(tab.get_by_role("dialog").get_by_text("The whole row (6 columns)")).to_be_visible()  # a short one is open
    rows = tab.get_by_role("dialog").locator("details tbody tr")
    expect(rows).to_have_count(6)
    assert run.inputs is not None
    image, witness = run.inputs.images[4], run.snapshot.images[4].witness
    assert witness is not None
    for row, cells in enumerate(rows.all()):
        name, value, changed = cells.locator("td").all_inner_texts()
        assert name == f"value {row}"
        assert float(value) == pytest.approx(float(image[row]), abs=1e-5)
        assert (changed != "") == (row in witness.positions)


def test_downloads_are_the_exported_files(tab: Page, tmp_path: Path) -> None:
    run = made_run(5)
    opened(tab, run, tmp_path)
    assert run.inputs is not None
    writes = export_writes(tmp_path, run.snapshot, run.inputs.images, run.inputs.indices)
    for name in ("csv", "json"):
        with tab.expect_download() as found:
            tab.locator(".saves").get_by_role("button", name=name).click()
        got = Path(found.value.path()).read_text(encoding="utf-8")
        file = tmp_path / ("bounds.csv" if name == "csv" else "result.json")
        writes[file](file)
        expected = file.read_text(encoding="utf-8")
        if name == "csv":
            assert plain(got) == plain(expected)
        else:
            assert json.loads(got) == json.loads(expected)


def plain(text: str) -> list[dict[str, object]]:
    """Rows of a CSV file; 0.5 and 0.50 are the same."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [{name: float(cell) if name == "seconds" else cell for name, cell in row.items()} for row in rows]


def test_hostile_names_do_not_run(tab: Page, tmp_path: Path) -> None:
    run = made_run(8, hostile=True)
    names = run.snapshot.config["names"]
    names["inputs"]["5"] = "cod\u202egnp.exe"  # a sign that turns what follows: it would read as codexe.png
    opened(tab, run, tmp_path)
    expect(tab.get_by_role("button", name="5 cod\\u202egnp.exe")).to_be_visible()
    tab.get_by_role("button", name="4 file-4.png").click()
    expect(tab.get_by_role("dialog").locator("figcaption").first).to_have_text(f"original: {HOSTILE}")
    assert tab.locator("img").count() == 0
    assert tab.title().startswith("net.onnx on script>")  # the last part of a path, as text
    tab.keyboard.press("Escape")
    expect(tab.locator("#asked dd", has_text="owned").first).to_have_text(HOSTILE)


def test_a_page_of_one_image_shows_it_at_once(tab: Page, tmp_path: Path) -> None:
    run = made_run(2, shape=(3, 4, 4))
    image = run.snapshot.images[1]
    assert image.witness is not None
    assert run.inputs is not None
    opened(tab, replace(run, snapshot=replace(run.snapshot, images=(image,))), tmp_path, ".alone figure")
    expect(tab.locator(".alone figcaption")).to_have_text(
        ["original: one", "changed: two", "difference (how far red, green and blue moved)"]
    )
    # Of a coloured picture each channel is shown by itself: changes that point in two ways do not cancel.
    moved = tab.evaluate(
        """() => { const canvas = document.querySelectorAll(".alone canvas")[2];
        return Array.from(canvas.getContext("2d").getImageData(0, 0, 4, 4).data) }"""
    )
    changed = {int(position) for position in image.witness.positions}
    lit = {channel * 16 + pixel for pixel in range(16) for channel in range(3) if moved[4 * pixel + channel]}
    assert lit == changed


def test_paper_has_every_column_of_a_matrix(tab: Page, tmp_path: Path) -> None:
    opened(tab, made_run(12), tmp_path)
    tab.emulate_media(media="print")
    tab.set_viewport_size({"width": 700, "height": 900})
    assert tab.evaluate("document.querySelector('.pairs').getBoundingClientRect().right") <= 700
    expect(tab.locator(".hint").first).to_be_hidden()


@pytest.mark.slow
def test_ten_thousand_images_fit_into_a_page(tab: Page, tmp_path: Path) -> None:
    opened(tab, made_run(10_000, shape=(1, 14, 14)), tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    tab.get_by_role("button", name="last page").click()
    assert numbers(tab, 2)[-1] == "9999 file-9999.png"
    tab.set_viewport_size({"width": 390, "height": 800})  # a phone: nothing but tables scrolls sideways
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
