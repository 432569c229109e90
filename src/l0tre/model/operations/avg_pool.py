"""Average pool: kernel, stride, padding (pairs), count_include_pad. The prover writes it as a convolution."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.kind import Linear, Local, Rewritten, Window
from l0tre.model.operations.operation import Attribute, Operation

__all__ = ["AVG_POOL"]


def _forward(operation: Operation, x: Tensor) -> Tensor:
    kernel, stride, padding = (operation.pair(key) for key in ("kernel", "stride", "padding"))
    include = bool(operation.attributes["count_include_pad"])
    return F.avg_pool2d(x, kernel, stride, padding, count_include_pad=include)


def _patches(operation: Operation, x: Tensor) -> Tensor:
    return F.avg_pool2d(x, operation.pair("kernel"), operation.pair("stride"))


def _window(operation: Operation, axis: int) -> Window:
    kernel, stride, padding = (operation.ints(key)[axis] for key in ("kernel", "stride", "padding"))
    return Window(kernel, stride, padding)


def _uniform(operation: Operation) -> bool:
    return bool(operation.attributes["count_include_pad"]) or not any(operation.ints("padding"))


def _sees(_: Operation, __: tuple[int, ...]) -> bool:
    return True


def _terms(operation: Operation, _: Sequence[tuple[int, ...]]) -> int:
    return math.prod(operation.ints("kernel"))


def _rewrite(operation: Operation, source: tuple[int, ...], place: int) -> list[Operation]:
    """A depthwise convolution; where padding is not counted, a scale puts the true number of values."""
    channels, height, width = source
    kernel, padding, stride = (operation.pair(key) for key in ("kernel", "padding", "stride"))
    weight = torch.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]), dtype=torch.float64)
    settings: dict[str, Attribute] = {"stride": stride, "padding": padding, "dilation": (1, 1), "groups": channels}
    result = [replace(operation, kind="conv", tensors={"weight": weight}, attributes=settings)]
    if not _uniform(operation):
        ones = torch.ones(1, 1, height, width, dtype=torch.float64)
        share = F.avg_pool2d(ones, kernel, stride, padding)[0]
        result.append(Operation("scale", (place,), operation.shape, {"scale": 1 / share}, name=operation.name))
    return result


AVG_POOL = Linear(
    forward=_forward,
    absolute=lambda operation, _, __: operation,
    summing="average",
    terms=_terms,
    place=Local(_sees, _uniform, _window, _patches, spills=True),
    bounds=Rewritten(_rewrite),
)
