"""A browser for the tests of pages; the fixtures ``browser`` and ``tab`` are in ``conftest.py``."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["FAILED", "started", "tab_of"]

FAILED = "Failed to load resource"  # what a browser says of a server that is gone
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def started() -> "Iterator[Browser]":
    """Chromium without a window; tests that need it say so where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
    path = os.environ.get("L0TRE_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no chromium was found: install it (Debian: apt-get install chromium), or set L0TRE_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # Inside containers there is no sandbox; the pages are our own.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def tab_of(browser: "Browser", expected: str | None) -> "Iterator[Page]":
    """A page that fails the test if a script fails, or the browser complains of anything but what a test expects."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert [error for error in errors if expected is None or expected not in error] == []
