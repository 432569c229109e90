import json
from pathlib import Path

import numpy as np
import pytest

from l0tre import zoo
from tests.cli.running import check_error, l0tre

pytestmark = pytest.mark.usefixtures("only_sdnn")


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for trained networks."""
    folder = tmp_path / "zoo"
    monkeypatch.setenv("L0TRE_ZOO", str(folder))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with mnist.npz: the brightest of ten columns of a 28 x 28 image is its label."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 120)
    images = random.integers(0, 60, (120, 28, 28))
    images[np.arange(120), :, 4 + 2 * labels] += 150
    images = images.astype(np.uint8)
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "mnist.npz", train_x=images[:100], train_y=labels[:100], test_x=images[100:], test_y=labels[100:])
    return folder


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_list_train_evaluate_export(data: Path, user_folder: Path, tmp_path: Path) -> None:
    before = l0tre("zoo", "list")
    assert before.code == 0
    assert row(before.out, "sdnn")[1:] == ["1x14x14", "95,250", "98.73%", "99.19%", "bundled"]
    assert row(before.out, "dnn-1")[1:] == ["1x28x28", "216,650", "97.75%", "-", "not", "trained"]
    assert "l0tre zoo train NAME" in before.out
    assert str(user_folder) in before.out.replace("\n", "")
    check_error(l0tre("zoo", "export", "dnn-1", tmp_path / "m.pt2"), "not trained yet", "l0tre zoo train dnn-1")

    trained = l0tre("zoo", "train", "dnn-1", "--data-dir", data, "--epochs", "8", "--device", "cpu", "--seed", "3")
    assert (trained.code, trained.err) == (0, "")
    record = json.loads((user_folder / "dnn-1.json").read_text())
    assert (record["epochs"], record["seed"], record["data"]) == (8, 3, "mnist")
    assert record["accuracy_test"] > 0.8
    assert f"dnn-1: {record['accuracy_test']:.2%} of 20 test images correct (the paper: 97.75%)" in trained.out
    assert f"stored as float16 in {user_folder}" in trained.out
    assert "next: l0tre evaluate dnn-1 mnist" in trained.out

    after = l0tre("zoo", "list")
    assert row(after.out, "dnn-1")[1:] == ["1x28x28", "216,650", "97.75%", f"{record['accuracy_test']:.2%}", "trained"]
    words = ("--data-dir", data, "--limit", "1", "--max-t", "1", "--guarantee", "grid", "--time-budget", "0", "--json")
    evaluated = l0tre("evaluate", "dnn-1", "mnist", *words)
    assert evaluated.code == 0, evaluated
    assert json.loads(evaluated.out)["config"]["model"]["name"] == "dnn-1"

    exported = l0tre("zoo", "export", "dnn-1", tmp_path / "m.pt2")
    assert exported.code == 0
    assert "its scores are those of dnn-1" in exported.out
    facts = json.loads(l0tre("inspect", str(tmp_path / "m.pt2"), "--json").out)
    assert (facts["input_shape"], facts["classes"]) == ([1, 28, 28], 10)


def test_list_as_json() -> None:
    rows = json.loads(l0tre("zoo", "list", "--json").out)
    assert [entry["name"] for entry in rows] == list(zoo.names())
    states = {entry["name"]: entry["state"] for entry in rows}
    assert states["sdnn"] == "bundled"
    assert states["cifar10-attack"] == "missing"
    assert {entry["name"]: entry["accuracy"] for entry in rows}["sdnn"] == 0.9919


def test_list_goes_on_when_a_record_is_damaged(user_folder: Path) -> None:
    user_folder.mkdir()
    (user_folder / "dnn-2.safetensors").write_bytes(b"")
    assert row(l0tre("zoo", "list").out, "dnn-2")[-2:] == ["-", "damaged"]


def test_train_as_json_into_another_folder(data: Path, user_folder: Path, tmp_path: Path) -> None:
    words = ("--data", data / "mnist.npz", "--out", tmp_path / "mine", "--epochs", "1", "--device", "cpu")
    result = l0tre("zoo", "train", "sdnn-unpadded", *words, "--learning-rate", "0.05", "--weight-decay", "0", "--json")
    assert result.code == 0, result
    record = json.loads(result.out)
    assert record == json.loads((tmp_path / "mine" / "sdnn-unpadded.json").read_text())
    assert (record["learning_rate"], record["weight_decay"]) == (0.05, 0.0)
    assert not user_folder.exists()
    assert f"L0TRE_ZOO={tmp_path / 'mine'}" in l0tre("zoo", "train", "sdnn-unpadded", *words).out
    assert l0tre("zoo", "train", "sdnn-unpadded", *words, "--quiet").out == ""


def test_what_the_commands_refuse(data: Path, tmp_path: Path) -> None:
    check_error(l0tre("zoo"), "Missing command", "l0tre zoo --help")
    check_error(l0tre("zoo", "train", "resnet"), "'resnet'", "dnn-7")
    check_error(l0tre("zoo", "train", "dnn-1", "--data-dir", data, "--epochs", "0"), "at least 1")
    check_error(l0tre("zoo", "train", "dnn-1", "--data", "digits"), "has no splits")
    check_error(l0tre("zoo", "train", "dnn-1", "--data-dir", data, "--device", "tpu"), "'tpu'")
    check_error(l0tre("zoo", "export", "sdnn", tmp_path / "model.h5"), ".onnx or .pt2")
    check_error(l0tre("evaluate", "dnn-0", "mnist", "--data-dir", data), "l0tre zoo train dnn-0")


def test_an_interrupted_training_stores_nothing(data: Path, user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("l0tre.zoo.train.train", interrupt)
    result = l0tre("zoo", "train", "dnn-1", "--data-dir", data)
    assert (result.code, result.out, result.err) == (130, "", "stopped: nothing was stored\n")
    assert not user_folder.exists()
