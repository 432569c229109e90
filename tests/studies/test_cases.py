"""The case studies: the paper's settings, the tables, the answers."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from l0tre.defaults import ATTACK_QUERIES
from l0tre.errors import ConfigError
from l0tre.evaluation.results import Excluded, ImageBounds, Snapshot
from l0tre.evaluation.standings import Comparison, compare_snapshots
from l0tre.store import read_snapshot
from l0tre.studies.case_four import OBSERVATIONS, answer_observation, plan_case_four, summarise_case_four
from l0tre.studies.case_one import MEASURES, plan_case_one, summarise_case_one
from l0tre.studies.runs import read_run, read_runs


def test_the_paper_s_settings_are_the_default() -> None:
    assert [(p.folder, p.kind, p.max_t, p.images, p.epsilon) for p in plan_case_one()] == [
        ("sdnn-paper", "paper", 3, 5300, 0.25),
        ("sdnn-grid", "grid", 3, 5300, 0.25),
        ("sdnn-certified", "certified", 3, 5300, 0.25),
        ("dnn-0-paper", "paper", 2, 2400, 0.25),
        ("dnn-0-grid", "grid", 2, 2400, 0.25),
        ("dnn-0-certified", "certified", 2, 2400, 0.25),
    ]
    assert [(p.folder, p.kind, p.max_t, p.images, p.epsilon) for p in plan_case_four()] == [
        (f"dnn-{number}-grid", "grid", 2, 1000, 0.3) for number in range(1, 8)
    ]
    (plan,) = plan_case_one(["sdnn"], ["paper"], images=5, max_t=1)
    assert (plan.folder, plan.images, plan.max_t) == ("sdnn-paper", 5, 1)
    both = plan_case_four(["dnn-1", "dnn-2"], ["paper", "certified"])
    assert [p.folder for p in both] == ["dnn-1-paper", "dnn-2-paper", "dnn-1-certified", "dnn-2-certified"]


@pytest.mark.parametrize("plan", [plan_case_one, plan_case_four])
def test_unknown_kinds_are_refused(plan: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"'both' is unknown: give one of paper, grid, certified"):
        plan(["sdnn"], ["grid", "both"])


def radii(**safe: tuple[int, int]) -> Comparison:
    """Networks with one image each, whose safe radius lies between two numbers."""
    return compare_snapshots(
        {
            name.replace("_", "-"): Snapshot(
                (ImageBounds(0, 0, 9, low, high + 1, "grid"),),
                (Excluded(1, 0, 1),),
                1.0,
                2,
                "pixel",
                True,
                config={"settings": {"max_t": 2}},
            )
            for name, (low, high) in safe.items()
        }
    )


@pytest.mark.parametrize(
    ("three", "two", "answer"),
    [
        ((2, 2), (1, 1), "holds"),
        ((2, 5), (0, 1), "holds"),
        ((2, 5), (0, 2), "open"),
        ((1, 3), (2, 2), "open"),
        ((1, 1), (1, 1), "does not hold"),
        ((0, 1), (2, 5), "does not hold"),
    ],
)
def test_an_observation_is_answered_by_the_intervals(three: tuple[int, int], two: tuple[int, int], answer: str) -> None:
    (normalisation,) = (o for o in OBSERVATIONS if o.pairs == (("dnn-3", "dnn-2"),))
    found = answer_observation(normalisation, radii(dnn_2=two, dnn_3=three))
    assert found["answer"] == answer
    assert ("settle" in found["because"]) == (answer == "open")
    assert "grid" in found["because"] or answer == "open"
    assert found["estimates"] == ("for it" if sum(three) > sum(two) else "against it")


def test_depth_is_about_every_shallower_network() -> None:
    depth = next(o for o in OBSERVATIONS if o.topic == "depth")
    others = {f"dnn_{number}": (3, 3) for number in range(1, 7)}
    assert answer_observation(depth, radii(**others, dnn_7=(1, 1)))["answer"] == "holds"
    assert answer_observation(depth, radii(**{**others, "dnn_4": (1, 3)}, dnn_7=(1, 1)))["answer"] == "open"
    worse = answer_observation(depth, radii(**{**others, "dnn_4": (0, 0), "dnn_5": (1, 3)}, dnn_7=(1, 1)))
    assert worse["answer"] == "does not hold"
    assert "dnn-4 - dnn-7: -1.000 to -1.000" in worse["because"]
    assert "dnn-5" not in worse["because"]
    assert worse["estimates"] == "against it in 1 of 6 pairs"
    half = answer_observation(depth, radii(**{**others, "dnn_4": (1, 3), "dnn_5": (0, 2)}, dnn_7=(1, 1)))
    assert half["because"].endswith("to settle it: a larger max_t than 2 for dnn-4 and dnn-5")  # dnn-7 is known
    missing = answer_observation(depth, radii(dnn_1=(1, 1), dnn_7=(1, 1)))
    assert missing["answer"] == "not evaluated"
    assert "dnn-2" in missing["because"]


def test_networks_that_share_no_image_are_not_ordered() -> None:
    (normalisation,) = (o for o in OBSERVATIONS if o.pairs == (("dnn-3", "dnn-2"),))
    results = {
        name: Snapshot(
            (ImageBounds(index, 0, 9, 1, 2, "grid"),),
            (Excluded(1 - index, 0, 1),),
            1.0,
            2,
            "pixel",
            True,
            config={"settings": {"max_t": 2}},
        )
        for index, name in enumerate(("dnn-2", "dnn-3"))
    }
    found = answer_observation(normalisation, compare_snapshots(results))
    assert found["answer"] == "open"
    assert found["because"].endswith("to settle it: inputs that both classify correctly")


def test_case_four_says_what_the_runs_say(study: Path) -> None:
    summary = summarise_case_four(study)
    facts = json.loads((study / "summary.json").read_text())
    answers = {row["topic"]: row["answer"] for row in facts["paper"]["observations"]}
    assert answers["depth"] == answers["convolutions"] == "not evaluated"
    runs = {run.network: run.latest for run in read_runs(study) if run.kind == "paper"}
    pair = compare_snapshots(runs).pair("dnn-3", "dnn-2")
    wanted = {"more": "holds", "less": "does not hold", "equal": "does not hold", "open": "open"}[pair.order]
    assert answers["batch normalisation"] == wanted
    rows = {row["in the paper"]: row for row in facts["paper"]["observation-pairs"]}
    assert list(rows) == ["dnn-2 > dnn-7", "dnn-3 > dnn-7", "dnn-3 > dnn-2"]
    row, split = rows["dnn-3 > dnn-2"], pair.splits[-1]
    assert row["difference"] == f"{pair.difference[0]:.3f} to {pair.difference[1]:.3f}"
    assert row["only one is fooled"] == f"by {split.t} pixels: {split.first}, {split.second}"
    assert row["p"] == split.chance
    assert f"{runs['dnn-3'].estimate:.3f}, {runs['dnn-2'].estimate:.3f}" == row["estimates"]
    assert facts["grid"]["observation-pairs"] == []
    assert summary.text.count("two by two") == 1
    assert summary.finished
    assert summary.left_out == ""
    assert all(path.is_file() for path in summary.files)
    assert (study / "summary.md").read_text() == summary.text
    for row in facts["runs"]:
        if row["kind"] == "paper":
            assert row["lower"] == pytest.approx(runs[row["network"]].lower)
    for row in facts["paper"]["networks"]:
        lower = [image.lower for image in runs[row["network"]].images]
        assert row["safe from 1"] == f"{sum(low >= 1 for low in lower) / len(lower):.1%}"
        assert f"safe from {runs[row['network']].config['settings']['max_t']}" in row


def test_case_four_compares_each_kind_by_itself(study: Path) -> None:
    facts = summarise_case_four(study).facts
    assert {kind: [row["network"] for row in facts[kind]["networks"]] for kind in ("paper", "grid", "certified")} == {
        "paper": ["dnn-2", "dnn-3", "dnn-7"],
        "grid": ["dnn-7"],
        "certified": ["dnn-7"],
    }
    assert {answer["answer"] for answer in facts["certified"]["observations"]} == {"not evaluated"}
    for kind in ("paper", "grid", "certified"):
        assert {row["kind"] for row in facts[kind]["levels"]} == {kind}
        for name in ("observations", "observation-pairs", "networks", "levels"):
            assert (study / "tables" / f"{name}-{kind}.csv").is_file()
        for name in ("bounds", "spread", "comparison"):
            assert (study / "figures" / f"{name}-{kind}.png").is_file()
    headings = [line for line in (study / "summary.md").read_text().splitlines() if "observations" in line]
    assert headings == [
        "## The paper's observations (paper: grid, no attack; lower bounds hold for the grid)",
        "## The paper's observations (grid; lower bounds hold for the grid)",
        "## The paper's observations (certified; lower bounds hold for all real values)",
    ]


def test_case_one_puts_the_paper_beside_every_kind(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # figures take their time, and have their own test
    out = tmp_path / "study"
    shutil.copytree(study, out)
    tables = summarise_case_one(out).facts["paper"]
    assert {network: list(rows[0]) for network, rows in tables.items()} == {
        "dnn-2": ["quantity", "the paper says", "paper"],
        "dnn-3": ["quantity", "the paper says", "paper"],
        "dnn-7": ["quantity", "the paper says", "paper", "grid", "certified"],
    }
    first = (out / "tables" / "paper-dnn-7.csv").read_text().splitlines()[0]
    assert first == "quantity,the paper says,paper,grid,certified"
    rows = {row["quantity"]: row for row in tables["dnn-7"]}
    assert len(rows) == len(tables["dnn-7"])
    for kind in ("paper", "grid", "certified"):
        latest = read_snapshot(out / f"dnn-7-{kind}")
        column = {name: row[kind] for name, row in rows.items()}
        low = sum(image.lower for image in latest.images) / len(latest.images)
        high = sum(image.upper for image in latest.images) / len(latest.images)
        assert column["mean lower bound at the end (pixels)"] == low
        assert column["mean upper bound at the end (pixels)"] == high
        assert column["global interval at the end (pixels)"] == f"{low:.3f} to {high:.3f}"
        assert column["width of the global interval at the end (pixels)"] == pytest.approx(high - low)
        seconds = [image.seconds for image in latest.images]
        assert column["seconds an image, all levels"] == pytest.approx(sum(seconds) / len(seconds))
        assert column["longest seconds of one image"] == max(seconds) > 0
        exact = [image for image in latest.images if image.upper == image.lower + 1]
        assert column["converged images"] == f"{len(exact) / len(latest.images):.1%} (t <= 2)"
        ones = sum(image.upper == 1 for image in exact)
        assert column["radius known exactly, by distance (pixels)"].startswith(f"1: {ones / len(latest.images):.1%}, 2")
        assert column["complete"] is True
    assert list(rows["lower bounds hold for"].values())[1:] == ["the grid", "the grid", "the grid", "all real values"]
    attack = f"the levels, and an attack of {ATTACK_QUERIES:,} queries an image"
    assert list(rows["upper bounds come from"].values())[1:] == ["the levels alone"] * 2 + [attack] * 2


def test_case_one_draws_every_run(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "dnn-7-paper", tmp_path / "dnn-7-paper")
    text = summarise_case_one(tmp_path).text
    for figure in ("image", "global", "seconds", "images", "adversarial"):
        for suffix in ("png", "csv"):
            assert f"(figures/dnn-7-paper-{figure}.{suffix})" in text
            assert (tmp_path / "figures" / f"dnn-7-paper-{figure}.{suffix}").is_file()
    assert "Not complete" not in text


def test_images_known_exactly_are_counted_by_their_distance(study: Path) -> None:
    run = read_run(study / "dnn-7-paper")
    bounds = [(0, 1), (1, 2), (1, 2), (3, 4), (4, 5), (16, 17), (0, 3), (0, 17)]  # the last two are not known
    images = tuple(ImageBounds(i, 0, 16, low, high, "grid") for i, (low, high) in enumerate(bounds))
    measure = MEASURES["radius known exactly, by distance (pixels)"]
    found = measure(replace(run, latest=replace(run.latest, images=images)))
    assert found == "1: 12.5%, 2: 25.0%, 3: 0.0%, 4: 12.5%, more: 25.0%"
