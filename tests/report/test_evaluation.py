"""What the page of a run says, and that the file holds it and nothing that could run."""

import base64
import hashlib
import json
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import StoreError
from l0tre.names import Names
from l0tre.report import PageSource, evaluation_page, page_html, read_run, runs_page, write_report
from l0tre.report.asked import question_facts
from l0tre.report.markdown import page_markdown
from l0tre.store import read_snapshot
from tests.report.making import HOSTILE, made_run


class Weighted(nn.Module):
    """Two classes: 9 times the first value against the sum of all others; integers make the radii plain."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return torch.stack([9 * x[:, 0], x[:, 1:].sum(1)], 1)


class Constant(nn.Module):
    """Never changes its decision."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.flatten(1).sum(1) * 0 + 1, x.flatten(1).sum(1) * 0], 1)


class Elements(HTMLParser):
    """Elements, with their attributes and texts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str], str]] = []
        self.inside = False
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}, ""))

        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = tag == ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def all(self, tag: str) -> list[tuple[dict[str, str], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def frozen_first(shape: tuple[int, ...]) -> l0tre.Domain:
    mask = torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[0] = False
    return l0tre.make_domain(shape, mask=mask)


def evaluated(folder: Path, firsts: list[float], max_t: int) -> dict[str, Any]:
    """The blocks of the page of a run on vectors whose distances are known, by name."""
    images = torch.zeros(len(firsts), 7)
    images[:, 0] = torch.tensor(firsts)
    l0tre.evaluate(Weighted(), images, max_t=max_t, domain=frozen_first((7,)), out=folder)
    return blocks(folder)


def _firsts(chart: dict[str, Any]) -> list[float]:
    return [one["values"][0] for one in chart["variants"][0]["series"]]


def blocks(folder: Path) -> dict[str, Any]:
    return {block["id"]: block for block in evaluation_page(read_run(folder)).blocks}


def test_the_answer_has_the_bounds_that_files_have(tmp_path: Path) -> None:
    # 9 * 0.3 = 2.7 needs three of the others at 1; 9 * 0.1 = 0.9 needs one.
    page = evaluated(tmp_path / "run", [0.3, 0.1], 3)
    text = page["answer"]["text"]
    assert text.startswith("On average any 1.000 features may change without altering the decision (proved for changes")
    assert "while 2.000 well-chosen ones suffice to alter it (shown by stored inputs): [1.000, 2.000] over 2" in text
    assert text.endswith("exact on the grid for every input.")
    tiles = {name: (value, note) for name, value, note in page["tiles"]["tiles"]}
    assert tiles["lower bound, mean"][0] == "1.000"
    assert tiles["upper bound, mean"][0] == "2.000"
    # Between grid points there may be smaller ones.
    smallest = ("2 of 2", "100.0% of the inputs: no smaller adversarial input is on the grid")
    assert tiles["known exactly, on the grid"] == smallest
    assert page["guarantee"]["texts"][-1][1].startswith("U = L + 1: no change of L features to grid values alters")
    assert "under changes to grid values" in page["shares"]["note"]
    assert "for changes to grid values" in page["sorted"]["note"]
    assert [page["time"]["variants"][0]["x"][0], *_firsts(page["time"])] == [0, 0, 7]  # before anything was known
    assert "the values 0, 0.25, 0.5, 0.75, 1 from the smallest to the largest" in page["guarantee"]["texts"][0][1]
    assert page["classes"]["rows"] == [["0", 2, 1.0, 0, 2.0, 1, 1.0, 0]]
    assert page["becomes"]["counts"] == [[0, 2], [0, 0]]
    assert sum(row[1] for row in page["where"]["rows"]) == 3 + 1
    assert ["settings.epsilon", "0.25"] in page["settings"]["rows"]
    asked = dict(page["asked"]["rows"])
    assert asked["searched"] == "all sets of up to 3 features"
    assert asked["may change"] == "6 features, from 0 to 1"
    assert asked["guarantee"].startswith("grid; why not certified: ")
    assert f"l0tre {l0tre.__version__}" in asked["versions"]


def test_images_without_a_witness_are_kept_out_of_the_upper_bound(tmp_path: Path) -> None:
    page = evaluated(tmp_path / "run", [1.0, 0.1], 1)
    text = page["answer"]["text"]
    end = (
        "while 1 well-chosen one suffices to alter it (shown by a stored input) where such a change is known, for 1 of"
    )
    assert text.endswith(f"{end} them.")
    tiles = {name: (value, note) for name, value, note in page["tiles"]["tiles"]}
    assert tiles["upper bound, mean"] == ("1.000", "median 1, of 1 input with a witness")
    assert page["sorted"]["note"].endswith("1 input has no witness: it stands at the right, without an upper bound.")
    assert tiles["upper bound, all inputs"][0] == f"{(1 + 7) / 2:.3f}"
    assert any("each counts as 7" in note for note in page["answer"]["notes"])


def test_nothing_is_claimed_without_any_witness(tmp_path: Path) -> None:
    l0tre.evaluate(Constant(), torch.rand(3, 4), max_t=2, out=tmp_path / "open")
    page = blocks(tmp_path / "open")
    assert "no input with another decision is known, so there is no upper bound" in page["answer"]["text"]
    assert "becomes" not in page
    assert ["known exactly, on the grid", "0 of 3", "of no input yet"] in page["tiles"]["tiles"]
    l0tre.evaluate(Constant(), torch.rand(2, 2), max_t=2, out=tmp_path / "closed")
    text = blocks(tmp_path / "closed")["answer"]["text"]
    assert text.startswith("No change of any number of features alters the decision of any of 2 inputs")


def test_a_sample_claims_no_lower_bound() -> None:
    run = made_run(6)
    images = tuple(replace(image, lower=0, guarantee="sampled") for image in run.snapshot.images)
    sampled = replace(run, snapshot=replace(run.snapshot, images=images))
    page = {block["id"]: block for block in evaluation_page(sampled, pictures="none").blocks}
    assert "suffice to alter the decision" in page["answer"]["text"]
    assert page["answer"]["text"].endswith("; random samples claim no lower bound.")
    assert page["tiles"]["tiles"][0] == ["lower bound, mean", "none", "claimed by no proof"]
    assert "estimate" not in [name for name, _, _ in page["tiles"]["tiles"]]
    assert "complete" not in page["answer"]["notes"][0]
    assert "radii" not in page
    for name in ("time", "sorted", "shares"):
        assert [one["role"] for one in page[name]["variants"][0]["series"]] == ["upper"], name
    assert not any("lower" in name for name, _ in page["classes"]["heads"])
    assert {len(row) for row in page["classes"]["rows"]} == {len(page["classes"]["heads"])}
    assert "lower" not in [path for path, _, _ in page["images"]["columns"]]
    assert [row["lower"] for row in runs_page({"a": run.snapshot, "b": sampled.snapshot}).gallery.result["images"]][  # type: ignore[union-attr]
        1
    ] == [1, None]


def test_a_sample_with_one_change_is_about_one_image() -> None:
    run = made_run(3)
    images = tuple(replace(image, lower=0, guarantee="sampled") for image in run.snapshot.images[:2])
    sampled = replace(run.snapshot, images=images, excluded=())
    page = {block["id"]: block for block in evaluation_page(PageSource(sampled), pictures="none").blocks}
    start = "3 pixels suffice to alter the decision (shown by a stored input) of 1 of 2 inputs, the only one"
    assert page["answer"]["text"].startswith(start)
    assert page["sorted"]["note"] == "1 input has no witness: it stands at the right, without an upper bound."


def test_rules_of_columns_are_told() -> None:
    domain = l0tre.restrict(
        l0tre.make_domain((4,), low=0.0, high=100.0, mask=torch.tensor([True, True, True, False])),
        listed={1: torch.tensor([0.0, 1.0, 2.0])},
        whole=[0],
        upwards=[0],
    )
    names = Names(features=("age", "job", "income", "sex"))
    facts = dict(question_facts({}, "people", 1, replace(domain, names=names)))
    assert facts["never change"] == "sex"
    assert facts["listed values only"] == "job"
    assert facts["whole numbers only"] == facts["may only rise"] == "age"
    assert "may only fall" not in facts


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    snapshots = l0tre.anytime(Constant(), torch.rand(2, 5), max_t=3, out=tmp_path / "run")
    next(snapshots)
    assert "The search has come to level t = 1 of 3" in blocks(tmp_path / "run")["answer"]["notes"][0]
    list(snapshots)
    assert "complete up to 3 features changed together" in blocks(tmp_path / "run")["answer"]["notes"][0]


def test_details_are_those_of_the_run(tmp_path: Path) -> None:
    images = torch.zeros(2, 7)
    images[:, 0] = torch.tensor([0.3, 0.1])
    l0tre.evaluate(Weighted(), images, max_t=3, domain=frozen_first((7,)), out=tmp_path / "run")
    snapshot = read_snapshot(tmp_path / "run")
    gallery = evaluation_page(read_run(tmp_path / "run")).gallery
    assert gallery is not None
    assert gallery.result == snapshot.to_dict()
    for image, extra in zip(snapshot.images, gallery.extras, strict=True):
        assert image.witness is not None
        assert extra["before"] == [0.0] * image.upper
        assert extra["timeline"][0][1:] == [0, 7]
        assert extra["timeline"][-1][1:] == [image.lower, image.upper]
        first = float(images[image.index, 0]) * 9
        assert extra["scores"] == [[0, pytest.approx(first), pytest.approx(first)], [1, 0.0, float(image.upper)]]
    # Scores of a witness that another one replaced are not shown.
    later = replace(snapshot.images[0], witness=replace(snapshot.images[0].witness, margin=-9.0))  # type: ignore[type-var]
    found = l0tre.store.read_scores(tmp_path / "run", replace(snapshot, images=(later,)))
    assert found[0][1] is None


def test_the_file_needs_nothing_and_runs_nothing_else() -> None:
    source = page_html(evaluation_page(made_run(5, hostile=True)))
    page = Elements(source)
    policy = page.all("meta")[1][0]["content"]
    scripts = [text for attributes, text in page.all("script") if "type" not in attributes]
    (style,) = [text for _, text in page.all("style")]
    for kind, text in (("script-src", scripts[0]), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert len(scripts) == 1
    assert "default-src 'none'" in policy
    assert not [tag for tag in ("link", "iframe", "img", "object", "embed", "form") if page.all(tag)]
    assert not [attributes for _, attributes, _ in page.found if {"src", "href"} & set(attributes)]
    assert HOSTILE not in source
    data = {attributes.get("id"): text for attributes, text in page.all("script")}
    texts = json.loads(data["page-data"])
    (asked,) = [block["rows"] for block in texts["blocks"] if block["id"] == "asked"]
    assert ["data", HOSTILE] in asked
    packed = json.loads(zlib.decompress(base64.b64decode(data["page-packed"])))
    assert packed["result"]["global"]["images"] == 5


def test_markdown_tells_the_same() -> None:
    document = evaluation_page(made_run(4, hostile=True))
    text = page_markdown(document)
    assert document.blocks[0]["text"].split(" (")[0] in text
    assert "| 2 file-2.png | two | 2 | 3 | exact | zero |" in text
    assert "<script>" not in text
    assert "\\<script\\>" in text
    run = made_run(1)
    run.snapshot.config["names"]["inputs"]["0"] = "cod\u202egnp.exe"
    assert "cod\\\\u202egnp.exe" in page_markdown(evaluation_page(run))


def test_errors_for_the_user(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a run folder"):
        write_report(tmp_path)
