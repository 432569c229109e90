"""Robustness and coverage as assertions, for a model's own tests."""

from collections.abc import Sequence

from l0tre.api.coverage import measure_coverage
from l0tre.api.evaluate import evaluate
from l0tre.api.inputs import Images, Labels
from l0tre.coverage.criteria import CoverageFigure
from l0tre.coverage.measure import CRITERIA
from l0tre.defaults import ATTACK_QUERIES
from l0tre.domain import Domain
from l0tre.errors import ConfigError
from l0tre.evaluation.problem import GuaranteeWish
from l0tre.evaluation.results import Snapshot
from l0tre.model.sources import Source

__all__ = ["assert_coverage", "assert_robust"]

LISTED = 5  # inputs that a failure names


def assert_robust(
    network: Source,
    images: Images,
    labels: Labels = None,
    *,
    radius: int = 1,
    share: float = 1.0,
    guarantee: GuaranteeWish = "auto",
    epsilon: float | None = None,
    domain: Domain | None = None,
    attack_queries: int = ATTACK_QUERIES,
    seed: int = 0,
    memory_bytes: int = 0,
    device: str = "auto",
    time_budget: float | None = None,
) -> Snapshot:
    """Assert that inputs keep their decision, proved, however so many groups change.

    Args:
        network: As for :func:`l0tre.evaluate`.
        images: Likewise.
        labels: Likewise.
        radius: Number of groups that may change.
        share: Part of the inputs, from 0 to 1, that must be classified correctly and keep that decision.
        guarantee: See :func:`l0tre.evaluate`, as all that follows.
        epsilon: Likewise.
        domain: Likewise.
        attack_queries: Likewise; how near the changes are that a failure names, no pass depends on it.
        seed: Likewise.
        memory_bytes: Likewise.
        device: Likewise.
        time_budget: Likewise; inputs that are not decided by then count as not robust.

    Returns:
        The bounds.

    Raises:
        AssertionError: If too few do, naming some that do not.
    """
    result = evaluate(
        network,
        images,
        labels,
        max_t=radius,
        guarantee=guarantee,
        epsilon=epsilon,
        domain=domain,
        attack_queries=attack_queries,
        seed=seed,
        memory_bytes=memory_bytes,
        device=device,
        time_budget=time_budget,
    )
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


def assert_coverage(
    network: Source,
    images: Images,
    *,
    neuron: float | None = None,
    channel: float | None = None,
    kmnc: float | None = None,
    boundary: float | None = None,
    strong: float | None = None,
    top_k: float | None = None,
    mcdc: float | None = None,
    layers: Sequence[str] = (),
    threshold: float = 0.0,
    channel_threshold: float = 0.25,
    k: int = 2,
    sections: int = 1000,
    ranges: Images | None = None,
    device: str = "auto",
) -> dict[str, CoverageFigure]:
    """Assert that inputs exercise at least so much of a network.

    Args:
        network: As for :func:`l0tre.measure_coverage`.
        images: Likewise.
        neuron: The least coverage by this criterion, from 0 to 1; not measured if ``None``.
        channel: Likewise.
        kmnc: Likewise.
        boundary: Likewise.
        strong: Likewise.
        top_k: Likewise.
        mcdc: Likewise.
        layers: See :func:`l0tre.measure_coverage`, as all that follows.
        threshold: Likewise.
        channel_threshold: Likewise.
        k: Likewise.
        sections: Likewise.
        ranges: Likewise.
        device: Likewise.

    Returns:
        The figures by criterion.

    Raises:
        AssertionError: If a criterion is covered less, with its figure.
        ConfigError: If no criterion is named.
    """
    asked = dict(zip(CRITERIA, (neuron, channel, kmnc, boundary, strong, top_k, mcdc), strict=True))
    least = {name: share for name, share in asked.items() if share is not None}
    if not least:
        named = ", ".join(f"{name.replace('-', '_')}=0.9" for name in CRITERIA)
        raise ConfigError(f"no criterion is named: give one or more of {named}")
    figures = measure_coverage(
        network,
        images,
        criteria=tuple(least),
        layers=layers,
        threshold=threshold,
        channel_threshold=channel_threshold,
        k=k,
        sections=sections,
        ranges=ranges,
        device=device,
    )
    weak = [str(figure) for name, figure in figures.items() if not figure.share >= least[name]]
    if weak:
        wanted = ", ".join(f"{name} {100 * share:g} %" for name, share in least.items())
        raise AssertionError(f"coverage below {wanted}: {'; '.join(weak)}")
    return figures
