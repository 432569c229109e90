"""What float32 does to the values of curves."""

from torch import Tensor

from l0tre.model.operations.kind import Errors

__all__ = ["EXTRA", "UNIT", "curve_errors"]

UNIT = 2.0**-24  # half the distance of float32 numbers, relative
EXTRA = 8  # roundings of an operation beside its sum: of constants folded into it, of its function


def curve_errors(errors: Errors, limit: Tensor, gain: float) -> Errors:
    """Errors after a curve of slopes up to ``gain`` whose values, and all numbers on the way, are within ``limit``."""
    _, worst, square = errors
    unit = EXTRA * UNIT * limit
    return limit, gain * worst + unit, gain**2 * square + unit**2
