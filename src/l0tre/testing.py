"""Robustness and coverage as assertions, for a model's own tests."""

from typing import Any

from l0tre.api.coverage import measure_coverage
from l0tre.api.evaluate import evaluate
from l0tre.api.inputs import Images, Labels
from l0tre.coverage.criteria import Figure
from l0tre.coverage.measure import CRITERIA
from l0tre.errors import ConfigError
from l0tre.evaluation.results import Snapshot
from l0tre.model.sources import Source

__all__ = ["assert_coverage", "assert_robust"]

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


def assert_coverage(network: Source, images: Images, **options: Any) -> dict[str, Figure]:
    """Assert that inputs exercise at least so much of a network.

    Args:
        network: As for :func:`l0tre.measure_coverage`.
        images: Likewise.
        options: The least coverage by criterion, from 0 to 1 (``neuron=0.95, top_k=0.5``), and more arguments of
            :func:`l0tre.measure_coverage`, such as ``layers`` and ``ranges``.

    Returns:
        The figures.

    Raises:
        AssertionError: If a criterion is covered less, with its figure.
        ConfigError: If no criterion is named.
    """
    least = {name: options.pop(key) for name in CRITERIA if (key := name.replace("-", "_")) in options}
    if not least:
        named = ", ".join(f"{name.replace('-', '_')}=0.9" for name in CRITERIA)
        raise ConfigError(f"no criterion is named: give one or more of {named}")
    figures = measure_coverage(network, images, criteria=tuple(least), **options)
    weak = [str(figure) for name, figure in figures.items() if not figure.share >= least[name]]
    if weak:
        wanted = ", ".join(f"{name} {100 * share:g} %" for name, share in least.items())
        raise AssertionError(f"coverage below {wanted}: {'; '.join(weak)}")
    return figures
