"""The case studies: the paper's settings, the tables, the answers."""

import json
from pathlib import Path

import pytest

from l0tre.results import Excluded, ImageBounds, Snapshot
from l0tre.standings import Comparison, compare_snapshots
from l0tre.studies.case_four import OBSERVATIONS, answer_observation, plan_case_four, summarise_case_four
from l0tre.studies.case_one import plan_case_one, summarise_case_one
from l0tre.studies.runs import read_runs


def test_the_paper_s_settings_are_the_default() -> None:
    assert [(p.folder, p.max_t, p.images, p.epsilon) for p in plan_case_one()] == [
        ("sdnn-grid", 3, 5300, 0.25),
        ("sdnn-certified", 3, 5300, 0.25),
        ("dnn-0-grid", 2, 2400, 0.25),
        ("dnn-0-certified", 2, 2400, 0.25),
    ]
    assert [(p.folder, p.max_t, p.images, p.epsilon) for p in plan_case_four()] == [
        (f"dnn-{number}-grid", 2, 1000, 0.3) for number in range(1, 8)
    ]
    (plan,) = plan_case_one(["sdnn"], ["grid"], images=5, max_t=1)
    assert (plan.images, plan.max_t) == (5, 1)


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


def test_depth_is_about_every_shallower_network() -> None:
    depth = next(o for o in OBSERVATIONS if o.topic == "depth")
    others = {f"dnn_{number}": (3, 3) for number in range(1, 7)}
    assert answer_observation(depth, radii(**others, dnn_7=(1, 1)))["answer"] == "holds"
    assert answer_observation(depth, radii(**{**others, "dnn_4": (1, 3)}, dnn_7=(1, 1)))["answer"] == "open"
    worse = answer_observation(depth, radii(**{**others, "dnn_4": (0, 0), "dnn_5": (1, 3)}, dnn_7=(1, 1)))
    assert worse["answer"] == "does not hold"
    assert "dnn-4 - dnn-7: -1.000 to -1.000" in worse["because"]
    missing = answer_observation(depth, radii(dnn_1=(1, 1), dnn_7=(1, 1)))
    assert missing["answer"] == "not evaluated"
    assert "dnn-2" in missing["because"]


def test_case_four_says_what_the_runs_say(study: Path) -> None:
    summary = summarise_case_four(study)
    facts = json.loads((study / "summary.json").read_text())
    answers = {row["topic"]: row["answer"] for row in facts["grid"]["observations"]}
    assert answers["depth"] == answers["convolutions"] == "not evaluated"
    runs = {run.network: run.latest for run in read_runs(study)}
    pair = compare_snapshots(runs).pair("dnn-3", "dnn-2")
    wanted = {"more": "holds", "less": "does not hold", "equal": "does not hold", "open": "open"}[pair.order]
    assert answers["batch normalisation"] == wanted
    assert summary.finished
    assert summary.left_out == ""
    assert all(path.is_file() for path in summary.files)
    assert (study / "summary.md").read_text() == summary.text
    for row in facts["runs"]:
        assert row["lower"] == pytest.approx(runs[row["network"]].lower)
    for name in ("observations", "networks", "levels"):
        assert (study / "tables" / f"{name}-grid.csv").is_file()


def test_case_one_puts_the_paper_beside_the_runs(study: Path) -> None:
    summary = summarise_case_one(study)
    text = summary.text
    run = next(run for run in read_runs(study) if run.network == "dnn-7")
    rows = {row["quantity"]: row for row in summary.facts["paper"]["dnn-7"]}
    assert rows["mean lower bound at the end (pixels)"]["grid"] == run.latest.lower
    assert rows["lower bounds hold for"]["grid"] == "the grid"
    for figure in ("image", "global", "seconds", "images", "adversarial"):
        assert f"(figures/dnn-7-grid-{figure}.png)" in text
        assert f"(figures/dnn-7-grid-{figure}.csv)" in text
    assert "Not complete" not in text
