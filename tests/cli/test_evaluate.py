"""l0tre evaluate, show and report on a network small enough to check by brute force."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.running import FEW, Files, l0tre, save_classifier, scores

GRID = (0.0, 0.5, 1.0)


def distance(files: Files, image: int, most: int) -> int:
    """Fewest pixels whose change on the grid changes the decision; ``most + 1`` if more are needed."""
    for size in range(1, most + 1):
        rows = []
        for pixels in itertools.combinations(range(16), size):
            for values in itertools.product(GRID, repeat=size):
                changed = files.images[image].reshape(-1).copy()
                changed[list(pixels)] = values
                rows.append(changed.reshape(1, 4, 4))
        if (scores(files.model, np.stack(rows)).argmax(1) != files.labels[image]).any():
            return size
    return most + 1


@pytest.fixture(scope="session")
def distances(files: Files) -> list[int]:
    found = [distance(files, image, 2) for image in range(len(files.images))]
    assert {1, 2} <= set(found)  # else the answers below would not be tested
    return found


def evaluate_json(*words: str | Path) -> dict[str, Any]:
    result = l0tre("evaluate", *words, "--json")
    assert (result.code, result.err) == (0, "")
    answer: dict[str, Any] = json.loads(result.out)
    return answer


@pytest.mark.parametrize("guarantee", ["grid", "certified"])
def test_json_has_the_documented_keys_and_the_bounds_of_brute_force(
    files: Files, distances: list[int], guarantee: str
) -> None:
    answer = evaluate_json(files.model, files.data, "--epsilon", "0.5", "--guarantee", guarantee)
    assert set(answer) == {"global", "images", "excluded", "config", "state", "history", "memory"}
    assert answer["state"] is None  # no run folder
    assert answer["memory"]["budget"] == answer["config"]["settings"]["memory_bytes"]
    assert answer["memory"]["peak"] > 2**26  # torch alone takes more
    wanted = {"lower", "upper", "estimate", "uncertainty", "images", "converged", "excluded"}
    assert wanted <= set(answer["global"])
    assert answer["global"]["images"] == len(answer["images"]) == 6
    assert answer["global"]["finished"] is True
    for place, image in enumerate(answer["images"]):
        assert {"index", "label", "lower", "upper", "converged", "guarantee", "seconds", "queries"} <= set(image)
        assert (image["index"], image["label"]) == (place, files.labels[place])
        assert image["lower"] == distances[place] - 1 == image["upper"] - 1
        assert image["converged"] is True
        assert image["guarantee"] == guarantee
    for name in ("lower", "upper"):
        assert answer["global"][name] == pytest.approx(np.mean([image[name] for image in answer["images"]]))
    for point in answer["history"]:
        assert set(point) == {"seconds", "t", "lower", "upper"}
    assert [p["lower"] for p in answer["history"]] == sorted(p["lower"] for p in answer["history"])
    assert [p["upper"] for p in answer["history"]] == sorted((p["upper"] for p in answer["history"]), reverse=True)
    assert answer["config"]["settings"]["epsilon"] == 0.5


def test_the_witnesses_of_a_run_change_the_decision(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert l0tre("evaluate", files.model, files.data, "--out", out, "--quiet", *FEW).code == 0
    with np.load(out / "witnesses.npz") as stored:
        assert len(stored["index"]) == 6
        decisions = scores(files.model, stored["adversarial"]).argmax(1)
        assert (decisions == stored["adversarial_label"]).all()
        assert (decisions != stored["label"]).all()
        changed = (stored["original"] != stored["adversarial"]).reshape(6, -1).sum(1)
        assert (changed == stored["distance"]).all()


def test_a_run_folder_holds_every_file_and_show_agrees_with_them(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    result = l0tre("evaluate", files.model, files.data, "--out", out, *FEW)
    assert result.code == 0
    assert "report.html" in result.out
    names = {"run.db", "inputs.npz", "result.json", "bounds.csv", "witnesses.npz", "report.html"}
    assert names <= {path.name for path in out.iterdir()}
    assert json.loads((out / "result.json").read_text()) == json.loads(l0tre("show", out, "--json").out)
    shown = l0tre("show", out)
    assert shown.code == 0
    assert "6 of 6 (100.0%)" in shown.out
    assert len((out / "bounds.csv").read_text().splitlines()) == 7


def test_report_writes_the_files_anew(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "run"
    l0tre("evaluate", files.model, files.data, "--out", out, "--quiet", *FEW)
    for name in ("result.json", "bounds.csv", "witnesses.npz", "report.html"):
        (out / name).unlink()
    result = l0tre("report", out)
    assert result.code == 0
    assert all(Path(line).is_file() for line in result.out.split())
    assert len(result.out.split()) == 4


def test_quiet_prints_nothing(files: Files, tmp_path: Path) -> None:
    result = l0tre("evaluate", files.model, files.data, "-q", "--out", tmp_path / "run", *FEW)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_nothing_but_the_result_is_printed_without_a_terminal(files: Files) -> None:
    result = l0tre("evaluate", files.model, files.data, *FEW)
    assert result.err == ""
    assert "\x1b" not in result.out
    assert max(len(line) for line in result.out.splitlines() if files.model not in line) <= 80


def test_a_misclassified_image_is_reported_and_left_out(files: Files, tmp_path: Path) -> None:
    labels = files.labels.copy()
    labels[2] = (labels[2] + 1) % 3
    np.savez(tmp_path / "data.npz", x=files.images, y=labels)
    answer = evaluate_json(files.model, tmp_path / "data.npz", "--max-t", "1")
    assert answer["global"]["excluded"] == 1
    assert [image["index"] for image in answer["images"]] == [0, 1, 3, 4, 5]
    assert answer["excluded"][0]["index"] == 2
    text = l0tre("evaluate", files.model, tmp_path / "data.npz", "--max-t", "1").out
    assert f"left out: image 2, classified as {files.labels[2]}, labelled {labels[2]}" in text


def test_without_labels_the_decisions_of_the_network_count(files: Files, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=files.images)
    answer = evaluate_json(files.model, tmp_path / "data.npz", "--max-t", "1")
    assert [image["label"] for image in answer["images"]] == files.labels.tolist()


def test_limit_and_shuffle_keep_the_indices_of_the_data(files: Files) -> None:
    answer = evaluate_json(files.model, files.data, "--limit", "3", "--shuffle", "--seed", "4", "--max-t", "1")
    indices = [image["index"] for image in answer["images"]]
    assert len(set(indices)) == 3
    assert [image["label"] for image in answer["images"]] == files.labels[indices].tolist()
    assert len(evaluate_json(files.model, files.data, "--limit", "100", "--max-t", "1")["images"]) == 6


def test_the_options_of_the_domain_reach_the_search(files: Files, tmp_path: Path) -> None:
    mask = np.zeros((4, 4), bool)
    mask[1, 2] = mask[3, 3] = True
    np.save(tmp_path / "mask.npy", mask)
    answer = evaluate_json(files.model, files.data, "--mask", tmp_path / "mask.npy")
    assert answer["config"]["domain"] == {"unit": "pixel", "groups": 2}
    changed = {group for image in answer["images"] if image["witness"] for group in image["witness"]["groups"]}
    assert changed <= {6, 15}
    rows = np.arange(16).reshape(4, 4) // 4
    np.save(tmp_path / "groups.npy", rows)
    answer = evaluate_json(
        files.model, files.data, "--groups", tmp_path / "groups.npy", "--max-t", "1", "--epsilon", "1"
    )
    assert answer["config"]["domain"] == {"unit": "group", "groups": 4}
    assert evaluate_json(files.model, files.data, "--groups", "feature")["global"]["unit"] == "feature"


def test_normalisation_is_part_of_the_model(files: Files, tmp_path: Path) -> None:
    # Data in 0 to 255 with --std 1/255 inside the domain 0 to 255 is the problem in 0 to 1.
    np.savez(tmp_path / "data.npz", x=files.images * 255, y=files.labels)
    wide = ("--high", "255", "--std", "255", "--epsilon", "127.5")
    scaled = evaluate_json(files.model, tmp_path / "data.npz", *wide)
    plain = evaluate_json(files.model, files.data, "--epsilon", "0.5")
    assert [(i["lower"], i["upper"]) for i in scaled["images"]] == [(i["lower"], i["upper"]) for i in plain["images"]]


@pytest.mark.parametrize("radius", [1, 2])
def test_verify_agrees_with_brute_force(files: Files, distances: list[int], radius: int) -> None:
    for image, exact in enumerate(distances):
        words = ("verify", files.model, files.data, "--radius", str(radius), "--index", str(image), "--epsilon", "0.5")
        answer, code = ("safe", 0) if exact > radius else ("unsafe", 1)
        result = l0tre(*words, "--quiet")
        assert (result.code, result.out, result.err) == (code, f"{answer}\n", "")
        result = l0tre(*words, "--json")
        verdict = json.loads(result.out)
        assert (result.code, verdict["answer"], verdict["index"]) == (code, answer, image)
        assert (verdict["witness"] is None) == (answer == "safe")
        if verdict["witness"]:
            changed = files.images[image].reshape(-1).copy()
            changed[verdict["witness"]["positions"]] = verdict["witness"]["values"]
            assert len(verdict["witness"]["positions"]) <= radius
            assert scores(files.model, changed.reshape(1, 1, 4, 4)).argmax() == verdict["witness"]["label"]
            assert verdict["witness"]["label"] != files.labels[image]
        text = l0tre(*words)
        assert text.code == code
        assert text.out.startswith(answer)


def test_verify_without_time_is_unknown_and_says_why(files: Files, distances: list[int]) -> None:
    words = ("--radius", "2", "--index", str(distances.index(2)), "--time-budget", "0")
    result = l0tre("verify", files.model, files.data, *words)
    assert (result.code, result.err) == (3, "")
    assert "unknown" in result.out
    assert "reason: the time is over at level t = 1 of 2" in result.out
    answer = json.loads(l0tre("verify", files.model, files.data, *words, "--json").out)
    assert answer["answer"] == "unknown"
    assert answer["reason"]


def test_names_with_brackets_are_printed_as_they_are(files: Files, tmp_path: Path) -> None:
    save_classifier(tmp_path / "net[red][bold].onnx")
    result = l0tre("evaluate", tmp_path / "net[red][bold].onnx", files.data, "--max-t", "1")
    assert result.code == 0
    assert "net[red][bold].onnx on 6 images" in result.out
