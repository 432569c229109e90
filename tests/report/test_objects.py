"""Pages, figures, tables and notebooks of results that have no run folder."""

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import l0tre
from l0tre.domain import make_domain
from l0tre.errors import DataError
from l0tre.evaluation.results import ImageBounds, Snapshot, make_witness
from l0tre.report.attack import attack_page, curves
from l0tre.report.blocks import Document
from l0tre.report.comparison import runs_page, shared_inputs
from l0tre.report.objects import page_of
from l0tre.report.peers import PeerEntry, peers_page
from l0tre.report.verdict import verdict_page
from l0tre.store import Inputs
from tests.report.making import made_run
from tests.tools import NO_ATTACK


@pytest.fixture(scope="module")
def attacked() -> tuple[l0tre.Attacked, torch.Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    images = torch.rand(5, 1, 4, 4)
    return l0tre.attack_details(network, images, budget=200), images


def block(document: Document, name: str) -> dict[str, Any]:
    return next(found for found in document.blocks if found["id"] == name)


def test_an_attack_has_a_page(attacked: tuple[l0tre.Attacked, torch.Tensor], tmp_path: Path) -> None:
    result, images = attacked
    document = page_of(result, images)
    count = int(result.changed.sum())
    assert count > 0
    assert document.blocks[0]["text"].startswith(f"Changing {result.mean:.3f} pixels on average")
    touched = (result.adversarial != images).any(1).sum(0)
    assert block(document, "where")["values"] == touched.tolist()
    assert document.gallery is not None
    for row, entry in enumerate(document.gallery.result["images"]):
        changed = images[row].flatten().clone()
        if entry["witness"]:
            changed[entry["witness"]["positions"]] = torch.tensor(entry["witness"]["values"])
        assert torch.allclose(changed, result.adversarial[row].flatten(), atol=1e-6)
    assert result.report(tmp_path / "a.html", images.numpy()).read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(DataError, match="inputs of shape"):
        result.report(tmp_path / "b.html", images[:2])
    assert len(result.to_dataframe()) == 5


def test_what_is_the_fewest_possible_was_changed() -> None:
    torch.manual_seed(0)
    network, images = nn.Linear(4, 2), torch.rand(6, 4)
    decisions = network(images).argmax(1)
    labels = torch.where(torch.arange(6) < 2, 1 - decisions, decisions)  # two are misclassified as they are
    result = l0tre.attack_details(network, images, labels, budget=200)
    document = page_of(replace(result, optimal=torch.ones(6, dtype=torch.bool)), images)
    tiles = {name: value for name, value, _ in block(document, "tiles")["tiles"]}
    assert tiles["as they are"] == "2"
    assert tiles["fewest possible"] == str(int((result.distance > 0).sum()))
    assert document.gallery is not None
    assert [entry["optimal"] for entry in document.gallery.result["images"]][:2] == ["", ""]


def test_shares_of_images_changed_count_the_distances() -> None:
    drawn = curves({"a": [1, 1, 3], "b": [2]}, 4, "pixel")["variants"][0]
    assert drawn["x"] == [0, 1, 2, 3, 4]
    assert [one["values"] for one in drawn["series"]] == [[0, 0.5, 0.5, 0.75, 0.75], [0, 0, 0.25, 0.25, 0.25]]


def test_a_verdict_claims_no_more_than_was_asked() -> None:
    network = nn.Linear(4, 2)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([1.0, 0.0]))
    verdict = l0tre.verify(network, torch.rand(4), radius=2)
    document = page_of(verdict, torch.rand(1, 4))
    assert document.blocks[0]["text"].startswith("Safe: no change of at most 2 features alters the decision")
    assert not any("3 features" in str(found) for found in document.blocks)
    assert verdict.to_dataframe()["answer"].tolist() == ["safe"]
    assert document.gallery is not None  # the input is shown although nobody told its label
    without = document.gallery.extras[0]
    assert without["without"] == "No changed input was kept."  # the bound that always holds may be all that is known


def test_a_verdict_does_not_hide_an_upper_bound_beyond_the_question() -> None:
    network = nn.Linear(4, 2)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0] * 4, [1.0] * 4]))
        network.bias.copy_(torch.tensor([1.5, 0.0]))
    verdict = l0tre.verify(network, torch.zeros(4), radius=1, attack_queries=100)
    assert (verdict.answer, verdict.upper, verdict.witness) == ("safe", 2, None)
    document = verdict_page(verdict, torch.zeros(1, 4), groups=4, certificate="one.l0cert")
    tiles = {name: (value, note) for name, value, note in block(document, "tiles")["tiles"]}
    found = "an input with 2 changed features was found, and not kept: the question is about 1"
    assert tiles["upper bound"] == ("2", found)
    assert document.gallery is not None
    assert document.gallery.result["images"][0]["upper"] == 2
    assert document.gallery.extras[0]["certificate"] == {"certificate": "one.l0cert"}
    nothing = verdict_page(replace(verdict, upper=5), torch.zeros(1, 4), groups=4)
    assert block(nothing, "tiles")["tiles"][2] == [
        "upper bound",
        "none",
        "no change that alters the decision was found",
    ]


def test_networks_side_by_side() -> None:
    robust, weak = nn.Linear(4, 2), nn.Linear(4, 2)
    with torch.no_grad():
        for network, scale in ((robust, 0.1), (weak, 3.0)):
            network.weight.copy_(scale * torch.tensor([[-1.0] * 4, [1.0] * 4]))
            network.bias.copy_(torch.tensor([1.0, 0.0]))
    runs = {
        name: l0tre.evaluate(network, torch.zeros(2, 4), max_t=2, **NO_ATTACK)
        for name, network in (("robust", robust), ("weak", weak))
    }
    document = runs_page(runs)
    assert document.blocks[0]["text"] == "robust is more robust."
    assert [row[0] for row in block(document, "figures")["rows"]] == ["robust", "weak"]
    again = runs_page({"robust": runs["robust"], "later": runs["robust"]}).blocks
    assert again[0]["text"].startswith("These runs are about one network and the same inputs")
    on_grid = {
        name: l0tre.evaluate(network, torch.zeros(2, 4), max_t=2, guarantee="grid", **NO_ATTACK)
        for name, network in (("robust", robust), ("weak", weak))
    }
    document = runs_page(on_grid)
    assert document.blocks[0]["text"] == "robust is more robust on the grid."
    assert document.gallery is not None
    assert {row["best"] for row in document.gallery.result["images"]} == {"robust (on the grid)"}
    other = l0tre.evaluate(weak, torch.zeros(1, 4), max_t=1, **NO_ATTACK)
    assert "different inputs" in runs_page({"robust": runs["robust"], "other": other}).blocks[0]["text"]
    comparison = l0tre.compare({"robust": robust, "weak": weak}, torch.zeros(2, 4), max_t=1, **NO_ATTACK)
    assert block(page_of(comparison), "standings")["rows"][0][0] == "robust"
    assert comparison.to_dataframe()["network"].tolist() == ["robust", "weak"]
    assert comparison.plot().axes[0].get_title() == "Mean safe radius"


def test_networks_side_by_side_name_the_more_robust_one_where_bounds_part() -> None:
    def bounds(index: int, lower: int, upper: int | None, guarantee: str = "certified") -> ImageBounds:
        image = torch.zeros(1, 6)
        witness = upper and make_witness(image, image + 1, tuple(range(upper)), 1, -1.0, 1)
        return ImageBounds(index, 0, 6, lower, upper or 7, guarantee, witness or None)  # type: ignore[arg-type]

    def run(*images: ImageBounds) -> Snapshot:
        return Snapshot(images, (), 1.0, 1, "pixel", config={"names": {}, "settings": {"max_t": 1}})

    first = run(bounds(0, 2, 4), bounds(1, 1, 3), bounds(2, 3, None), bounds(3, 0, 9, "sampled"), bounds(4, 1, 2))
    second = run(bounds(0, 1, 2), bounds(1, 1, 2), bounds(2, 1, 2), bounds(3, 0, 1))
    document = runs_page({"a": first, "b": second})  # the last image has a radius in one network only
    assert document.gallery is None  # they are about different images
    second = run(*second.images, bounds(4, 2, None))
    document = runs_page({"a": first, "b": second})
    assert document.gallery is not None
    rows = document.gallery.result["images"]
    assert [row["best"] for row in rows] == ["a", "", "a", "", "b"]
    assert rows[2]["upper"] == [None, 2]
    assert rows[3]["lower"] == [None, 0]  # a sample claims none


def test_attacks_side_by_side() -> None:
    images = torch.zeros(2, 1, 2, 2)
    one, two = images.clone(), images.clone()
    one[:, 0, 0, 0] = 1.0
    two[0, 0] = 1.0
    labels = torch.ones(2, dtype=torch.int64)
    entries = [
        PeerEntry("ours", {"found": 2}, [1, 1], one, labels),
        PeerEntry("theirs", {"found": 1}, [4, None], two, labels),
    ]
    document = peers_page(
        entries, images, [0, 0], [7, 9], unit="pixel", budget=100, model="m", data="d", by_budget={"ours": [(10, 2.0)]}
    )
    assert document.blocks[0]["text"].startswith("ours needs fewest changes: 1.000 pixels on average over the 1 of 2")
    assert document.gallery is not None
    assert [row["changed"] for row in document.gallery.result["images"]] == [[1, 4], [1, None]]
    assert [row["best"] for row in document.gallery.result["images"]] == ["ours", "ours"]
    shown = [[one["by"] for one in extra["witnesses"]] for extra in document.gallery.extras]
    assert shown == [["ours", "theirs"], ["ours"]]  # the input of every attack that found one


def test_attacks_that_need_as_few_changes_are_all_named() -> None:
    images = torch.zeros(1, 1, 2, 2)
    changed, label = torch.zeros(1, 1, 2, 2), torch.ones(1, dtype=torch.int64)
    changed[0, 0, 0, 0] = 1.0
    entries = [PeerEntry(name, {"found": 1, "error": ""}, [1], changed, label) for name in ("a", "b")]
    document = peers_page(entries, images, [0], [0], unit="pixel", budget=9, model="m", data="d")
    assert document.blocks[0]["text"].startswith("a and b need fewest changes: 1.000 pixels")
    assert document.gallery is not None
    assert document.gallery.result["images"][0]["best"] == "a, b"
    assert [name for name, _ in block(document, "attacks")["heads"]] == ["attack", "found"]  # nothing went wrong


def test_an_attack_towards_a_class_shows_labels_and_target() -> None:
    torch.manual_seed(0)
    network, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(4, 1, 4, 4)
    with torch.no_grad():
        own = network(images).argmax(1).tolist()
    target = next(number for number in range(3) if number not in own)
    result = l0tre.attack_details(network, images, [target] * 4, targeted=True, budget=300)
    assert result.changed.any()
    document = attack_page(result, images, labels=own)
    assert f"alters the decision to {target} for" in document.blocks[0]["text"]
    assert document.gallery is not None
    assert [row["label"] for row in document.gallery.result["images"]] == own
    assert ["target", "target", "class"] in block(document, "images")["columns"]
    pairs = block(document, "becomes")
    assert sum(map(sum, pairs["counts"])) == int(result.changed.sum())
    alone = page_of(result, images)  # without labels none is made up
    assert alone.gallery is not None
    assert {row["label"] for row in alone.gallery.result["images"]} == {None}


def test_networks_side_by_side_show_what_each_one_is_changed_by() -> None:
    images = torch.zeros(2, 1, 2, 2)
    run = Inputs(images, None, (0, 1), make_domain((1, 2, 2)))
    other = Inputs(images.clone(), None, (0, 1), make_domain((1, 2, 2)))
    assert shared_inputs([run, other]) is run
    assert shared_inputs([run, Inputs(images + 1, None, (0, 1), run.domain)]) is None
    assert shared_inputs([run, None]) is None
    witness = make_witness(images[0], images[0] + 1, (0, 1, 2, 3), 1, -1.0, 1)
    settings = {"names": {}, "settings": {"max_t": 1}}
    alone = ImageBounds(1, 0, 4, 1, 5, "certified")
    runs = {
        name: Snapshot((ImageBounds(0, 0, 4, 1, 4, "certified", found), alone), (), 1.0, 1, "pixel", config=settings)
        for name, found in (("a", witness), ("b", None))
    }
    document = runs_page(runs, run)
    assert document.gallery is not None
    first, second = document.gallery.extras
    assert [(one["by"], one["before"], one["values"]) for one in first["witnesses"]] == [("a", [0.0] * 4, [1.0] * 4)]
    assert second["witnesses"] == []
    assert document.gallery.sheets


def test_a_notebook_shows_the_page_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    result = made_run(3, hostile=True).snapshot
    shown = result._repr_html_()
    assert '<iframe srcdoc="' in shown
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    source = shown.split('<iframe srcdoc="')[1].split('"')[0]
    assert html.unescape(source).startswith("<!DOCTYPE html>")
    assert "<script>document" not in shown
    monkeypatch.setenv("L0TRE_NOTEBOOK", "plain")
    assert "<iframe" not in result._repr_html_()


def test_charts_become_a_figure() -> None:
    figure = made_run(6).snapshot.plot()
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == [
        "Mean bounds over time",
        "Inputs by upper bound",
        "Share of inputs against pixels that change",
        "Histogram of safe radii",
    ]
    ranking = figure.axes[1]
    assert list(np.asarray(ranking.lines[0].get_xdata())) == [
        0.5,
        1.5,
        2.5,
        3.5,
        4.5,
        5.5,
        6.5,
    ]


def test_a_saliency_map_has_a_page() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    image = torch.rand(1, 3, 3)
    found = l0tre.saliency_map(network, image)
    document = page_of(found, image[None])
    picture = torch.tensor(block(document, "map-0")["values"])
    assert torch.allclose(picture, found.attribution()[0].clamp_min(0), rtol=1e-3)
    row, column = divmod(int(found.groups[found.strongest(1)[0]]), 3)
    assert f"row {row}, column {column} alone moves the score of class" in document.blocks[0]["text"]
    assert block(document, "strongest-0")["rows"][0][0] == f"row {row}, column {column}"
    assert np.asarray(found.plot().axes[0].images[0].get_array()).shape == (3, 3)
    frame = found.to_dataframe()
    assert frame["drop"].idxmax() == int(found.groups[found.strongest(1)[0]])


def test_a_suite_has_a_page() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, 3))
    suite = l0tre.generate_tests(network, torch.rand(2, 1, 3, 3), max_l0=3)
    document = page_of(suite)
    assert document.blocks[0]["text"].startswith(
        f"{len(suite)} tests and 2 seeds cover {suite.coverage:.2%} of 6 neurons"
    )
    assert block(document, "layers")["total"][1] == 6
    if len(suite):
        assert document.gallery is not None
        rows = document.gallery.result["images"]
        assert [len(row["witness"]["positions"]) for row in rows] == suite.sizes.tolist()
    frame = suite.to_dataframe()
    assert frame.index.name == "test"
    assert frame["l0"].tolist() == suite.sizes.tolist()
    assert [row["test"] for row in suite.manifest()] == frame.index.tolist()
