"""l0tre attack, as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from l0tre.attacks.auto import METHODS
from tests.cli.running import Files, check_error, l0tre, save_classifier, scores


def run(files: Files, *words: str | Path, data: str | Path = "") -> str:
    """Standard output of an attack with a small budget."""
    result = l0tre("attack", files.model, data or files.data, "--budget", "400", "--device", "cpu", *words)
    assert result.code == 0, result
    assert result.err == ""
    return result.out


def refuse(files: Files, *words: str | Path, data: str | Path = "") -> list[str]:
    """The arguments of an attack that must not begin."""
    return ["attack", files.model, str(data or files.data), "--device", "cpu", *map(str, words)]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No attack may begin."""

    def attack_details(*_: object, **__: object) -> None:
        raise AssertionError("the attack began")

    monkeypatch.setattr("l0tre.api.attack.attack_details", attack_details)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    """8-bit images with the network's decisions as labels."""
    path = tmp_path_factory.mktemp("pictures") / "eight.npz"
    images = np.random.default_rng(2).integers(0, 256, (4, 1, 4, 4), dtype=np.uint8)
    np.savez(path, x=images, y=scores(files.model, images.astype(np.float32) / np.float32(255)).argmax(1))
    return path


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    """A run with bounds for all real values."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = l0tre("evaluate", files.model, files.data, "--max-t", "1", "--limit", "4", "--out", folder, "--quiet")
    assert result.code == 0, result
    return folder


def test_the_table_has_a_row_for_every_image_and_a_summary(files: Files) -> None:
    lines = run(files).splitlines()
    assert lines[0].split() == ["image", "label", "becomes", "pixels", "optimal", "method", "forwards", "backwards"]
    assert [line.split()[0] for line in lines[1:7]] == [str(index) for index in range(6)]
    assert [int(line.split()[1]) for line in lines[1:7]] == files.labels.tolist()
    assert lines[8] == "classified correctly: 6 of 6 (100.0%)"
    assert lines[9].startswith("found     6 of 6 images")
    assert lines[10].startswith("distance  mean ")
    assert "proved optimal" in lines[10]
    assert lines[11].startswith("time ")
    assert max(map(len, lines)) <= 80


def test_json_is_all_that_is_printed_and_agrees_with_the_file(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "found.npz"
    result = json.loads(run(files, "--json", "--out", out))
    assert (result["unit"], result["images"], result["found"], result["notes"]) == ("pixel", 6, 6, [])
    with np.load(out) as archive:
        arrays = {name: archive[name] for name in archive.files}
    names = {"images", "labels", "originals", "decisions", "found", "distance", "optimal", "indices", "unit"}
    assert set(arrays) == names | {"forwards", "backwards"}
    assert np.array_equal(arrays["originals"], files.images)
    assert arrays["labels"].tolist() == files.labels.tolist()
    assert arrays["unit"] == "pixel"
    assert np.array_equal(scores(files.model, arrays["images"]).argmax(1), arrays["decisions"])
    assert bool((arrays["decisions"] != files.labels).all())
    assert (arrays["images"] != files.images).reshape(6, -1).sum(1).tolist() == arrays["distance"].tolist()
    distances = [each["distance"] for each in result["each"]]
    assert distances == arrays["distance"].tolist()
    assert result["mean"] == pytest.approx(np.mean(distances))
    assert result["median"] == pytest.approx(np.median(distances))
    for key, name in {"index": "indices", "label": "labels", "decision": "decisions"}.items():
        assert [each[key] for each in result["each"]] == arrays[name].tolist()
    for name in ("found", "optimal", "forwards", "backwards"):
        assert [each[name] for each in result["each"]] == arrays[name].tolist()


def test_the_file_keeps_its_name_and_quiet_prints_nothing(files: Files, tmp_path: Path) -> None:
    assert run(files, "--limit", "1", "--quiet", "--out", tmp_path / "found") == ""
    assert (tmp_path / "found").is_file()
    assert run(files, "--limit", "1", "--out", tmp_path / "again").endswith(f"adversarial inputs: {tmp_path}/again\n")


def test_chosen_images_keep_their_numbers(files: Files) -> None:
    result = json.loads(run(files, "--json", "--index", "4", "--index", "1"))
    assert [(each["index"], each["label"]) for each in result["each"]] == [(i, files.labels[i]) for i in (4, 1)]


def test_a_class_is_reached_also_class_zero(files: Files) -> None:
    for target in range(3):
        result = json.loads(run(files, "--json", "--targeted", str(target)))
        assert [each["label"] for each in result["each"]] == [target] * 6
        for each, label in zip(result["each"], files.labels, strict=True):
            assert not each["found"] or each["decision"] == target
            assert (each["distance"] == 0) == (label == target)
    lines = run(files, "--targeted", str(files.labels[0]), "--limit", "1").splitlines()
    assert lines[0].split()[1] == "target"
    assert "as it is" in lines[1]
    assert "found     0 of 0 images (1 need no change)" in lines


def test_masked_pixels_stay_as_they_are(files: Files, tmp_path: Path) -> None:
    mask = np.zeros((4, 4), dtype=bool)
    mask[:2] = True
    np.save(tmp_path / "mask.npy", mask)
    run(files, "--mask", tmp_path / "mask.npy", "--out", tmp_path / "found.npz")
    with np.load(tmp_path / "found.npz") as archive:
        assert np.array_equal(archive["images"][:, :, ~mask], files.images[:, :, ~mask])
        assert archive["found"].any()


def test_features_and_own_groups_are_counted(files: Files, tmp_path: Path) -> None:
    assert json.loads(run(files, "--json", "--limit", "1", "--unit", "feature"))["unit"] == "feature"
    np.save(tmp_path / "groups.npy", np.arange(16).reshape(4, 4) // 4)
    result = json.loads(run(files, "--json", "--unit", tmp_path / "groups.npy"))
    assert result["unit"] == "group"
    assert all(each["distance"] <= 4 for each in result["each"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_name(files: Files, method: str) -> None:
    result = json.loads(run(files, "--json", "--method", method, "--limit", "2"))
    assert {each["method"] for each in result["each"]} <= {"", method}
    assert bool(result["notes"]) == (method == "values")


def test_the_seed_decides(files: Files) -> None:
    words = ("--json", "--method", "search", "--limit", "3")
    same, again = (json.loads(run(files, *words, "--seed", "5"))["each"] for _ in range(2))
    assert same == again


def test_notes_are_shown(files: Files) -> None:
    assert "note: the method values improves" in run(files, "--method", "values", "--limit", "1")


def test_pictures_can_be_read_back_bit_for_bit(files: Files, pictures: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "new" / "pictures", tmp_path / "found.npz"
    text = run(files, "--round", "8bit", "--pictures", folder, "--out", out, data=pictures)
    assert text.endswith(f"4 pictures in {folder}\n")
    with np.load(pictures) as given, np.load(out) as archive:
        assert archive["images"].dtype == np.uint8
        for row in range(4):
            label, becomes = int(given["y"][row]), int(archive["decisions"][row])
            read = np.asarray(Image.open(folder / f"{row}_to_{becomes}.png"))
            assert np.array_equal(read, archive["images"][row, 0])
            assert (read != given["x"][row, 0]).sum() == archive["distance"][row] > 0
            image = read.astype(np.float32)[None, None] / np.float32(255)
            assert scores(files.model, image).argmax() == becomes != label


def test_the_stored_images_can_be_attacked_in_turn(files: Files, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.npz"
    run(files, "--round", "8bit", "--out", out, data=pictures)
    again = json.loads(run(files, "--json", data=out))
    assert [each["distance"] for each in again["each"]] == [0] * 4


def test_bounds_of_a_run_end_the_search(files: Files, certified: Path) -> None:
    known = {each["index"]: each for each in json.loads(l0tre("show", certified, "--json").out)["images"]}
    assert len(known) == 4
    result = json.loads(run(files, "--json", "--lower", certified))
    for each in result["each"]:
        lower = known[each["index"]]["lower"] if each["index"] in known else 0
        assert each["distance"] > lower
        assert each["optimal"] == (each["distance"] == lower + 1)
    assert any(each["optimal"] and each["distance"] > 1 for each in result["each"])


@pytest.mark.usefixtures("never")
def test_bounds_that_prove_nothing_here_are_refused(
    files: Files, certified: Path, pictures: Path, tmp_path: Path, run: Path
) -> None:
    save_classifier(tmp_path / "other.onnx", seed=5)
    other = l0tre("attack", tmp_path / "other.onnx", files.data, "--lower", certified, "--device", "cpu")
    check_error(other, "--lower", "another network")
    check_error(l0tre(*refuse(files, "--lower", certified, data=pictures)), "another input 0")
    check_error(l0tre(*refuse(files, "--lower", certified, "--high", "2")), "other values", "low and high")
    check_error(l0tre(*refuse(files, "--lower", run)), "no bounds for all real values", "--guarantee certified")
    check_error(l0tre(*refuse(files, "--lower", tmp_path)), str(tmp_path))


BAD = {
    "class": (("--targeted", "3"), "--targeted is 3: the network has classes 0 to 2"),
    "negative class": (("--targeted", "-1"), "classes 0 to 2"),
    "time": (("--time-budget", "-1"), "time"),
    "data": (("--index", "77"), "77"),
    "mask": (("--mask", "missing.npy"), "missing.npy"),
    "unit": (("--unit", "voxel"), "voxel"),
}


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused_before_any_work(files: Files, name: str) -> None:
    words, message = BAD[name]
    check_error(l0tre(*refuse(files, *words)), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "magic"), "give auto, greedy"),
        (("--round", "4bit"), "give none or 8bit"),
        (("--budget", "0"), "give 1 or more"),
        (("--round", "8bit"), "image 0 is no 8-bit image"),
    ],
)
def test_the_attack_s_own_errors_are_one_line(files: Files, words: tuple[str, ...], message: str) -> None:
    check_error(l0tre(*refuse(files, *words)), message)


@pytest.mark.usefixtures("never")
def test_places_that_cannot_be_written_are_refused_before_any_work(
    files: Files, pictures: Path, tmp_path: Path
) -> None:
    check_error(l0tre(*refuse(files, "--out", tmp_path)), "is a folder", "adversarial.npz")
    (tmp_path / "file").touch()
    check_error(l0tre(*refuse(files, "--out", tmp_path / "file" / "a.npz")), "cannot be made")
    words = ("--round", "8bit", "--pictures", tmp_path / "file")
    check_error(l0tre(*refuse(files, *words, data=pictures)), "is a file: give a folder")


@pytest.mark.usefixtures("never")
def test_vectors_are_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def model(x):\n    return x.reshape(len(x), -1)[:, :2]\n")
    np.save(tmp_path / "data.npy", np.zeros((2, 5), np.float32))
    words = ("--round", "8bit", "--pictures", tmp_path / "out", "--device", "cpu")
    result = l0tre("attack", f"{tmp_path}/model.py:model", tmp_path / "data.npy", *words)
    check_error(result, "shape (5,) are no pictures")
    assert not (tmp_path / "out").exists()


def test_without_time_the_originals_are_stored(files: Files, tmp_path: Path) -> None:
    result = json.loads(run(files, "--json", "--time-budget", "0", "--out", tmp_path / "found.npz"))
    assert (result["found"], result["mean"], result["median"]) == (0, None, None)
    assert {each["distance"] for each in result["each"]} == {-1}
    with np.load(tmp_path / "found.npz") as archive:
        assert np.array_equal(archive["images"], files.images)
    lines = run(files, "--time-budget", "0").splitlines()
    assert lines[1].split()[2:5] == ["-", "none", "-"]
    assert "found     0 of 6 images" in lines
