"""How large a page of many images is, and how long a browser takes to open and to scroll it.

``python -m benchmarks.pages``. Bounds are made up, as many changed pixels as a small network needs; the images are
real. Needs playwright and Chromium.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright

from l0tre.data import load_data, select
from l0tre.domain import make_domain
from l0tre.evaluation.results import HistoryPoint, ImageBounds, Snapshot, make_witness
from l0tre.report import PageSource, evaluation_page, save_page
from l0tre.store import Inputs

ROWS = "table.images tbody tr"
SCROLL = """async () => {
    const frames = [];
    let last = performance.now();
    for (let y = 0; y < 4000; y += 60) {
        scrollTo(0, y);
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - last);
        last = performance.now();
    }
    return Math.max(...frames);
}"""


def made_up(images: torch.Tensor) -> PageSource:
    """A run on real images with bounds that nobody proved."""
    generator = torch.Generator().manual_seed(0)
    shape = tuple(images.shape[1:])
    domain = make_domain(shape)
    bounds = []
    for index, image in enumerate(images):
        lower = index % 4
        count = lower + 1 + index % 3
        places = torch.randperm(domain.groups, generator=generator)[:count].sort().values
        changed = image.flatten().clone()
        members = domain.members[places].flatten()
        changed[members] = 1 - changed[members].round()
        witness = make_witness(image, changed.reshape(shape), tuple(places.tolist()), (index + 1) % 10, -0.5, 1)
        bounds.append(
            ImageBounds(index, index % 10, domain.groups, lower, count, "certified", witness, 1, 0, 0.2, 2000)
        )
    config: dict[str, Any] = {
        "model": {"name": "made up"},
        "data": {"name": "real images", "labelled": True},
        "domain": {"unit": "pixel"},
        "settings": {"max_t": 2, "epsilon": 0.25, "grid": "uniform", "colours": "grid", "memory_bytes": 0},
    }
    history = (HistoryPoint(1.0, 1, 1.0, 3.0),)
    snapshot = Snapshot(tuple(bounds), (), 2.0, 2, "pixel", True, 1.0, history, config, "1-made-up")
    return PageSource(snapshot, Inputs(images, None, tuple(range(len(images))), domain), (snapshot,))


def opened(page: Path) -> dict[str, float]:
    """What a browser takes: seconds until rows are there, and of its page's thread; the longest frame of scrolling."""
    path = os.environ.get("L0TRE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        session = tab.context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def work() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

        began = time.perf_counter()
        tab.goto(page.as_uri())
        tab.locator(ROWS).first.wait_for()
        seconds, busy = time.perf_counter() - began, work()
        longest = tab.evaluate(SCROLL)
        found = {"open s": seconds, "of work s": busy, "scrolling, work s": work() - busy, "longest frame ms": longest}
        browser.close()
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    asked = parser.parse_args()
    images = select(load_data(asked.data, data_dir=asked.data_dir), limit=asked.images).images
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        page = save_page(evaluation_page(made_up(images)), Path(folder) / "report.html")
        facts = {"images": len(images), "MB": page.stat().st_size / 1e6, "written s": time.perf_counter() - began}
        print(json.dumps({**{name: round(value, 3) for name, value in facts.items()}, **opened(page)}))


if __name__ == "__main__":
    main()
