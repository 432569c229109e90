"""One run as its page needs it, read again only when its database changed, and seldom if reading is slow."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from l0tre.errors import L0treError
from l0tre.evaluation.results import Snapshot
from l0tre.report import PageSource, evaluation_page, page_data, read_run
from l0tre.report.blocks import Document
from l0tre.report.pictures import draw_sheet, limits
from l0tre.store import DATABASE, INPUTS, read_snapshot, stop_asked

__all__ = ["RunView", "Statuses", "Watch", "changes", "silent_if_old", "status_of"]

SECONDS = 0.5  # at least between two readings
SILENT = 120.0  # seconds without a step after which a run may have lost its process
DUTY = 8  # so many times as long as a reading took until the next one: a run at work must not feel it


@dataclass(frozen=True)
class RunView:
    """A run at one moment.

    Attributes:
        number: Goes up with every reading that found something new.
        run: What was read.
        document: Its page.
        blocks: The page's blocks as JSON, by name.
        rows: The rows of its table as JSON.
    """

    number: int
    run: PageSource
    document: Document
    blocks: Mapping[str, str]
    rows: tuple[str, ...]

    def whole(self) -> dict[str, Any]:
        """All that a page needs to begin."""
        gallery = self.document.gallery
        result = {} if gallery is None else {**gallery.result, "history": []}
        return {**page_data(self.document), "result": result, "number": self.number}


def changes(before: RunView, after: RunView) -> dict[str, Any]:
    """What a page that shows one state needs to show another one: blocks and rows that differ."""
    found: dict[str, Any] = {"number": after.number, "state": after.document.state, "title": after.document.title}
    if list(before.blocks) != list(after.blocks) or len(before.rows) != len(after.rows):
        return {**after.whole(), "fresh": True}
    by_name = {block["id"]: block for block in after.document.blocks}
    found["blocks"] = [by_name[name] for name, text in after.blocks.items() if before.blocks[name] != text]
    images = [] if after.document.gallery is None else after.document.gallery.result["images"]
    pairs = enumerate(zip(before.rows, after.rows, strict=True))
    found["rows"] = [[row, images[row]] for row, (old, new) in pairs if old != new]
    return found


class Watch:
    """Reads one run folder for everybody who looks at it; safe to be asked from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.state: RunView | None = None
        self.signature: tuple[tuple[int, int], ...] = ()
        self.next = 0.0
        self.sheets: dict[int, bytes] = {}

    def current(self, *, newest: bool = False) -> RunView:
        """The run as last recorded, or, if reading it is slow and the newest is not wanted, as it was a moment ago.

        Raises:
            StoreError: If the folder is no run any more, or damaged.
        """
        with self.lock:
            now = time.monotonic()
            signature = _signature(self.folder)
            if self.state is not None and (signature == self.signature or (now < self.next and not newest)):
                return self.state
            run = read_run(self.folder)
            document = evaluation_page(run, pictures="served")
            images = () if document.gallery is None else document.gallery.result["images"]
            number = 1 if self.state is None else self.state.number + 1
            blocks = {block["id"]: _text(block) for block in document.blocks}
            self.state = RunView(number, run, document, blocks, tuple(map(_text, images)))
            self.signature = signature
            self.next = time.monotonic() + max(SECONDS, DUTY * (time.monotonic() - now))
            return self.state

    def sheet(self, number: int) -> bytes:
        """A sheet of pictures as a PNG file.

        Raises:
            IndexError: If there is none of this number.
        """
        run = self.current().run
        if run.inputs is None:
            raise IndexError(number)
        places = {index: row for row, index in enumerate(run.inputs.indices)}
        with self.lock:
            if number not in self.sheets:
                images = run.inputs.images[[places[image.index] for image in run.snapshot.images]]
                domain = run.inputs.domain
                self.sheets[number] = draw_sheet(images, number, *limits(domain.low, domain.high))
            return self.sheets[number]


class Statuses:
    """How runs are, read again only where something changed."""

    def __init__(self) -> None:
        self.known: dict[Path, tuple[object, dict[str, Any]]] = {}

    def of(self, folder: Path) -> dict[str, Any]:
        """See :func:`status_of`."""
        signature = (*_signature(folder), stop_asked(folder))
        before = self.known.get(folder)
        if before is None or before[0] != signature:
            try:
                status = status_of(folder, read_snapshot(folder))
            except L0treError as error:
                status = {"phase": "damaged", "reason": str(error)}
            self.known[folder] = before = (signature, status)
        status = silent_if_old(before[1])
        return {
            name: value for name, value in status.items() if name != "age"
        }  # a list that changes only with its runs


def silent_if_old(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status with the age of the last step; a run at work that is silent for long may have lost its process."""
    if status["phase"] not in ("at work", "stopping"):
        return dict(status)
    age = max(0.0, time.time() - status["written"])
    phase = "silent" if age > SILENT else status["phase"]
    return {**status, "phase": phase, "age": round(age)}


def status_of(folder: Path, found: Snapshot) -> dict[str, Any]:
    """How a run is: ``at work``, ``stopping``, ``stopped`` or ``finished``, and what is known of it.

    A sample has no lower bound, and upper bounds are of images with a witness. A run at work says how much of its level
    is done.
    """
    exported = _exported_state(folder) == found.state
    if found.finished:
        phase = "finished"
    elif exported:
        phase = "stopped"
    else:
        phase = "stopping" if stop_asked(folder) else "at work"
    config = found.config
    running = phase in ("at work", "stopping")
    sampled = all(image.guarantee == "sampled" for image in found.images)
    known = [image.upper for image in found.images if image.witness is not None]
    return {
        "phase": phase,
        "model": config.get("model", {}).get("name", ""),
        "data": config.get("data", {}).get("name", ""),
        "images": len(found.images),
        **({} if sampled else {"lower": round(found.lower, 4)}),
        **({"upper": round(fmean(known), 4)} if known else {}),
        "exact": round(found.converged / len(found.images), 4),
        "unit": found.unit,
        "t": found.t,
        "max_t": config.get("settings", {}).get("max_t"),
        **({"share": round(found.level_share, 3)} if running else {}),
        "seconds": round(found.seconds, 1),
        "written": round(max(moment for moment, _ in _signature(folder)) / 1e9),
    }


def _exported_state(folder: Path) -> str:
    """The state that the exports of a run were made from: they are written when its work ends."""
    try:
        with (folder / "bounds.csv").open(encoding="utf-8") as file:
            head, first = file.readline().rstrip().split(","), file.readline().rstrip().split(",")
        return first[head.index("state")]
    except (OSError, ValueError, IndexError):
        return ""


def _signature(folder: Path) -> tuple[tuple[int, int], ...]:
    """Changes whenever a run is written: times (nanoseconds) and sizes of its files."""
    found = []
    for name in (DATABASE, f"{DATABASE}-wal", INPUTS, "scores.npz", "maps.npz", "checked.json", "bounds.csv"):
        try:
            status = (folder / name).stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _text(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
