"""What holds for all tests: one thread a process, the same random examples every time."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from l0tre.zoo import weights_store as store
from tests.browser import started, tab_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Several test processes with two threads each get in each other's way.
torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of each test, and none of those marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    kept: dict[tuple[Path, str], pytest.Item] = {}
    for item in items:
        if item.get_closest_marker("slow") is None:
            kept.setdefault((item.path, getattr(item, "originalname", item.name)), item)
    chosen = list(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture
def only_sdnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all networks of the zoo only sdnn comes with the package."""
    folder = tmp_path / "bundled"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        source = store.bundled_folder().joinpath(f"sdnn.{suffix}")
        (folder / f"sdnn.{suffix}").write_bytes(source.read_bytes())
    monkeypatch.setattr(store, "bundled_folder", lambda: folder)


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """Chromium, for all tests of pages."""
    with started() as found:
        yield found


@pytest.fixture
def tab(browser: "Browser", request: pytest.FixtureRequest) -> "Iterator[Page]":
    """A page of it."""
    with tab_of(browser, getattr(request, "param", None)) as page:
        yield page
