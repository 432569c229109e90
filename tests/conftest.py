"""What holds for all tests: one thread a process, the same random examples every time."""

import os
import random
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

# Whatever imports Ray first in this process: a session of l0tre listens on the loopback alone, and asks for this.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
# Several test processes with two threads each get in each other's way.
torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one case of each test, and none of those marked slow")
    words = "all cases of tests marked family, not a third of them, and tests marked long"
    parser.addoption("--thorough", action="store_true", help=words)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        tests.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    if config.getoption("quick"):
        chosen = {cases[0] for cases in tests.values() if cases[0].get_closest_marker("slow") is None}
    elif config.getoption("thorough"):
        return
    else:
        chosen = {
            case
            for (_, name), cases in tests.items()
            for case in _third(name, cases)
            if case.get_closest_marker("long") is None
        }
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def _third(name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    """Of a test marked family a third of its cases, rounded up and the same ones every time; else all."""
    if cases[0].get_closest_marker("family") is None:
        return cases
    return random.Random(name).sample(cases, -(-len(cases) // 3))


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
