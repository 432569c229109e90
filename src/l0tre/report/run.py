"""The report of a run folder: what its page is made from, and the files that are written."""

from collections.abc import Callable, Sequence
from pathlib import Path

from l0tre.api.certificates import certificate_path
from l0tre.evaluation.results import Snapshot
from l0tre.report.evaluation import PageSource, evaluation_page
from l0tre.report.inputs import Details
from l0tre.report.markdown import page_markdown
from l0tre.report.page import page_write
from l0tre.store import export_run, read_inputs, read_levels, read_maps, read_scores, read_snapshot, read_timelines

__all__ = ["read_run", "report_writes", "write_report"]

NAME = "report.html"


def read_run(folder: Path) -> PageSource:
    """All that a page shows of a run, as last recorded; works while another process goes on with it.

    Raises:
        StoreError: If the folder is not a run, or is damaged.
    """
    snapshot, inputs = read_snapshot(folder), read_inputs(folder)
    moments = dict(zip((image.index for image in snapshot.images), read_timelines(folder), strict=False))
    timelines = {index: [(m.seconds, m.lower, m.upper) for m in found] for index, found in moments.items()}
    details = Details(timelines, read_scores(folder, snapshot), read_maps(folder), _certificates(folder, snapshot))
    return PageSource(snapshot, inputs, read_levels(folder), details)


def report_writes(
    folder: Path, run: PageSource, kinds: Sequence[str] = ("html",)
) -> dict[Path, Callable[[Path], object]]:
    """What writes ``report.html`` and ``report.md``.

    Args:
        folder: Where to.
        run: What it is about.
        kinds: Which of ``html`` and ``md``.

    Returns:
        For each file a function that writes it to a path.

    Raises:
        MissingExtraError: If jinja2 or Pillow is not installed.
    """
    document = evaluation_page(run, pictures="inside" if "html" in kinds else "none") if kinds else None
    writes: dict[Path, Callable[[Path], object]] = {}
    if document is not None and "html" in kinds:
        writes[folder / NAME] = page_write(document)
    if document is not None and "md" in kinds:
        text = page_markdown(document)
        writes[folder / "report.md"] = lambda path: path.write_text(text, encoding="utf-8")
    return writes


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder.

    Args:
        folder: The run folder; a run that is still going on is shown as last recorded.

    Returns:
        The page: one file that needs nothing else. It appears whole or not at all.

    Raises:
        MissingExtraError: If jinja2 or Pillow is not installed.
        StoreError: If the folder is not a run, is damaged, or cannot be written.
    """
    run = read_run(folder)
    return export_run(folder, report_writes(folder, run), run.snapshot)[0]


def _certificates(folder: Path, snapshot: Snapshot) -> dict[int, dict[str, str]]:
    """For each image whose proofs are kept: their files, and whether they were checked again."""
    found: dict[int, dict[str, str]] = {}
    for image in snapshot.images:
        files = [
            path for t in range(1, image.lower + 1) if (path := certificate_path(folder, image.index, t)).is_file()
        ]
        if files:
            names = ", ".join(path.relative_to(folder).as_posix() for path in files)
            again = "yes, by other code (l0tre check)" if image.checked else "not yet: l0tre check does it"
            found[image.index] = {"certificates": names, "checked again": again}
    return found
