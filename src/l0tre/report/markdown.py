"""A page as Markdown: for merge requests, wikis, terminals."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from l0tre.report.blocks import Block, Document

__all__ = ["page_markdown"]

TURNING = re.compile("[\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff]")
ROWS = 500  # inputs listed; bounds.csv has them all


def page_markdown(document: Document) -> str:
    """A document as Markdown: all figures and tables; of charts the summary."""
    parts = [f"# {_text(document.title)}"]
    for block in document.blocks:
        if block.get("title"):
            parts.append(f"## {_text(block['title'])}")
        parts += _block(block, document)
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block, document: Document) -> Iterator[str]:
    kind = block["type"]
    if kind == "answer":
        yield f"**{_text(block['text'])}**"
        yield "\n".join(f"- {_text(note)}" for note in block["notes"])
    elif kind == "tiles":
        yield _table(["", "", ""], block["tiles"])
    elif kind == "paragraphs":
        yield "\n".join(f"- **{_text(term)}**: {_text(text)}" for term, text in block["texts"])
    elif kind == "chart":
        yield _text(block["summary"])
    elif kind == "table":
        rows = [*block["rows"], *([block["total"]] if block["total"] else [])]
        yield _table([name for name, _ in block["heads"]], rows)
    elif kind == "matrix":
        rows = [[label, *counts] for label, counts in zip(block["labels"], block["counts"], strict=True)]
        yield _table(["label", *block["labels"]], rows)
    elif kind == "facts":
        yield _table(["", ""], block["rows"])
    elif kind == "gallery" and document.gallery is not None:
        yield from _gallery(block, document.gallery.result["images"])
    yield _text(block.get("note", ""))


def _gallery(block: Block, rows: Sequence[Any]) -> Iterator[str]:
    columns = [(path, name, kind) for path, name, kind in block["columns"] if kind != "picture"]
    names = block["names"]
    shown = [[_cell(row, path, kind, names) for path, _, kind in columns] for row in rows[:ROWS]]
    yield _table([name for _, name, _ in columns], shown)
    if len(rows) > ROWS:
        yield f"The first {ROWS:,} of {len(rows):,}; csv and json have all."


def _cell(row: Any, path: str, kind: str, names: Any) -> Any:
    if kind == "state":
        return _state(row)
    value = row
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if kind == "upper" and row.get("witness") is None:
        return "none"
    if kind == "class" and value is not None:
        classes = names.get("classes", ())
        return classes[value] if 0 <= value < len(classes) else value
    if kind == "image":
        name = names.get("inputs", {}).get(str(value))
        return value if name is None else f"{value} {name}"
    return value


def _state(row: Any) -> str:
    """As ``stateOf`` in the page's script."""
    if row.get("converged"):
        return "exact"
    if row.get("guarantee") == "sampled":
        return "sampled"
    return "tie" if row.get("blocked") and row.get("guarantee") != "lipschitz" else "open"


def _table(heads: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    rule = f"|{' --- |' * len(heads)}"
    head, *body = (f"| {' | '.join(_number(cell) for cell in line)} |" for line in (heads, *rows))
    return "\n".join((head, rule, *body))


def _number(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.5g}" if isinstance(cell, float) else _text(str(cell))


def _text(text: str) -> str:
    """Text that no markup can begin in, on one line; signs that turn what follows are written as numbers."""
    text = TURNING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    for sign in "\\`*_<>|[]#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
