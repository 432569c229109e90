"""The curves of a generated suite: coverage and adversarial tests against distance."""

from pathlib import Path
from typing import Any

from l0tre.figures.canvas import BLUE, GREY, LIGHT, ORANGE, VERMILLION, save
from l0tre.figures.tables import Rows

__all__ = ["adversarial_curve", "coverage_curve"]


def coverage_curve(rows: Rows, unit: str, path: Path) -> tuple[Path, ...]:
    """Coverage against the distance that tests may have.

    Args:
        rows: With ``l0``, ``coverage``, ``at_most`` (what is proved that no suite exceeds) and ``random`` (``None``
            for nothing), shares from 0 to 1.
        unit: What a changed group is called.
        path: Where to write, without a suffix.

    Returns:
        The files written.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        sizes = [row["l0"] for row in rows]
        axes.step(sizes, [100 * row["at_most"] for row in rows], where="post", color=GREY, ls=":", label="proved limit")
        axes.step(sizes, [100 * row["coverage"] for row in rows], where="post", color=BLUE, label="suite")
        if all(row["random"] is not None for row in rows):
            axes.step(sizes, [100 * row["random"] for row in rows], where="post", color=ORANGE, label="random changes")
        _finish(axes, sizes, unit, "neuron coverage (%)")

    return save(path, rows, draw, (6.0, 3.8))


def adversarial_curve(rows: Rows, unit: str, path: Path) -> tuple[Path, ...]:
    """The adversarial tests up to each distance.

    Args:
        rows: With ``l0``, ``share_of_adversarial`` and ``adversarial_share``, shares from 0 to 1.
        unit: What a changed group is called.
        path: Where to write, without a suffix.

    Returns:
        The files written.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        sizes = [row["l0"] for row in rows]
        part = [100 * row["share_of_adversarial"] for row in rows]
        axes.step(sizes, part, where="post", color=VERMILLION, label="of all adversarial tests, so many are as near")
        near = [100 * row["adversarial_share"] for row in rows]
        axes.step(sizes, near, where="post", color=GREY, label="of all tests as near, so many are adversarial")
        _finish(axes, sizes, unit, "tests (%)")

    return save(path, rows, draw, (6.0, 3.8))


def _finish(axes: Any, sizes: list[int], unit: str, label: str) -> None:
    axes.set_xlabel(f"L0 distance from the seed ({unit}s)")
    axes.set_ylabel(label)
    axes.set_ylim(0, 102)
    axes.set_xlim(0, max(1, *sizes))
    axes.grid(color=LIGHT)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
