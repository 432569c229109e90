"""A run on a live page: it moves, survives a lost connection, can be stopped."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.serve import Runs, background
from l0tre.store import clear_stop
from tests.tools import NO_ATTACK

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
pytest.importorskip("uvicorn", reason="the extra live is not installed")

from playwright.sync_api import Page, expect

from tests.browser import FAILED


class Weighted(nn.Module):
    """Two classes: 9 times the first value against the sum of all others."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return torch.stack([9 * x[:, 0], x[:, 1:].sum(1)], 1)


@pytest.mark.slow
@pytest.mark.parametrize("tab", [FAILED], indirect=True)
def test_a_run_moves_on_its_page_and_stops(tab: Page, tmp_path: Path) -> None:
    images = torch.zeros(6, 1, 3, 3)
    images[:, 0, 0, 0] = torch.tensor([0.3, 0.4, 0.8, 0.5, 0.6, 0.7])
    run = tmp_path / "runs" / "a <b>"
    mask = torch.ones(1, 3, 3, dtype=torch.bool)
    mask[0, 0, 0] = False
    steps = l0tre.anytime(
        Weighted(),
        images,
        max_t=5,
        guarantee="grid",
        domain=l0tre.make_domain((1, 3, 3), mask=mask),
        out=run,
        tuning=l0tre.Tuning(record_seconds=0.0, grid_step_bytes=1),
        **NO_ATTACK,
    )
    first = next(steps)
    with background(Runs(tmp_path / "runs")) as address:
        tab.goto(address.page())
        tab.get_by_role("link", name="a <b>").click()
        expect(tab.locator("#phase")).to_have_text("at work")
        expect(tab.locator("table.images tbody tr")).to_have_count(6)
        expect(tab.locator("#tiles dd").first).to_have_text(f"{first.lower:.3f}")
        tab.get_by_role("searchbox").fill("0")  # what people typed and chose stays when rows change
        tab.locator("#sorted").get_by_text("values", exact=True).click()
        tab.locator("#classes").get_by_role("button", name="images").click()
        tab.locator("#time .plot").focus()
        tab.keyboard.press("ArrowRight")
        expect(tab.get_by_label("share of level t = 1")).to_be_visible()
        for _ in range(4):
            moved = next(steps)
        assert moved.lower > first.lower
        expect(tab.locator("#tiles dd").first).to_have_text(f"{moved.lower:.3f}")
        expect(tab.get_by_role("searchbox")).to_have_value("0")
        expect(tab.locator("#sorted details tbody tr")).to_have_count(6)
        expect(tab.locator("#classes th[aria-sort=ascending]")).to_have_text("images ↑")
        expect(tab.locator("#time .plot")).to_be_focused()
        tab.get_by_role("button", name="0", exact=True).click()  # the view of an image follows too
        view = tab.get_by_role("dialog").locator(".brief div", has_text="lower").locator("dd")
        seen = int(view.inner_text())
        for _ in range(12):
            moved = next(steps)
        assert moved.images[0].lower > seen
        expect(view).to_have_text(str(moved.images[0].lower))
        tab.keyboard.press("Escape")
        port = address.port

    expect(tab.get_by_text("the server has ended")).to_be_visible()
    moved = [next(steps) for _ in range(8)][-1]
    with background(Runs(tmp_path / "runs"), port=port) as address:
        expect(tab.locator("#tiles dd").first).to_have_text(f"{moved.lower:.3f}", timeout=15_000)
        expect(tab.get_by_text("the server has ended")).to_be_hidden()
        tab.get_by_role("button", name="stop").click()  # this server has a token of its own
        expect(tab.locator("#phase")).to_have_text("stopping")
        last = list(steps)
        assert last, "the run ends with what there is"
        assert not last[-1].finished
        expect(tab.locator("#phase")).to_have_text("stopped: it can be resumed")
        assert l0tre.resume(run, Weighted()).finished
        expect(tab.locator("#phase")).to_have_text("finished")
    clear_stop(run)


@pytest.mark.slow
@pytest.mark.parametrize("tab", [FAILED], indirect=True)
def test_a_page_of_a_run_that_is_not_there_yet_waits_for_it(tab: Page, tmp_path: Path) -> None:
    with background(Runs(tmp_path)) as address:
        tab.goto(address.page("late"))
        expect(tab.get_by_text("the server says: there is nothing of this name; trying again")).to_be_visible()
        network = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
        l0tre.evaluate(network, torch.rand(4, 1, 3, 3), max_t=1, out=tmp_path / "late", **NO_ATTACK)
        expect(tab.locator("table.images tbody tr")).to_have_count(4, timeout=20_000)
        expect(tab.get_by_text("trying again")).to_be_hidden()


def test_runs_side_by_side(tab: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 1, 3, 3)
    for name in ("first", "second"):
        network = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
        l0tre.evaluate(network, images, max_t=1, out=tmp_path / name, **NO_ATTACK)
    with background(Runs(tmp_path)) as address:
        tab.goto(address.page())
        for name in ("first", "second"):
            tab.get_by_label(f"choose {name}").check()
        tab.get_by_role("button", name="compare the chosen ones").click()
        expect(tab.locator("#figures tbody tr")).to_have_count(2)
        expect(tab.locator("#shares canvas")).to_be_visible()
