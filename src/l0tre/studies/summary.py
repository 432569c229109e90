"""What a study leaves behind: ``summary.md``, ``summary.json``, and the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l0tre.figures.canvas import cannot_draw
from l0tre.figures.tables import Rows, markdown, write_json, write_text
from l0tre.studies.runs import RunData

__all__ = ["RETRAINED", "Figure", "Section", "Summary", "run_rows", "write_summary"]

RETRAINED = (
    "The networks were trained anew and the images were drawn anew: figures can differ from the paper's for these "
    "reasons alone. Bounds are about these networks and these images only."
)


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows, and its files (the CSV first, then the PNG if it was drawn)."""

    caption: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Section:
    """A part of a summary: its heading, its table, and whether it belongs to the brief form."""

    heading: str
    rows: Rows
    brief: bool = True


@dataclass(frozen=True)
class Summary:
    """What a study found.

    Attributes:
        text: The summary as markdown.
        brief: Its most important parts.
        facts: The same for programs.
        files: All files written.
        left_out: Why figures were left out, else empty.
        finished: Whether all runs found are complete.
    """

    text: str
    brief: str
    facts: Mapping[str, Any]
    files: tuple[Path, ...]
    left_out: str
    finished: bool


def run_rows(runs: Sequence[RunData]) -> Rows:
    """One row for each run: its settings and where it stands."""
    return [
        {
            "run": run.name,
            "network": run.network,
            "kind": run.kind,
            "guarantee": run.guarantee,
            "attack": run.latest.config["settings"].get("attack_queries"),
            "epsilon": run.latest.config["settings"]["epsilon"],
            "max_t": run.latest.config["settings"]["max_t"],
            "images": len(run.latest.images) + len(run.latest.excluded),
            "misclassified": len(run.latest.excluded),
            "lower": run.latest.lower,
            "upper": run.latest.upper,
            "estimate": run.latest.estimate,
            "radius known exactly": run.latest.converged / len(run.latest.images),
            "complete": run.latest.finished,
            "seconds": run.latest.seconds,
            "device": run.latest.config["device"],
        }
        for run in runs
    ]


def write_summary(
    out: Path,
    title: str,
    runs: Sequence[RunData],
    sections: Sequence[Section],
    facts: Mapping[str, Any],
    figures: Sequence[Figure],
) -> Summary:
    """Write the summary of a study.

    Args:
        out: Its folder.
        title: Its heading.
        runs: The runs behind it.
        sections: Its tables.
        facts: What the JSON holds beside runs and figures.
        figures: What was drawn.

    Returns:
        The summary.
    """
    left_out = cannot_draw()
    rows = run_rows(runs)
    parts = [f"# {title}", RETRAINED]
    open_ = [run.name for run in runs if not run.latest.finished]
    if open_:
        parts.append(
            f"**Not complete:** {', '.join(open_)}. The bounds hold as they are; the same command goes on from here."
        )
    sections = [section for section in sections if section.rows]
    brief = [*parts, *(_text(section) for section in sections if section.brief)]
    parts += map(_text, (*sections, Section("Runs", rows)))
    parts.append("## Figures")
    if left_out:
        parts.append(f"Left out: {left_out}. Then draw them with `--figures-only`; their data is in the CSV files.")
    for figure in figures:
        links = " ".join(f"[{path.suffix[1:]}]({path.relative_to(out).as_posix()})" for path in figure.files)
        parts.append(f"- {figure.caption} {links}")
    text = "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"
    every = {
        **facts,
        "runs": rows,
        "figures": [
            {"caption": figure.caption, "files": [path.relative_to(out).as_posix() for path in figure.files]}
            for figure in figures
        ],
        "figures_left_out": left_out,
    }
    written = (write_text(out / "summary.md", text), write_json(out / "summary.json", every))
    drawn = tuple(path for figure in figures for path in figure.files)
    return Summary(text, "\n\n".join(brief), every, (*written, *drawn), left_out, not open_)


def _text(section: Section) -> str:
    return f"## {section.heading}\n\n{markdown(section.rows)}"
