"""Linear bounds carried forwards: every value as two linear forms of the few values that change.

A changed value is ``middle + half * u`` with ``u`` from -1 to 1. The difference of a neuron to the image's own value
lies between ``centre - radius`` and ``centre + radius``, both linear in all ``u``: column 0 holds the constant, the
others the coefficients. A linear operation maps centres by its weights and radii by their absolute values. With one,
two or three changed values this takes a few forward passes, where going backwards takes one for every neuron.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.relaxation import relax
from l0tre.certify.relax.supported import curve_bounds
from l0tre.model.graph import Operation

__all__ = ["AffineForms", "bend", "least", "pool"]


@dataclass(frozen=True)
class AffineForms:
    """Bounds of differences to the image's own values.

    Attributes:
        centre: float64 ``[batch, 1 + variables, *shape]``.
        radius: Likewise; not below zero anywhere in the box.
    """

    centre: Tensor
    radius: Tensor


def _ranges(lower: Tensor, upper: Tensor, before: Tensor, slack: float) -> Interval:
    """Smallest and largest values ``[batch, *shape]``, from the image's own values and what rounding can cause."""
    low = before + lower[:, 0] - lower[:, 1:].abs().sum(1) - slack
    return low, before + upper[:, 0] + upper[:, 1:].abs().sum(1) + slack


def _middle(lower: Tensor, upper: Tensor) -> AffineForms:
    """Centres and radii; the given forms are used up."""
    centre = (lower + upper).mul_(0.5)
    return AffineForms(centre, upper.sub_(lower).mul_(0.5))


def least(lower: Tensor) -> Tensor:
    """The least values ``[batch, ...]`` of forms ``[batch, ..., 1 + variables]`` over the box."""
    return lower[..., 0] - lower[..., 1:].abs().sum(-1)


def bend(operation: Operation, forms: AffineForms, before: Tensor, after: Tensor, slack: float) -> AffineForms:
    """Go through an elementwise operation.

    Args:
        operation: One that ``supported.curve_bounds`` knows.
        forms: Its input.
        before: The image's own inputs ``[batch, *shape]``.
        after: The image's own outputs.
        slack: The largest error that rounding can cause in the inputs.

    Returns:
        Its output.
    """
    lower, upper = forms.centre - forms.radius, forms.centre + forms.radius
    low, high = _ranges(lower, upper, before, slack)
    below, above, gap_below, gap_above = relax(operation, low, high, before, after).maps.view(4, *low.shape)
    curve = curve_bounds(operation)
    if curve is None or curve.slopes(operation)[0] < 0:  # where a line falls, the other side of the input counts
        lower, upper = (
            lower * below.clamp(min=0)[:, None] + upper * below.clamp(max=0)[:, None],
            upper * above.clamp(min=0)[:, None] + lower * above.clamp(max=0)[:, None],
        )
    else:
        lower *= below[:, None]
        upper *= above[:, None]
    lower[:, 0] += gap_below
    upper[:, 0] += gap_above
    return _middle(lower, upper)


def pool(
    operation: Operation, forms: AffineForms, before: Tensor, after: Tensor, slack: float, size: Sequence[int]
) -> AffineForms:
    """Go through a max pool over patches that are laid out without padding.

    Args:
        operation: The max pool.
        forms: Its inputs under the patches, ``[batch, 1 + variables, C, rows, columns]``.
        before: The image's own inputs, ``[batch, C, rows, columns]``; minus infinity outside the map.
        after: The image's own outputs, ``[batch, C, *size]``.
        slack: See :func:`bend`.
        size: Rows and columns of the output.

    Returns:
        Its output ``[batch, 1 + variables, C, *size]``.
    """
    lower, upper = forms.centre - forms.radius, forms.centre + forms.radius
    shape = (before.shape[1], *size)
    patches = replace(operation, shape=shape, attributes={**operation.attributes, "padding": (0, 0)})
    lines = relax(patches, *_ranges(lower, upper, before, slack), before, after)
    assert lines.index is not None
    index = lines.index[:, None].expand(-1, lower.shape[1], -1)
    below, above, gap_below, gap_above = lines.maps
    lower, upper = (
        lower.flatten(2).gather(2, index) * below[:, None],
        upper.flatten(2).gather(2, index) * above[:, None],
    )
    lower[:, 0] += gap_below
    upper[:, 0] += gap_above
    both = _middle(lower, upper)
    return AffineForms(*(part.view(*part.shape[:2], *shape) for part in (both.centre, both.radius)))
