"""Model files that cannot be read."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.cli.running import Files, check_error, l0tre, save_classifier, save_graph


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("weights.pt", b"?", [".pt files are not read", ".onnx", ".pt2"]),
        ("weights.pth", b"?", [".onnx", ".pt2"]),
        ("model.pkl", b"?", ["run code", ".onnx"]),
        ("model.h5", b"?", [".h5 files are not read", ".onnx"]),
        ("model.xyz", b"?", ["model.xyz", ".onnx", "sdnn"]),
        ("random.onnx", b"\x93\x00\x01\xff" * 99, ["random.onnx", "not a readable ONNX model"]),
        ("empty.onnx", b"", ["empty.onnx"]),
        ("random.pt2", b"\x93\x00\x01\xff" * 99, ["random.pt2", "torch.export"]),
        ("zip.pt2", b"PK\x03\x04" + b"\x00" * 50, ["zip.pt2", "torch.export"]),
        ("missing.onnx", None, ["there is no file", "missing.onnx"]),
        ("missing.pt2", None, ["there is no file", "missing.pt2"]),
        ("missing", None, ["missing", "sdnn"]),
    ],
)
def test_files_that_are_no_models(
    files: Files, tmp_path: Path, name: str, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    check_error(l0tre("evaluate", tmp_path / name, files.data), *words)


def test_a_folder_is_no_model(files: Files, tmp_path: Path) -> None:
    check_error(l0tre("evaluate", tmp_path, files.data), str(tmp_path), ".onnx")
    (tmp_path / "net.onnx").mkdir()
    check_error(l0tre("evaluate", tmp_path / "net.onnx", files.data), "net.onnx")
    check_error(l0tre("evaluate", "", files.data), "''", ".onnx")


def test_a_model_file_cut_short(files: Files, tmp_path: Path) -> None:
    whole = Path(files.model).read_bytes()
    for length in (1, len(whole) // 3, len(whole) - 20):
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        check_error(l0tre("evaluate", tmp_path / "cut.onnx", files.data), "cut.onnx")


def test_an_operator_that_is_not_supported_is_named_and_onnxruntime_takes_over(files: Files, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("TopK", ["flat", "k"], ["scores", "places"], name="best_three"),
    ]
    save_graph(tmp_path / "net.onnx", nodes, {"k": np.array([3])})
    result = l0tre("attack", tmp_path / "net.onnx", files.data, "--limit", "1", "--budget", "50")
    assert result.code == 0, result
    wish = ("--limit", "1", "--guarantee", "certified", "--quiet")
    check_error(l0tre("evaluate", tmp_path / "net.onnx", files.data, *wish), "TopK", "best_three", "not supported")
    result = l0tre("evaluate", tmp_path / "net.onnx", files.data, "--limit", "1", "--max-t", "1", "--attack", "0")
    assert "guarantee: grid" in result.out
    assert "run by onnxruntime as it is" in result.out


def test_weights_that_are_not_numbers(files: Files, tmp_path: Path) -> None:
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "m"], ["scores"])]
    save_graph(tmp_path / "net.onnx", nodes, {"m": np.full((16, 3), np.nan, np.float32)})
    check_error(l0tre("evaluate", tmp_path / "net.onnx", files.data), "finite")


def test_a_network_with_one_score_has_two_classes(tmp_path: Path) -> None:
    save_classifier(tmp_path / "net.onnx", classes=1)
    assert json.loads(l0tre("inspect", tmp_path / "net.onnx", "--json").out)["classes"] == 2


@pytest.mark.parametrize("module", ["onnx", "onnxruntime"])
def test_a_missing_extra_is_named(files: Files, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    check_error(l0tre("evaluate", files.model, files.data), module, "pip install 'l0tre[onnx]'")


@pytest.mark.parametrize("module", ["rich", "typer"])
def test_the_command_line_itself_is_an_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    for name in [name for name in sys.modules if name.startswith("l0tre.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    check_error(l0tre("--version"), module, "pip install 'l0tre[cli]'")


def test_a_run_without_the_report_extra_says_so_and_succeeds(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = l0tre("evaluate", files.model, files.data, "--max-t", "1", "--out", tmp_path / "run")
    assert (result.code, result.err) == (0, "")
    assert "l0tre[report]" in result.out
    assert (tmp_path / "run" / "result.json").is_file()
    assert not (tmp_path / "run" / "report.html").exists()
    check_error(l0tre("report", tmp_path / "run"), "jinja2", "l0tre[report]")
