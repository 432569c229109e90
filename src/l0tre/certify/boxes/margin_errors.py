"""What bounds of margins over boxes must exceed."""

import torch
from torch import Tensor

from l0tre.certify.relax.instance import Instance

__all__ = ["ERRORS", "is_safe", "margin_errors", "proved"]

# Forms in windows are sums of more numbers than the rows that the plan's errors are meant for: those of t groups, and
# differences.
ERRORS = 4.0


def margin_errors(instance: Instance, image: Tensor, t: int) -> Tensor:
    """The rounding error of bounds of margins, ``[batch, rivals]``, from the image of each entry, int64 ``[batch]``."""
    return ERRORS * (t + 1) * instance.slack[image]


def is_safe(instance: Instance, image: Tensor, margins: Tensor, t: int) -> Tensor:
    """Whether all bounds ``[batch, rivals]`` are above zero by more than rounding errors, bool ``[batch]``."""
    return proved(margins - margin_errors(instance, image, t))


def proved(bounds: Tensor) -> Tensor:
    """Whether all bounds ``[batch, rivals]``, rounding errors taken off, are above zero, bool ``[batch]``."""
    return ((bounds > 0) & torch.isfinite(bounds)).all(1)
