"""Running the command line inside the test process, as a user would type it."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from l0tre.cli import main

FEW = ("--attack", "40")  # queries of attacks, for tests of something else


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Files:
    """A small classifier of 4 x 4 images and images that it classifies correctly."""

    folder: Path
    model: str
    data: str
    images: np.ndarray
    labels: np.ndarray


def l0tre(*words: str | Path) -> Result:
    """Run ``l0tre WORDS``; anything but a proper exit is a failure of the test."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["l0tre", *map(str, words)])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
        else:
            raise AssertionError("main() returned instead of exiting")
    return Result(code, out.getvalue(), err.getvalue())


def check_error(result: Result, *words: str) -> None:
    """One line on standard error that holds every word, nothing on standard output, exit code 2."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def save_classifier(path: Path, seed: int = 0, classes: int = 3) -> None:
    """Write a convolution, a ReLU and a linear layer as an ONNX file."""
    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.normal(size=(2, 1, 3, 3)).astype(np.float32),
        "matrix": random.normal(size=(8, classes)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["conv"]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Flatten", ["relu"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["scores"]),
    ]
    save_graph(path, nodes, weights, classes)


def save_graph(path: Path, nodes: list[object], weights: dict[str, np.ndarray], classes: int = 3) -> None:
    """Write an ONNX file from ``x`` of shape (N, 1, 4, 4) to ``scores``."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 4, 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", classes])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def scores(model: str | Path, images: np.ndarray) -> np.ndarray:
    """What onnxruntime says."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, {"x": images})[0]
    return result


def make_files(folder: Path) -> Files:
    """Write ``tiny.onnx`` and ``data.npz``."""
    model, data = folder / "tiny.onnx", folder / "data.npz"
    save_classifier(model)
    images = np.random.default_rng(1).random((6, 1, 4, 4), dtype=np.float32)
    labels = scores(model, images).argmax(1)
    np.savez(data, x=images, y=labels)
    return Files(folder, str(model), str(data), images, labels)
