"""One file for a page: it needs no network, runs no script but its own, and opens from disk."""

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import l0tre
from l0tre.errors import require
from l0tre.files import write_whole
from l0tre.report.blocks import Document
from l0tre.report.packing import embedded, packed

__all__ = ["CODE", "asset", "code", "page_html", "page_write", "save_page", "style"]

# The order matters only for reading: functions are declared before anything runs.
CODE = ("base", "charts", "tables", "blocks", "pictures", "gallery", "image", "data", "live", "main")
UPLOT = ("uplot/uPlot.iife.min.js", "uplot/uPlot.min.css")
# Nothing from outside, no script or style but those whose digests the page names.
POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)


@cache
def asset(name: str) -> str:
    """A file of ``assets/``."""
    return files("l0tre.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


@cache
def code() -> str:
    """The script of a page: the chart library, then the components, in one scope of their own."""
    own = "\n".join(asset(f"{name}.js") for name in CODE)
    return f'{asset(UPLOT[0])}\n(() => {{\n"use strict";\n{own}\nstart();\n}})();\n'


@cache
def style() -> str:
    """The style sheet of a page."""
    return f"{asset(UPLOT[1])}\n{asset('style.css')}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def page_html(document: Document) -> str:
    """A document as one HTML file.

    Args:
        document: What it shows.

    Returns:
        The page. All text in it comes from data, is escaped, and is put in by scripts as text only.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    jinja2 = require("jinja2", "report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    markup = require("markupsafe", "report").Markup
    policy = POLICY.format(script=_digest(code()), style=_digest(style()))
    gallery = document.gallery
    return str(
        environment.from_string(asset("page.html.jinja")).render(
            title=document.title,
            policy=policy,
            version=l0tre.__version__,
            style=markup(style()),
            code=markup(code()),
            blocks=document.blocks,
            page=markup(embedded(page_data(document))),
            packed="" if gallery is None else packed({"result": gallery.result, "extras": gallery.extras}),
            sheets=markup(embedded([] if gallery is None else gallery.sheets)),
        )
    )


def page_data(document: Document) -> dict[str, Any]:
    """What the components draw, without the rows of the gallery."""
    return {"title": document.title, "blocks": document.blocks, "state": document.state, **document.extra}


def page_write(document: Document) -> Callable[[Path], object]:
    """What writes a page to a path."""
    text = page_html(document)
    return lambda path: path.write_text(text, encoding="utf-8")


def save_page(document: Document, path: str | Path) -> Path:
    """Write a page: it appears whole or not at all.

    Args:
        document: What it shows.
        path: The file; its folder is made.

    Returns:
        The file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(target, page_write(document))
