"""Results that can be looked at: in a notebook, as a page, as a figure.

What draws them is in a higher layer, and needs extras; results find it by name when somebody looks.
"""

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l0tre.errors import MissingExtraError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Shown"]

PLAIN = "L0TRE_NOTEBOOK"  # set to "plain", notebooks show text and small tables in place of pages


class Shown:
    """A result with a page of its own, see ``l0tre.report``."""

    def _repr_html_(self) -> str:
        """In a notebook: the page, inside a frame, under the result in words."""
        text = self._plain_html()
        if os.environ.get(PLAIN) == "plain":
            return text
        try:
            return f"{text}{_pages().framed(self)}"
        except MissingExtraError:
            return text

    def _plain_html(self) -> str:
        """What a notebook shows without the page."""
        return f"<p>{html.escape(repr(self))}</p>"

    def report(self, path: str | Path, images: Any = None) -> Path:
        """Write a page: one HTML file that needs nothing else.

        Args:
            path: The file.
            images: The inputs that the result is about, ``[images, *shape]``, for pictures and values before changes.

        Returns:
            The file.

        Raises:
            MissingExtraError: If the extra ``report`` is not installed.
            L0treError: If ``images`` are not those of this result.
        """
        written: Path = _pages().write(self, path, images)
        return written

    def plot(self) -> "Figure":
        """The charts of the page as a figure of matplotlib.

        Raises:
            MissingExtraError: If the extra ``figures`` is not installed.
        """
        drawn: Figure = _pages().drawn(self)
        return drawn


def _pages() -> Any:
    return require("l0tre.report.objects", "report")
