"""What must go into an activation so that its output exceeds a threshold."""

import math

import torch
from torch import Tensor

from l0tre.model.graph import Operation, run_operation

__all__ = ["limits_before"]

FURTHEST = 1e4  # values before an activation, beyond which no threshold is looked for
HALVINGS = 80
PROBES = 64  # on either side, by which it is seen whether more goes with more
CLOSE = 1e-9  # to the limit rounding decides
BEYOND = 2.0**127  # the limit of what no value exceeds and, with the sign turned, of what all do


def limits_before(activation: Operation, thresholds: Tensor) -> Tensor | None:
    """What a neuron's value before its activation must exceed so that the one after it exceeds a threshold.

    The values before tell more: where a neuron is off, a ReLU's output has no slope, and that of a GELU falls first.
    A search may go by them, a proof or a test's confirmation not: that nothing but what is above the limit exceeds the
    threshold was seen at some points alone.

    Args:
        activation: Elementwise.
        thresholds: float64 ``[neurons]``.

    Returns:
        float64 ``[neurons]``, beyond all numbers where nothing exceeds the threshold or everything does; ``None`` where
        more before is not always more after.
    """
    low, high = (torch.full_like(thresholds, end) for end in (-FURTHEST, FURTHEST))
    ever, always = _exceeds(activation, high, thresholds), _exceeds(activation, low, thresholds)
    next_ = torch.nextafter(thresholds, high)
    # As of a ReLU: what is above the threshold before is above it after.
    same = _exceeds(activation, next_, thresholds) & ~_exceeds(activation, thresholds, thresholds)
    for _ in range(HALVINGS if bool((ever & ~always & ~same).any()) else 0):
        middle = (low + high) / 2
        above = _exceeds(activation, middle, thresholds)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    found = torch.where(same, thresholds, low)
    found = found.masked_fill(~ever, BEYOND).masked_fill(always, -BEYOND)
    sizes = torch.logspace(-6, math.log10(FURTHEST), PROBES, dtype=torch.float64, device=thresholds.device)
    for probe in torch.cat([-sizes, sizes]).tolist():
        values = torch.full_like(thresholds, probe)
        agrees = _exceeds(activation, values, thresholds) == (values > found)
        if not bool((agrees | ((values - found).abs() < CLOSE)).all()):
            return None
    return found


def _exceeds(activation: Operation, values: Tensor, thresholds: Tensor) -> Tensor:
    return run_operation(activation, values) > thresholds
