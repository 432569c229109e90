"""The place of operations whose outputs see the input in the same place alone."""

from torch import Tensor

from l0tre.model.operations.kind import Local, Window
from l0tre.model.operations.operation import Operation

__all__ = ["POINTWISE"]


def _window(_: Operation, __: int) -> Window:
    return Window()


def _sees(operation: Operation, source: tuple[int, ...]) -> bool:
    return source == operation.shape


def _patches(_: Operation, x: Tensor) -> Tensor:
    return x


POINTWISE = Local(_sees, lambda _: True, _window, _patches, spills=False)
