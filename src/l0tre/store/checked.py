"""Which images of a run were checked again, as the run folder remembers it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from l0tre.evaluation.results import ImageBounds

__all__ = ["CHECKED", "read_checked", "with_checked"]

CHECKED = "checked.json"


def read_checked(folder: Path) -> Mapping[str, Any]:
    """What was checked of each image, by its index as text; nothing if the file is missing or no such file."""
    try:
        found = json.loads((folder / CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) else {}


def with_checked(folder: Path, bounds: Sequence[ImageBounds], fingerprint: str) -> list[ImageBounds]:
    """Bounds that say whether they were checked as they are now, for the network of the run."""
    known = read_checked(folder)

    def entry(image: ImageBounds) -> dict[str, object]:
        return {"lower": image.lower, "label": image.label, "fingerprint": fingerprint}

    return [replace(image, checked=known.get(str(image.index)) == entry(image)) for image in bounds]
