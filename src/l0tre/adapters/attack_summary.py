"""A comparison of attacks in figures and files."""

import csv
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.adapters.compare_attacks import OWN, AttackComparison, AttackResult

__all__ = ["Row", "common_images", "make_rows", "to_dict", "write_files"]


@dataclass(frozen=True)
class Row:
    """One attack in figures; ``None`` where there is nothing to take a mean of.

    Attributes:
        name: The attack's.
        package: Where it comes from.
        found: Number of images with an adversarial input.
        success: Their share of all images.
        mean_pixels: Mean number of changed pixels over the images that all attacks found.
        median_pixels: Median, likewise.
        mean_features: Mean number of changed values, likewise.
        own_mean_pixels: Mean over the images that this attack found.
        own_mean_features: Likewise.
        forwards: Samples of forward passes for each image.
        backwards: Samples of backward passes for each image.
        seconds: Time for each image.
        at_least_as_good: Share of images on which l0tre needs no more changes than this attack, in l0tre's unit; an
            attack that finds nothing needs infinitely many.
        error: Why it failed or stopped.
    """

    name: str
    package: str
    found: int
    success: float
    mean_pixels: float | None
    median_pixels: float | None
    mean_features: float | None
    own_mean_pixels: float | None
    own_mean_features: float | None
    forwards: float
    backwards: float
    seconds: float
    at_least_as_good: float | None
    error: str


def common_images(comparison: AttackComparison) -> Tensor:
    """Images that every attack found, bool ``[n]``; attacks that found nothing at all are left out of this."""
    common = torch.ones(len(comparison.images), dtype=torch.bool)
    for result in comparison.results:
        if result.found.any():
            common &= result.found
    return common


def make_rows(comparison: AttackComparison) -> tuple[Row, ...]:
    """One row for each attack, in the order of the results."""
    common = common_images(comparison)
    own = next((result for result in comparison.results if result.name == OWN), None)
    return tuple(_row(result, own, common, comparison.unit) for result in comparison.results)


def _row(result: AttackResult, own: AttackResult | None, common: Tensor, unit: str) -> Row:
    count = len(result.found)
    shared = common & result.found
    good = None
    if own is not None and own is not result and not result.error:
        good = float((_distance(own, unit) <= _distance(result, unit)).double().mean())
    return Row(
        result.name,
        result.package,
        int(result.found.sum()),
        float(result.found.double().mean()),
        _mean(result.pixels[shared]),
        float(np.median(result.pixels[shared].numpy())) if shared.any() else None,
        _mean(result.features[shared]),
        _mean(result.pixels[result.found]),
        _mean(result.features[result.found]),
        result.forwards / count,
        result.backwards / count,
        result.seconds / count,
        good,
        result.error,
    )


def _distance(result: AttackResult, unit: str) -> Tensor:
    changed = result.features if unit == "feature" else result.pixels
    return changed.double().masked_fill(~result.found, float("inf"))


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None


def to_dict(comparison: AttackComparison) -> dict[str, Any]:
    """The comparison as it is written to ``compare.json``."""
    common = common_images(comparison)
    return {
        "images": len(comparison.images),
        "common_images": [i for i, shared in zip(comparison.indices, common.tolist(), strict=True) if shared],
        "excluded": [{"index": e.index, "reason": e.reason} for e in comparison.excluded],
        "unit": comparison.unit,
        "budget": comparison.budget,
        "attacks": [asdict(row) for row in make_rows(comparison)],
        "config": comparison.config,
    }


def write_files(comparison: AttackComparison, folder: Path) -> list[Path]:
    """Write ``compare.json``, ``compare.csv`` (a line for each attack and image) and ``ATTACK.npz`` for each attack.

    An ``.npz`` file holds ``x`` (adversarial inputs, the original where none was found), ``found``, ``y`` (labels) and
    ``index``.

    Args:
        comparison: What to write.
        folder: Where to; it is made if need be.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "compare.json", folder / "compare.csv"]
    files[0].write_text(json.dumps(to_dict(comparison), indent=1) + "\n", encoding="utf-8")
    with files[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "label", "attack", "library", "found", "pixels", "features", "becomes"])
        for result in comparison.results:
            columns = (result.found, result.pixels, result.features, result.decisions)
            for row, (index, label) in enumerate(zip(comparison.indices, comparison.labels.tolist(), strict=True)):
                found, pixels, features, decision = (int(column[row]) for column in columns)
                changes = (pixels, features, decision) if found else ("", "", "")
                writer.writerow([index, label, result.name, result.package, found, *changes])
    for result in comparison.results:
        files.append(folder / f"{result.name}.npz")
        np.savez_compressed(
            files[-1],
            x=result.adversarial.numpy(),
            found=result.found.numpy(),
            y=comparison.labels.numpy(),
            index=np.array(comparison.indices),
        )
    return files
