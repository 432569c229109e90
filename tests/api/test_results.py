"""Results: iterated, indexed, shown, saved."""

import builtins
import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import l0tre
from l0tre.data import from_arrays
from l0tre.errors import ConfigError, DataError, MissingExtraError
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Snapshot, Witness
from tests.tools import plain_network, tiny_module

LONG = 160  # characters of the longest repr that is still short


def witness(position: int = 1, value: float = 0.5) -> Witness:
    return Witness(torch.tensor([position]), torch.tensor([value]), (position,), 2, -0.25, 1)


def snapshot() -> Snapshot:
    images = (
        ImageBounds(3, 0, 4, 1, 2, "certified", witness(), 1, 0, 0.5, 10),
        ImageBounds(7, 1, 4, 4, 5, "certified", None, 1),
    )
    config = {"model": {"name": "<b>net</b>"}, "settings": {}}
    left_out = (Excluded(5, 1, 0),)
    return Snapshot(images, left_out, 0.5, 1, "pixel", True, 1.0, (HistoryPoint(0.5, 1, 2.5, 3.5),), config)


def originals() -> Tensor:
    return torch.arange(8 * 4, dtype=torch.float32).reshape(8, 1, 2, 2) / 64


def test_a_result_gives_its_images_in_order() -> None:
    result = snapshot()
    assert list(result) == list(result.images)
    assert [image.index for image in result] == [3, 7]
    assert len(result) == 2
    assert l0tre.Result is l0tre.Snapshot


def test_a_result_is_indexed_by_position_in_the_data() -> None:
    result = snapshot()
    assert result[3] is result.images[0]
    assert result[7] is result.images[1]
    with pytest.raises(KeyError, match="input 5 was left out: classified as 0, labelled 1"):
        result[5]
    for missing in (0, 1, 4, -1):
        with pytest.raises(KeyError, match="not part of this evaluation"):
            result[missing]
    assert 3 in result
    assert 5 not in result
    assert 0 not in result
    assert result[3] in result


def test_bounds_with_witnesses_can_be_compared() -> None:
    bounds = snapshot()[3]
    assert bounds == replace(bounds, witness=witness())
    assert bounds != replace(bounds, witness=witness(value=0.25))
    assert bounds != replace(bounds, witness=None)
    assert witness() != "witness"
    assert len({witness(), witness()}) == 1


def test_a_table_has_a_row_for_each_image() -> None:
    pytest.importorskip("pandas")
    table = snapshot().to_dataframe()
    assert list(table.index) == [3, 7]
    assert table.loc[3, ["label", "lower", "upper", "converged", "guarantee"]].tolist() == [0, 1, 2, True, "certified"]
    assert table.loc[3, "becomes"] == 2
    assert table["becomes"].isna().tolist() == [False, True]
    assert not {"witness", "index"} & set(table.columns)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'l0tre\[tables\]'"):
        snapshot().to_dataframe()


def test_a_notebook_shows_a_table_without_markup_of_its_own() -> None:
    result = replace(snapshot(), unit="<script>")
    html = result._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == 3
    assert "5 (no witness)" in html
    many = replace(result, images=tuple(replace(result.images[0], index=place) for place in range(40)))
    assert "and 15 more" in many._repr_html_()


def test_a_folder_has_what_a_run_folder_has(tmp_path: Path) -> None:
    result = snapshot()
    files = result.save(tmp_path / "new" / "folder", originals())
    assert [file.name for file in files] == ["result.json", "bounds.csv", "witnesses.npz"]
    assert json.loads(files[0].read_text()) == json.loads(json.dumps(result.to_dict()))
    with files[1].open(newline="") as file:
        assert [(row["index"], row["lower"], row["upper"]) for row in csv.DictReader(file)] == [
            ("3", "1", "2"),
            ("7", "4", "5"),
        ]
    with np.load(files[2]) as arrays:
        assert arrays["index"].tolist() == [3]
        assert arrays["adversarial_label"].tolist() == [2]
        assert np.array_equal(arrays["original"][0], originals()[3].numpy())
        assert np.flatnonzero(arrays["adversarial"][0] != arrays["original"][0]).tolist() == [1]
        assert arrays["adversarial"][0].flatten()[1] == 0.5
    assert {file.name for file in files[0].parent.iterdir()} == {file.name for file in files}


def test_the_files_are_those_of_a_run(tmp_path: Path) -> None:
    module, shape = tiny_module("conv1", 3)
    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    result = l0tre.evaluate(plain_network(module, shape), images, max_t=1, epsilon=0.5, out=tmp_path / "run")
    for file in result.save(tmp_path / "own", images):
        stored = (tmp_path / "run" / file.name).read_bytes()
        if file.suffix == ".npz":
            with np.load(file) as own, np.load(tmp_path / "run" / file.name) as others:
                assert set(own) == set(others)
                assert all(np.array_equal(own[name], others[name]) for name in own)
        else:
            assert file.read_bytes() == stored


def test_without_images_the_folder_has_no_adversarial_inputs(tmp_path: Path) -> None:
    assert [file.name for file in snapshot().save(tmp_path)] == ["result.json", "bounds.csv"]


@pytest.mark.parametrize("name", ["one.json", "one.csv", "one.npz"])
def test_one_file(tmp_path: Path, name: str) -> None:
    assert snapshot().save(str(tmp_path / name), originals().numpy()) == (tmp_path / name,)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_some_images_come_with_their_positions(tmp_path: Path) -> None:
    (file,) = snapshot().save(tmp_path / "w.npz", originals()[[7, 3]], indices=[7, 3])
    with np.load(file) as arrays:
        assert np.array_equal(arrays["original"][0], originals()[3].numpy())


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    result = snapshot()
    with pytest.raises(ConfigError, match=r"\.json, \.csv, \.npz"):
        result.save(tmp_path / "result.txt")
    with pytest.raises(ConfigError, match="without the originals"):
        result.save(tmp_path / "w.npz")
    with pytest.raises(DataError, match=r"type torch\.uint8"):
        result.save(tmp_path / "w.npz", originals().to(torch.uint8))
    with pytest.raises(DataError, match="input 7 is not among the 5 given"):
        result.save(tmp_path / "w.npz", originals()[:5])
    with pytest.raises(DataError, match="8 inputs and 2 indices"):
        result.save(tmp_path / "w.npz", originals(), [3, 7])
    with pytest.raises(DataError, match="not those of this result"):
        result.save(tmp_path / "w.npz", originals()[..., :1, :1])
    assert list(tmp_path.iterdir()) == []


def test_what_is_shown_is_short() -> None:
    module, shape = tiny_module("conv1", 3)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    verdict = l0tre.verify(module, images[0], radius=1)
    for shown, begin in (
        (snapshot(), "Snapshot(2 inputs, 1 left out: lower 2.500, upper 3.500 pixels, certified"),
        (verdict, f"Verdict({verdict.answer}: at most 1 pixel; lower {verdict.lower}, upper {verdict.upper}"),
        (l0tre.attack_details(module, images, budget=50), "Attacked("),
        (
            l0tre.compare({"a": module, "b": module}, images, max_t=1, guarantee="grid", epsilon=1.0),
            "Comparison(a, b: ",
        ),
        (l0tre.sensitivity(module, images), "Sensitivity(2 inputs, "),
        (from_arrays(images, [0, 1]), f"Dataset(array: 2 images of shape {shape}, with labels)"),
        (witness(), "Witness(1 changed, becomes 2, margin -0.25)"),
    ):
        text = builtins.repr(shown)
        assert text.startswith(begin)
        assert len(text) < LONG
        assert "\n" not in text
        assert "tensor" not in text
