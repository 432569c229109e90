"""A module's own code in float64: what an imported graph is compared with."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

__all__ = ["double_module"]


class _Double(TorchDispatchMode):
    """Inside, everything that would be float32 is float64: inputs, results, and what casts and factories ask for."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return tree_map(_wide, func(*tree_map(_wide, args), **tree_map(_wide, kwargs or {})))


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    return torch.float64 if value is torch.float32 else value


def double_module(module: nn.Module) -> Callable[[Tensor], Any]:
    """The module in float64, by its own code.

    Args:
        module: In evaluation mode, on the CPU; it is copied.

    Returns:
        A function of a float64 batch. Casts to types narrower than float32 round there as they do in the module.
    """
    wide = copy.deepcopy(module).double()

    def scores(x: Tensor) -> Any:
        with _Double():  # type: ignore[no-untyped-call]
            return wide(x)

    return scores
