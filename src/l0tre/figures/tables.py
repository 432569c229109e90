"""Tables: rows of named values as CSV and markdown."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from l0tre.files import write_whole

__all__ = ["Rows", "markdown", "write_csv", "write_json", "write_text"]

Rows = Sequence[Mapping[str, Any]]


def write_csv(path: Path, rows: Rows) -> Path:
    """Write rows, which all have the same keys, as CSV; an empty table is an empty file."""

    def write(target: Path) -> None:
        with target.open("w", newline="", encoding="utf-8") as file:
            if rows:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    return write_whole(path, write)


def write_json(path: Path, facts: Any) -> Path:
    """Write facts as JSON."""
    return write_text(path, json.dumps(facts, indent=1) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a text file."""
    return write_whole(path, lambda target: target.write_text(text, encoding="utf-8"))


def markdown(rows: Rows) -> str:
    """Rows as a markdown table; numbers to three significant digits after the point, missing values as a dash."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"
    return str(value).replace("|", "\\|")
