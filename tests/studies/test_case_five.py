"""Case study five on a tiny network."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import l0tre
from l0tre.studies.case_five import MapPlan, carry_out_maps, measure
from tests.cli.running import l0tre as typed
from tests.cli.running import make_files


@pytest.mark.slow
def test_maps_are_drawn_measured_and_not_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("captum")
    files = make_files(tmp_path)
    out = tmp_path / "study"
    names = tmp_path / "names.txt"
    names.write_text("zero\none\ntwo\n")
    given = ("--networks", files.model, "--data", files.data, "--images", "1", "--names", names)
    words = ("reproduce", "case-5", "--out", out, *given)
    result = typed(*words, "--attack", "40", "--device", "cpu")
    assert result.code == 0, result
    with (out / "quality.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3 + 1  # ours, once more, with pixels chosen one after the other
    drops = {(row["image"], row["method"], row["replaced by"]): float(row["drop at 1"]) for row in rows}
    for image, method, way in drops:
        if way == "worst colours":  # what the map is exact for
            assert drops[image, "l0tre", way] >= drops[image, method, way] - 1e-5
    assert (out / f"image-{rows[0]['image']}.png").is_file()
    assert "score of class zero" in (out / "maps.csv").read_text() or "class one" in (out / "maps.csv").read_text()
    before = (out / "maps.csv").read_text()
    assert typed(*words, "--attack", "40", "--device", "cpu", "--quiet", "--no-compare").code == 0
    assert (out / "maps.csv").read_text() == before


def test_networks_that_do_not_say_their_shape_take_that_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "from torch import nn\nnetwork = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()\n"
    )
    np.savez(tmp_path / "data.npz", images=np.random.default_rng(0).random((2, 1, 4, 4), dtype=np.float32))
    plan = MapPlan([f"{tmp_path / 'small.py'}:network"], str(tmp_path / "data.npz"), 1, queries=0, compared=False)
    found = carry_out_maps(plan, tmp_path / "out")
    assert [row["measured"] for row in found.facts["maps"]] == [1]


def test_bad_plans_are_refused(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    plan = MapPlan([files.model, files.model], files.data)
    with pytest.raises(l0tre.L0treError, match="have the same name"):
        carry_out_maps(plan, tmp_path / "out")


def test_measures_of_a_linear_network_are_known() -> None:
    weight = torch.tensor([[4.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    network = l0tre.load(lambda x: x @ weight.T, input_shape=(4,), device="cpu")
    image = torch.ones(4)
    found = measure(network, image, 0, weight[0], torch.zeros(4))
    assert found["drop at 1"] == 4
    assert found["changed at 1"] == 0
    assert np.isclose(found["insertion"], float(torch.tensor([[4.0, 0.0]]).softmax(1)[0, 0]))
