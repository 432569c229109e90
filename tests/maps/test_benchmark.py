"""The benchmark of large networks, on a small one."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import maps

MODEL = """
from torch import nn
network = nn.Sequential(
    nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
).eval()
"""


def test_maps_are_measured_compared_and_not_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.py").write_text(MODEL)
    photos = np.random.default_rng(0).integers(0, 256, (8, 20, 20, 3), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", images=photos)
    out = tmp_path / "maps.json"
    words = ["maps", f"{tmp_path / 'small.py'}:network", "--data", str(tmp_path / "photos.npz"), "--side", "20"]
    monkeypatch.setattr(sys, "argv", [*words, "--device", "cpu", "--out", str(out)])
    maps.main()
    (row,) = json.loads(out.read_text()).values()
    assert row["done"]
    assert row["exact"]["measured"] == 1
    assert 95 <= row["strongest found"] <= row["of"] == 100
    assert row["largest difference where both measured"] < 1e-4
    before = out.read_text()
    maps.main()
    assert out.read_text() == before
