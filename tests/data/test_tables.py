from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from l0tre.data import from_arrays, load_data, select
from l0tre.data.tables import TableColumns, raw_of_frame
from l0tre.errors import DataError

TABLE = """id,age,colour,weight,species
a1,3,red,1.5,wolf
a2,7,blue,2,dog
a3,5,red,0.25,dog
"""


def write(path: Path, text: str = TABLE) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_label_column_by_name_with_words(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "t.csv"), label_column="species", row_name="id")
    assert data.names.features == ("age", "colour", "weight")
    assert data.names.classes == ("dog", "wolf")
    assert data.names.inputs == ("a1", "a2", "a3")
    assert data.names.words == {1: ("blue", "red")}
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 0]
    assert data.images.tolist() == [[3, 1, 1.5], [7, 0, 2], [5, 1, 0.25]]
    assert data.names.value(1, 1.0) == "red"
    assert data.names.value(0, 1.0) == "1"


@pytest.mark.parametrize("column", ["-1", "4", "species"])
def test_label_column_by_position(tmp_path: Path, column: str) -> None:
    data = load_data(write(tmp_path / "t.csv"), label_column=column, drop=["id", "colour"])
    assert data.names.features == ("age", "weight")
    assert data.names.classes == ("dog", "wolf")


def test_no_labels_and_numbers_as_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,0\n2,3\n")
    whole = load_data(path, label_column="none")
    assert whole.labels is None
    assert whole.names.features == ("x", "y")
    numbered = load_data(path, label_column="y")
    assert numbered.labels is not None
    assert numbered.labels.tolist() == [0, 3]
    assert numbered.names.classes == ()


def test_a_first_column_without_a_name_names_the_rows(tmp_path: Path) -> None:
    for header in ("", "Unnamed: 0"):
        data = load_data(write(tmp_path / "t.csv", f"{header},x,y\n7,1,0\n8,2,1\n"), label_column="y")
        assert data.names.inputs == ("7", "8")
        assert data.names.features == ("x",)


def test_names_follow_a_selection(tmp_path: Path) -> None:
    data = select(load_data(write(tmp_path / "t.csv"), label_column="species", row_name="id"), indices=[2, 0])
    assert data.names.inputs == ("a3", "a1")
    assert data.names.to_config(data.indices)["inputs"] == {"2": "a3", "0": "a1"}


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        (TABLE, "kind", "no column 'kind'; it has id, age, colour, weight, species"),
        ("1,2\n3,4\n", "0", "the first line holds numbers"),
        ("a,b\n1\n", "b", "line 2 holds 1 values; expected 2"),
        ("a,a\n1,2\n", "a", "two columns are called 'a'"),
        ("a,b\n1,0\n,0\n2,0\n3,0\n", "b", "column 'a' has no value in row 1"),
        ("a\n1\n", "a", "no column is left"),
        ("a,b\n", "b", "holds no rows"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, label: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(write(tmp_path / "t.csv", text), label_column=label)


def test_columns_are_for_tables_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with pytest.raises(DataError, match="are for tables"):
        load_data(tmp_path / "a.npy", label_column="y")
    with pytest.raises(DataError, match="need `label_column`"):
        load_data(write(tmp_path / "t.csv"), drop=["id"])


def test_data_frame() -> None:
    frame = pd.DataFrame({"x": [1, 2], "c": ["u", "v"], "ok": [True, False], "y": ["no", "yes"]}, index=["r", "s"])
    raw = raw_of_frame(frame, TableColumns("y"))
    assert raw.names.features == ("x", "c", "ok")
    assert raw.names.inputs == ("r", "s")
    assert raw.names.words == {1: ("u", "v")}
    assert raw.images.tolist() == [[1, 0, 1], [2, 1, 0]]
    assert raw_of_frame(frame.reset_index(drop=True), TableColumns("y")).names.inputs == ()


def test_names_of_classes_as_labels() -> None:
    data = from_arrays(torch.zeros(3, 2), ["b", "a", "b"])
    assert data.labels is not None
    assert data.labels.tolist() == [1, 0, 1]
    assert data.names.classes == ("a", "b")
    assert data.names.label(1) == "b"
    assert data.names.label(5) == "5"


def test_header_of_a_csv_names_the_columns(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "t.csv", "label,a,b\n1,0.5,2\n"))
    assert data.names.features == ("a", "b")


@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA])
def test_a_cell_without_a_value_is_no_word_and_no_number(gap: object) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "c": ["u", "v", "u"]}).astype({"c": object})
    frame.loc[1, "c"] = gap
    with pytest.raises(DataError, match="column 'c' has no value in row 1: leave such rows out"):
        raw_of_frame(frame, TableColumns("none"))
    with pytest.raises(DataError, match="column 'c' has no value in row 1"):
        raw_of_frame(frame.astype({"c": "category"}), TableColumns("none"))
    assert raw_of_frame(frame, TableColumns("none", drop=("c",))).images.tolist() == [[1], [2], [3]]
    numbers = pd.DataFrame({"x": [1.0, float("nan"), float("nan")]})
    with pytest.raises(DataError, match=r"column 'x' has no value in row 1 \(and 1 more\)"):
        raw_of_frame(numbers, TableColumns("none"))


def test_an_empty_cell_of_a_csv_is_no_word(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'colour' has no value in row 1"):
        load_data(write(tmp_path / "t.csv", TABLE.replace("blue", "")), label_column="species", row_name="id")


def test_whole_numbers_must_stay_different_as_floats() -> None:
    frame = pd.DataFrame({"account": [1_234_567_890, 1_234_567_891], "x": [1, 2]})
    with pytest.raises(DataError, match="column 'account' holds whole numbers that 32-bit floats cannot tell apart"):
        raw_of_frame(frame, TableColumns("none"))
    assert raw_of_frame(frame, TableColumns("none", drop=("account",))).images.tolist() == [[1], [2]]


def test_classes_in_the_order_of_the_network(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    data = load_data(path, label_column="species", row_name="id", classes=["wolf", "dog"])
    assert data.labels is not None
    assert (data.labels.tolist(), data.names.classes) == ([0, 1, 1], ("wolf", "dog"))
    with pytest.raises(DataError, match="the label 'dog' is no class; the classes are wolf, cat"):
        load_data(path, label_column="species", row_name="id", classes=["wolf", "cat"])
    numbers = load_data(write(tmp_path / "n.csv", "x,y\n1,0\n2,1\n"), label_column="y", classes=["no", "yes"])
    assert numbers.names.classes == ("no", "yes")
