"""A browser for the tests of pages."""

import os
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; tests that need it say so where there is none."""
    path = os.environ.get("L0TRE_CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no chromium was found: install it (Debian: apt-get install chromium), or set L0TRE_CHROMIUM")
    with sync_playwright() as playwright:
        # Inside containers there is no sandbox; the pages are our own.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A page that fails the test if a script fails or anything is asked of the network."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert errors == []
