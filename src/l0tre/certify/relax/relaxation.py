"""Linear relaxations: for each nonlinear operation a line below and a line above it on a range.

Everything is written as differences from the image ``x0``: a line ``a z + b`` is kept as its slope ``a`` and its gap
``a z0 + b - f(z0)`` at the image's own value ``z0``. Constants of the network then drop out of the backward pass, and
an operation whose range shows it to be linear there has gap 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.relax.supported import curve_bounds
from l0tre.model.graph import Operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Selection

__all__ = ["Relaxation", "relax"]


@dataclass(frozen=True)
class Relaxation:
    """Relaxation of one operation for a batch of search nodes.

    Attributes:
        maps: float64 ``[4, batch, outputs]``: slope below, slope above, gap below, gap above.
        index: For a max pool int64 ``[batch, outputs]``: the input (flattened) that both slopes belong to.
    """

    maps: Tensor
    index: Tensor | None = None

    def pick(self, rows: Tensor) -> "Relaxation":
        """The lines of some batch entries, int64 ``[rows]``."""
        return Relaxation(self.maps[:, rows], None if self.index is None else self.index[rows])


def relax(
    operation: Operation, low: Tensor, high: Tensor, before: Tensor, after: Tensor, *, near: bool = False
) -> Relaxation:
    """Relaxation of a nonlinear operation.

    Args:
        operation: One for which ``supported.is_nonlinear`` holds.
        low: float64 ``[batch, *input shape]``, smallest input values.
        high: Largest input values, likewise.
        before: The image's own input values, ``[batch or 1, *input shape]``.
        after: The image's own output values, ``[batch or 1, *output shape]``.
        near: Whether most outputs keep the image's own value, so that lines without a gap there are best.

    Returns:
        The lines; NaN in a range gives NaN in the lines, which proves nothing.
    """
    curve = curve_bounds(operation)
    if curve is None:
        kind = KINDS[operation.kind]
        assert isinstance(kind, Selection)
        return Relaxation(*kind.lines(operation, low, high, before, after))
    below, above, shift_below, shift_above = curve.lines(operation, low, high, before if near else None)
    gap_below, gap_above = below * before + shift_below - after, above * before + shift_above - after
    return Relaxation(torch.stack([below, above, gap_below, gap_above]).flatten(2))
