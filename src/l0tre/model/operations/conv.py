"""Convolution: weight ``[out, in / groups, h, w]``, bias; stride, padding, dilation (pairs), groups; zeros around."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.operations.kind import At, Linear, LinearBounds, Local, Window
from l0tre.model.operations.operation import Operation
from l0tre.model.operations.weights import absolute_weights, always, magnitude_weights, plain_weights

__all__ = ["CONV", "conv_by_products", "convolve"]

PATCH_BYTES = 2**30  # of the patches of a convolution that are laid out at a time


def _forward(operation: Operation, x: Tensor) -> Tensor:
    return convolve(operation, x, operation.tensors.get("bias"), operation.pair("padding"))


def convolve(operation: Operation, x: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """The convolution of an operation, with a bias and a padding of one's own.

    Proofs compute in float64, and their rounding terms hold for sums of products. On a GPU cuDNN may convolve through
    transforms instead, whose errors are others: there float64 is computed as products of matrices.

    Args:
        operation: A convolution.
        x: ``[batch, channels, height, width]``.
        bias: ``[channels]`` or none.
        padding: Zeros above and below, left and right.

    Returns:
        ``[batch, channels, height, width]``.
    """
    weight, groups = operation.tensors["weight"], int(operation.number("groups"))
    stride, dilation = operation.pair("stride"), operation.pair("dilation")
    if x.is_cuda and x.dtype == torch.float64:
        return conv_by_products(x, weight, bias, stride, padding, dilation, groups)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def conv_by_products(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """A convolution as a product of matrices with the same arguments as ``F.conv2d``."""
    channels, kernel = weight.shape[0], weight.shape[2:]
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    rows, columns = ((padded.shape[2 + d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1))
    matrix = weight.reshape(groups, channels // groups, -1)
    parts = []
    each = 8 * x.shape[1] * kernel.numel() * rows * columns
    step = max(1, PATCH_BYTES // max(1, each))
    for first in range(0, len(x), step):
        part = padded[first : first + step]
        b, c, h, w = part.stride()
        patches = part.as_strided(
            (len(part), groups, x.shape[1] // groups, *kernel, rows, columns),
            (b, c * (x.shape[1] // groups), c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1]),
        )
        parts.append(matrix @ patches.reshape(len(part), groups, -1, rows * columns))
    result = torch.cat(parts).reshape(len(x), channels, rows, columns)
    return result if bias is None else result + bias[:, None, None]


def _window(operation: Operation, axis: int) -> Window:
    stride, padding, dilation = (operation.ints(key)[axis] for key in ("stride", "padding", "dilation"))
    return Window(int(operation.tensors["weight"].shape[2 + axis]), stride, padding, dilation)


def _patches(operation: Operation, x: Tensor) -> Tensor:
    return convolve(operation, x, None, (0, 0))


def _backward(operation: Operation, rows: Tensor, sources: Sequence[tuple[int, ...]]) -> list[Tensor]:
    found = _transposed(operation, rows.flatten(0, 1), operation.pair("padding"), sources[0][1:])
    return [found.view(*rows.shape[:2], *sources[0])]


def _backward_window(operation: Operation, rows: Tensor, _: At) -> Tensor:
    windows = (_window(operation, axis) for axis in (0, 1))
    size = tuple((rows.shape[2 + d] - 1) * w.stride + w.dilation * (w.kernel - 1) + 1 for d, w in enumerate(windows))
    return _transposed(operation, rows, (0, 0), size)


def _transposed(operation: Operation, rows: Tensor, padding: tuple[int, int], size: tuple[int, ...]) -> Tensor:
    """A transposed convolution as one product of matrices and a sum of overlapping patches."""
    weight, groups = operation.tensors["weight"], int(operation.number("groups"))
    count, channels, height, width = rows.shape
    spread = rows.reshape(count, groups, channels // groups, height * width)
    # One small copy: products of many small matrices are a quarter faster by rows that lie together.
    patches = weight.reshape(groups, channels // groups, -1).transpose(1, 2).contiguous() @ spread
    kernel, dilation, stride = tuple(weight.shape[2:]), operation.pair("dilation"), operation.pair("stride")
    return F.fold(patches.flatten(1, 2), size, kernel, dilation, padding, stride)


def _products(operation: Operation) -> int:
    return operation.tensors["weight"][0].numel()


def _terms(operation: Operation, _: Sequence[tuple[int, ...]]) -> int:
    return 1 + _products(operation)


def _bound_terms(operation: Operation, _: Sequence[tuple[int, ...]]) -> float:
    # Backwards an input collects from every output that reads it, which can be more.
    weight = operation.tensors["weight"]
    return 8.0 + max(weight[0].numel(), weight.numel() // max(1, weight.shape[1]))


def _sees(_: Operation, __: tuple[int, ...]) -> bool:
    return True


CONV = Linear(
    forward=_forward,
    absolute=absolute_weights,
    summing="sum",
    terms=_terms,
    place=Local(_sees, always, _window, _patches, spills=True),
    bounds=LinearBounds(
        magnitude=magnitude_weights,
        plain=plain_weights,
        backward=_backward,
        backward_window=_backward_window,
        products=_products,
        terms=_bound_terms,
    ),
)
