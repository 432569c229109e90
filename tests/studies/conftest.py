"""Run folders of tiny networks, made once."""

from pathlib import Path

import numpy as np
import pytest

from l0tre.studies.plans import PlannedRun, carry_out
from tests.cli.running import save_classifier, scores


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small classifiers of 4 x 4 images under the names of the paper's networks, and data for them."""
    folder = tmp_path_factory.mktemp("networks")
    for number in range(1, 8):
        save_classifier(folder / f"dnn-{number}.onnx", seed=20 + number)
    images = np.random.default_rng(1).random((12, 1, 4, 4), dtype=np.float32)
    np.savez(folder / "data.npz", x=images, y=scores(folder / "dnn-2.onnx", images).argmax(1))
    return folder


RUNS = (
    ("dnn-2", "paper"),
    ("dnn-3", "paper"),
    ("dnn-7", "certified"),
    ("dnn-7", "grid"),
    ("dnn-7", "paper"),
)


@pytest.fixture(scope="session")
def study(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with finished runs: three networks as the paper, one of them in every kind."""
    out = tmp_path_factory.mktemp("study")
    plans = [PlannedRun(str(inputs / f"{name}.onnx"), kind, 2, 10, 0.5) for name, kind in RUNS]
    carry_out(plans, out, data=str(inputs / "data.npz"), device="cpu")
    return out
