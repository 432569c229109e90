"""Robustness as an assertion, for a model's own tests."""

from typing import Any

from l0tre.api.evaluate import evaluate
from l0tre.api.inputs import Images, Labels
from l0tre.evaluation.results import Snapshot
from l0tre.model.sources import Source

__all__ = ["assert_robust"]

LISTED = 5  # inputs that a failure names


def assert_robust(
    network: Source, images: Images, labels: Labels = None, *, radius: int = 1, share: float = 1.0, **options: Any
) -> Snapshot:
    """Assert that inputs keep their decision, proved, however so many groups change.

    Args:
        network: As for :func:`l0tre.evaluate`.
        images: Likewise.
        labels: Likewise.
        radius: Number of groups that may change.
        share: Part of the inputs, from 0 to 1, that must be classified correctly and keep that decision.
        options: More arguments of :func:`l0tre.evaluate`, such as ``domain`` and ``guarantee``.

    Returns:
        The bounds.

    Raises:
        AssertionError: If too few do, naming some that do not.
    """
    result = evaluate(network, images, labels, **{"max_t": radius, **options})
    total = len(result.images) + len(result.excluded)
    weak = [
        f"{image.index} ({image.lower} proved, {image.upper if image.witness else 'nothing'} shown to change it)"
        for image in result
        if image.lower < radius
    ]
    wrong = [f"{left_out.index} ({left_out.reason})" for left_out in result.excluded]
    if total - len(weak) - len(wrong) >= share * total:
        return result
    named = ", ".join([*weak, *wrong][:LISTED])
    raise AssertionError(
        f"{len(weak) + len(wrong)} of {total} inputs do not keep their decision when {radius} {result.unit}s change: "
        f"{named}"
    )
