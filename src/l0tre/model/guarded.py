"""The user's own code as a function from a batch to scores: it may take torch or numpy, fail, and return anything."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.user_code import user_code

__all__ = ["black_box", "check_shape", "guarded"]


def guarded(call: Callable[[Tensor], Any], name: str) -> Callable[[Tensor], Tensor]:
    """Wrap the user's own code: it may change what it is given, fail at any input, and return anything."""

    def scores(x: Tensor) -> Tensor:
        with user_code(lambda why: f"{name} fails on a batch of shape {tuple(x.shape)}: {why}"):
            result = call(x.clone())
        if not isinstance(result, Tensor):
            raise ModelError(f"{name} returns a {type(result).__name__}: expected one tensor of scores")
        if result.shape not in ((len(x),), (len(x), 1)):  # one number for two classes
            check_shape(result, len(x), name)
        return result.to(torch.float32)

    return scores


def check_shape(scores: Tensor, count: int, name: str) -> None:
    """Refuse what is not one row of scores, of two classes or more, for each input of a batch.

    Raises:
        ModelError: If it is not.
    """
    if scores.ndim != 2 or len(scores) != count or scores.shape[1] < 2:
        raise ModelError(
            f"{name} gives scores of shape {tuple(scores.shape)} for a batch of {count}: expected ({count}, classes) "
            "with two classes or more"
        )


def black_box(function: Callable[..., Any], shape: tuple[int, ...], name: str) -> Callable[[Tensor], Tensor]:
    """Find out what a function takes: it is given torch tensors if it can use them, else numpy arrays."""
    sample = torch.zeros(2, *shape)

    def with_torch(x: Tensor) -> Tensor:
        return _as_scores(function(x.cpu()))

    def with_numpy(x: Tensor) -> Tensor:
        return _as_scores(function(x.cpu().numpy()))

    reasons = []
    for call in (with_torch, with_numpy):
        try:
            with user_code(str):
                call(sample.clone())
        except ModelError as error:
            reasons.append(str(error))
        else:
            return call
    tried = reasons[0] if reasons[0] == reasons[1] else f"with torch, {reasons[0]}; with numpy, {reasons[1]}"
    raise ModelError(f"{name} fails on a batch of shape {tuple(sample.shape)}: {tried}")


def _as_scores(result: Any) -> Tensor:
    """What a function returned as a float32 tensor on the CPU."""
    values = result.cpu() if isinstance(result, Tensor) else torch.as_tensor(_numbers(result))
    if values.is_complex():
        raise TypeError("it returns complex numbers, expected scores")
    return values.to(torch.float32)


def _numbers(result: Any) -> np.ndarray:
    with suppress(ValueError):  # of a ragged sequence
        array = np.asarray(result)
        if array.dtype.kind in "biufc":
            return array
    raise TypeError(f"it returns a {type(result).__name__}, expected an array of scores")
