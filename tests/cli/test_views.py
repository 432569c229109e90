"""The tables and the live view fit a terminal of 80 columns."""

import io

import pytest
import torch
from rich.console import Console

from l0tre.cli.live import follow
from l0tre.cli.render import show_snapshot
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Snapshot, Witness

WITNESS = Witness(torch.tensor([1]), torch.tensor([1.0]), (1,), 7, -1.0, 1)


def snapshot(t: int = 12, *, finished: bool = False, images: int = 30) -> Snapshot:
    """A run of a day on large inputs."""
    bounds = tuple(
        ImageBounds(
            10_000 + i,
            3,
            50_000,
            i % 3,
            5 - i % 3,
            "grid",
            WITNESS if i % 4 else None,
            1,
            2 * (i % 5 == 0),
            99_999,
            10**9,
        )
        for i in range(images)
    )
    config = {
        "model": {"name": "net[/b].onnx"},
        "data": {"name": "images[0].npz"},
        "settings": {"grid": "uniform", "epsilon": 0.25, "colours": "grid"},
    }
    history = (HistoryPoint(1.0, 1, 1.0, 2.0),)
    excluded = tuple(Excluded(i, 4, 5) for i in range(7))
    return Snapshot(bounds, excluded, 90_000.0, t, "feature", finished, 0.3, history, config)


def screen(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=80, height=40, force_terminal=terminal, highlight=False, color_system=None), text


def test_the_table_fits_80_columns_and_cuts_nothing_off() -> None:
    console, text = screen(terminal=False)
    show_snapshot(snapshot(), console)
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in text.getvalue()
    assert sum("1,000,000,000" in line for line in lines) == 25
    assert "... and 5 more (of 30; --all lists them)" in lines
    assert "left out: 2 more inputs" in lines
    assert "net[/b].onnx on 30 inputs of images[0].npz (7 left out), bounds in features:" in lines


def test_all_images_are_listed_on_request() -> None:
    console, text = screen(terminal=False)
    show_snapshot(snapshot(), console, every=True)
    assert sum("1,000,000,000" in line for line in text.getvalue().splitlines()) == 30
    assert text.getvalue().count("left out: input") == 7


def test_one_image_is_not_counted_as_several() -> None:
    console, text = screen(terminal=False)
    show_snapshot(snapshot(images=1), console)
    assert "on 1 input of" in text.getvalue()


def test_an_upper_bound_without_an_input_is_not_called_shown() -> None:
    console, text = screen(terminal=False)
    show_snapshot(snapshot(images=1), console)  # the first image has no witness
    assert "upper bound  none    no adversarial input yet; each counts as 50001" in text.getvalue()
    assert "shown by stored adversarial inputs" not in text.getvalue()


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (False, True), (True, True)])
def test_the_live_view_is_silent_when_nobody_watches(terminal: bool, quiet: bool) -> None:
    console, text = screen(terminal=terminal)
    last = snapshot(finished=True)
    assert follow(iter([snapshot(), last]), console, quiet=quiet) is last
    assert text.getvalue() == ""


def test_the_live_view_shows_what_matters() -> None:
    console, text = screen(terminal=True)
    follow(iter([snapshot()]), console, quiet=False)
    for word in ("t = 12", "10 of 30", "mean gap", "queries/s", "ETA", "33%", "25:00:00"):
        assert word in text.getvalue()
