"""Data and options that cannot be used: one line that says what was given and what to do, exit code 2."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.running import Files, check_error, contents, l0tre


def broken(images: np.ndarray, labels: np.ndarray, kind: str) -> dict[str, Any]:
    """The arrays of a data file with one fault."""
    spoilt = images.copy()
    if kind in ("nan", "inf"):
        spoilt[2, 0, 1, 1] = float(kind)
    return {
        "shape": {"x": images[:, :, :3], "y": labels},
        "channels": {"x": images.repeat(2, axis=1), "y": labels},
        "above": {"x": images * 3, "y": labels},
        "below": {"x": images - 0.5, "y": labels},
        "nan": {"x": spoilt, "y": labels},
        "inf": {"x": spoilt, "y": labels},
        "few labels": {"x": images, "y": labels[:4]},
        "many labels": {"x": images, "y": np.r_[labels, labels]},
        "large labels": {"x": images, "y": labels + 7},
        "negative labels": {"x": images, "y": labels - 9},
        "fractional labels": {"x": images, "y": labels + 0.5},
        "nan labels": {"x": images, "y": np.full(6, np.nan)},
        "text labels": {"x": images, "y": np.array(list("abcdef"))},
        "one-hot labels": {"x": images, "y": np.eye(3)[labels]},
        "empty": {"x": images[:0], "y": labels[:0]},
        "no arrays": {},
        "scalar": {"x": np.float32(0.5)},
        "integers": {"x": (images * 255).astype(np.int32), "y": labels},
        "objects": {"x": np.array([{}], dtype=object)},
        "text": {"x": np.array([["a", "b"]])},
        "all misclassified": {"x": images, "y": (labels + 1) % 3},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shape", ["(1, 3, 4)", "(1, 4, 4)", "--resize"]),
        ("channels", ["(2, 4, 4)", "(1, 4, 4)"]),
        ("above", ["input 0", "[0, 1]", "--scale", "--high"]),
        ("below", ["input 0", "[0, 1]", "--low"]),
        ("nan", ["input 2", "NaN"]),
        ("inf", ["input 2", "infinite"]),
        ("few labels", ["4 labels for 6 inputs"]),
        ("many labels", ["12 labels for 6 inputs"]),
        ("large labels", ["input 0", "classes 0 to 2"]),
        ("negative labels", ["input 0", "0 or more"]),
        ("fractional labels", ["input 0", ".5", "whole number"]),
        ("nan labels", ["input 0", "nan", "whole number"]),
        ("text labels", ["names 6 classes", "has 3"]),
        ("one-hot labels", ["(6, 3)", "one whole number for each input"]),
        ("empty", ["no inputs"]),
        ("no arrays", ["name it x"]),
        ("scalar", ["shape ()"]),
        ("integers", ["int32", "scale"]),
        ("objects", ["data.npz", "plain numbers"]),
        ("text", ["<U1"]),
        ("all misclassified", ["all 6 inputs", "labels", "--mean"]),
    ],
)
def test_bad_data(files: Files, tmp_path: Path, kind: str, words: list[str]) -> None:
    np.savez(tmp_path / "data.npz", **broken(files.images, files.labels, kind))
    result = l0tre("evaluate", files.model, tmp_path / "data.npz", "--out", tmp_path / "run")
    check_error(result, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("missing.npz", None, "missing.npz"),
        ("random.npz", b"\x93\x00\x01" * 99, "random.npz"),
        ("random.npy", b"\x93\x00\x01" * 99, "random.npy"),
        ("empty.npz", b"", "empty.npz"),
        ("cut.npz", b"PK\x03\x04" + b"\x00" * 40, "cut.npz"),
        ("empty.csv", b"", "no rows"),
        ("words.csv", b"0,1,two\n", "'two'"),
        ("latin.csv", b"0,\xff\xfe\n", "UTF-8"),
        ("data.h5", b"?", ".npz"),
        ("notes.txt", b"hello", ".npz"),
        ("mnits", None, "did you mean mnist"),
        ("", None, "digits"),
    ],
)
def test_bad_data_files(files: Files, tmp_path: Path, name: str, content: bytes | None, word: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    given = name if content is None and "." not in name else path
    check_error(l0tre("evaluate", files.model, given), word)


def test_an_empty_folder_is_no_data(files: Files, tmp_path: Path) -> None:
    check_error(l0tre("evaluate", files.model, tmp_path), "no images", ".png")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--max-t 17", ["17", "16 pixels", "at most 16"]),
        ("--max-t 0", ["0", "1 or more"]),
        ("--max-t -2", ["-2", "1 or more"]),
        ("--epsilon 0", ["0.0", "above 0"]),
        ("--epsilon -0.5", ["-0.5", "above 0"]),
        ("--epsilon nan", ["nan", "above 0"]),
        ("--epsilon inf", ["inf"]),
        ("--epsilon 5e-7", ["grid points", "larger epsilon"]),
        ("--grid hexagonal", ["hexagonal", "uniform or paper"]),
        ("--colours pink", ["pink", "grid or corners"]),
        ("--memory 0", ["'0'", "2G"]),
        ("--memory -1", ["'-1'", "2G"]),
        ("--memory lots", ["'lots'", "2G"]),
        ("--time-budget -1", ["-1", "seconds"]),
        ("--time-budget nan", ["nan", "seconds"]),
        ("--limit 0", ["limit is 0", "1 or more"]),
        ("--limit -3", ["limit is -3", "1 or more"]),
        ("--shuffle --seed -1", ["seed is -1"]),
        ("--mean grey", ["--mean", "'grey'", "0.49,0.48,0.45"]),
        ("--mean 0.5,,0.5", ["--mean", "0.49,0.48,0.45"]),
        ("--mean nan", ["mean", "finite"]),
        ("--mean 1,2,3", ["3 numbers", "(1, 4, 4)", "one number"]),
        ("--mean 1,2,3,4", ["4 numbers", "(1, 4, 4)", "one number"]),
        ("--std 0", ["std", "above 0"]),
        ("--std -1", ["std", "above 0"]),
        ("--std inf", ["std", "finite"]),
        ("--std 1e-44", ["NaN or infinite", "std"]),
        ("--device gpu", ["'gpu'", "cuda:0"]),
        ("--device mps", ["'mps'", "cuda:0"]),
        ("--device meta", ["'meta'", "cuda:0"]),
        ("--device cuda:77", ["'cuda:77'", "cpu"]),
        ("--input-shape 3", ["(1, 4, 4)", "(3,)"]),
        ("--input-shape 0x4", ["'0x4'", "1x28x28"]),
        ("--input-shape 1x4x²", ["'1x4x²'", "1x28x28"]),
        ("--input-shape -1", ["'-1'", "1x28x28"]),
        ("--scale 0", ["scale is 0", "above 0"]),
        ("--scale nan", ["scale is nan", "above 0"]),
        ("--split validation", ["'validation'", "test or train"]),
        ("--low dark", ["--low", "'dark'", ".npy"]),
        ("--low nan", ["low", "finite"]),
        ("--low 2", ["low 2", "high 1"]),
        ("--low 0.9", ["outside the domain", "[0.9, 1]"]),
        ("--high inf", ["high", "finite"]),
        ("--low 0 --high 0", ["no value may change"]),
        ("--groups rows", ["'rows'", "pixel, feature"]),
        ("--groups missing.npy", ["--groups", "missing.npy"]),
        ("--mask missing.npy", ["--mask", "missing.npy"]),
    ],
)
def test_bad_options(files: Files, options: str, words: list[str]) -> None:
    check_error(l0tre("evaluate", files.model, files.data, *options.split()), *words)


def test_values_that_cannot_change_leave_nothing_to_search(files: Files, tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((4, 4), bool))
    np.save(tmp_path / "frozen.npy", np.full((4, 4), -1))
    np.save(tmp_path / "same.npy", files.images[0, 0])
    for option in (("--mask", "none.npy"), ("--groups", "frozen.npy")):
        check_error(l0tre("evaluate", files.model, files.data, option[0], tmp_path / option[1]), "no value may change")
    ends = ("--low", tmp_path / "same.npy", "--high", tmp_path / "same.npy", "--limit", "1")
    check_error(l0tre("evaluate", files.model, files.data, *ends), "no value may change")


@pytest.mark.parametrize("option", ["--groups", "--mask", "--low"])
@pytest.mark.parametrize("kind", ["large", "text", "complex", "archive", "broken archive", "random", "folder"])
def test_bad_arrays(files: Files, tmp_path: Path, option: str, kind: str) -> None:
    path = tmp_path / "array.npy"
    if kind == "folder":
        path.mkdir()
    elif kind == "random":
        path.write_bytes(b"\x00\x01\x02" * 50)
    elif kind == "broken archive":
        path.write_bytes(b"PK\x03\x04" + b"\x01" * 50)
    elif kind == "archive":
        with path.open("wb") as file:
            np.savez(file, a=np.ones((4, 4), int))
    else:
        np.save(
            path, {"large": np.ones((5, 5), int), "text": np.full((4, 4), "a"), "complex": np.ones(16, complex)}[kind]
        )
    check_error(l0tre("evaluate", files.model, files.data, option, path), "(5, 5)" if kind == "large" else "array.npy")


def test_group_numbers_are_whole(files: Files, tmp_path: Path) -> None:
    for name, array in {"float": np.ones((4, 4)), "bool": np.ones((4, 4), bool)}.items():
        np.save(tmp_path / f"{name}.npy", array)
        check_error(l0tre("evaluate", files.model, files.data, "--groups", tmp_path / f"{name}.npy"), "integers")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--radius 0", ["radius is 0", "1 or more"]),
        ("--radius -1", ["radius is -1", "1 or more"]),
        ("--radius 17", ["radius is 17", "16 pixels", "at most 16"]),
        ("--radius 1 --index 6", ["index 6", "0 to 5"]),
        ("--radius 1 --index -1", ["index -1", "0 to 5"]),
        ("--radius 1 --timeout nan", ["nan", "seconds"]),
        ("--radius 1 --time-budget -1", ["-1", "seconds"]),
        ("--radius 1 --epsilon 0", ["above 0"]),
    ],
)
def test_bad_questions(files: Files, options: str, words: list[str]) -> None:
    check_error(l0tre("verify", files.model, files.data, *options.split()), *words)


def test_a_misclassified_image_cannot_be_verified(files: Files, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=files.images, y=(files.labels + 1) % 3)
    check_error(l0tre("verify", files.model, tmp_path / "data.npz", "--radius", "1"), "misclassifies", "labels")


def test_a_folder_with_other_files_is_not_used_for_a_run(files: Files, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    before = contents(tmp_path)
    check_error(l0tre("evaluate", files.model, files.data, "--out", tmp_path), "not empty", "--out")
    assert contents(tmp_path) == before


def test_a_file_is_not_used_for_a_run(files: Files, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("important")
    for out in (file, file / "below"):
        check_error(l0tre("evaluate", files.model, files.data, "--out", out), "cannot be written", str(file))
    assert file.read_text() == "important"


def test_a_folder_that_cannot_be_written(files: Files, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        probe = tmp_path / "probe"
        try:
            probe.mkdir()
        except PermissionError:
            check_error(l0tre("evaluate", files.model, files.data, "--out", tmp_path / "run"), "cannot be written")
        else:
            pytest.skip("this user can write everywhere")
    finally:
        tmp_path.chmod(0o700)
