from pathlib import Path

from l0tre.figures.tables import Rows, markdown, write_csv


def test_markdown_is_a_table_with_plain_values() -> None:
    rows: Rows = [{"name": "a|b", "value": 0.5, "known": True}, {"name": None, "value": 0.00123, "known": False}]
    assert markdown(rows).splitlines() == [
        "| name | value | known |",
        "| --- | --- | --- |",
        "| a\\|b | 0.5 | yes |",
        "| - | 0.0012 | no |",
    ]
    assert markdown([]) == ""


def test_csv_has_a_header_and_every_row(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [{"a": 1, "b": "x, y"}, {"a": 2, "b": None}])
    assert path.read_text() == 'a,b\n1,"x, y"\n2,\n'
    assert write_csv(tmp_path / "none.csv", []).read_text() == ""
