"""Operations that are compositions of others, written once for all importers. What bounds the parts bounds them.

Everything separable (resizing, reflections, uneven averages) is a matrix for each axis, found by asking the operation
itself what it makes of unit vectors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.model.graph import Attribute, GraphBuilder

__all__ = [
    "Composer",
    "absolute",
    "ceil_margins",
    "framed_for_maxima",
    "larger",
    "lifted",
    "prelu",
    "ragged_average",
    "separable",
    "shuffle",
    "summed",
    "top_of_planes",
    "transposed_conv",
    "unshuffle",
]

Pair = tuple[int, int]
LARGEST_PROBE = 2**27  # numbers in the unit vectors that a separable operation is asked about


@dataclass(frozen=True)
class Composer:
    """Adds the operations of one call of the source.

    Attributes:
        builder: Of the graph.
        name: The source's own name of the call.
    """

    builder: GraphBuilder
    name: str

    def add(
        self, kind: str, *inputs: int, tensors: Mapping[str, Tensor | None] | None = None, **settings: Attribute
    ) -> int:
        """Append an operation; its position."""
        return self.builder.add(kind, inputs, tensors, self.name, **settings)

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of one sample at an operation."""
        return self.builder.shape(position)

    def reshape(self, source: int, *shape: int) -> int:
        """Another shape for the same values."""
        return source if shape == self.shape(source) else self.add("reshape", source, shape=shape)

    def scale(self, source: int, factor: float) -> int:
        """A multiple."""
        return self.add("scale", source, tensors={"scale": torch.tensor(factor, dtype=torch.float64)})

    def slice(self, source: int, dim: int, taken: range) -> int:
        """A part along one dimension of a sample."""
        shape = self.shape(source)
        ranges = [range(size) for size in shape]
        ranges[dim] = taken
        if ranges[dim] == range(shape[dim]):
            return source
        return self.add(
            "slice",
            source,
            starts=tuple(part.start for part in ranges),
            steps=tuple(part.step for part in ranges),
            sizes=tuple(len(part) for part in ranges),
            source=shape,
        )

    def framed(self, source: int, rows: Pair, columns: Pair, value: float = 0.0) -> int:
        """A map with a margin before and after its rows and columns; a negative one cuts off."""
        for dim, margins in ((1, rows), (2, columns)):
            before, after = (max(-margin, 0) for margin in margins)
            source = self.slice(source, dim, range(before, self.shape(source)[dim] - after))
        padding = tuple(max(margin, 0) for margin in (*columns, *rows))
        return self.add("pad", source, padding=padding, value=value) if any(padding) else source

    def along(self, source: int, dim: int, matrix: Tensor) -> int:
        """A matrix ``[out, in]`` along one dimension of a sample."""
        rank = len(self.shape(source))
        order = tuple(dim if d == rank - 1 else rank - 1 if d == dim else d for d in range(rank))
        moved = source if dim == rank - 1 else self.add("transpose", source, permutation=order)
        mapped = self.add("linear", moved, tensors={"weight": matrix})
        return mapped if dim == rank - 1 else self.add("transpose", mapped, permutation=order)


def prelu(composer: Composer, source: int, slopes: Tensor) -> int:
    """A leaky ReLU with constant slopes below zero.

    Args:
        composer: Adds the operations.
        source: What it works on.
        slopes: Of a shape that broadcasts to a sample.
    """
    slopes = slopes.double()
    if slopes.unique().numel() == 1 and float(slopes.flatten()[0]) >= 0:
        return composer.add("leaky_relu", source, slope=float(slopes.flatten()[0]))
    positive = composer.add("relu", source)
    if torch.equal(1 - (1 - slopes), slopes):  # x s + relu(x) (1 - s), where float64 holds 1 - s
        bent = composer.add("scale", positive, tensors={"scale": 1 - slopes})
        return composer.add("add", bent, composer.add("scale", source, tensors={"scale": slopes}))
    negative = composer.add("relu", composer.scale(source, -1.0))
    return composer.add("sub", positive, composer.add("scale", negative, tensors={"scale": slopes}))


def absolute(composer: Composer, source: int) -> int:
    """The absolute value, ``relu(x) + relu(-x)``."""
    return composer.add("add", composer.add("relu", source), composer.add("relu", composer.scale(source, -1.0)))


def larger(composer: Composer, source: int, other: int | Tensor, sign: Literal[1, -1] = 1) -> int:
    """The larger of two values, ``y + relu(x - y)``, or with the sign -1 the smaller one, ``y - relu(y - x)``.

    Args:
        composer: Adds the operations.
        source: The first.
        other: The second: an operation of the same rank, or a constant that broadcasts to a sample.
        sign: 1 for the larger one, -1 for the smaller one.
    """
    if isinstance(other, Tensor):
        signed = torch.tensor(float(sign), dtype=torch.float64)
        above = composer.add("scale", source, tensors={"scale": signed, "shift": -sign * other.double()})
        positive = composer.add("relu", above)
        return composer.add("scale", positive, tensors={"scale": signed, "shift": other})
    first, second = (source, other) if sign == 1 else (other, source)
    return composer.add("add" if sign == 1 else "sub", other, composer.add("relu", composer.add("sub", first, second)))


def lifted(composer: Composer, source: int, work: Callable[[int], int]) -> int:
    """An operation on maps, for sequences ``(C, L)``: they are maps of one row."""
    channels, length = composer.shape(source)
    found = work(composer.reshape(source, channels, 1, length))
    channels, _, length = composer.shape(found)
    return composer.reshape(found, channels, length)


def framed_for_maxima(composer: Composer, source: int, rows: Pair, columns: Pair, dilation: Pair) -> int:
    """A margin around a map that no maximum of a window ever comes from: a window must see a pixel of the map.

    Zeros where nothing is below zero, else the outermost rows and columns once more (a window without gaps that sees
    the margin sees these too), else minus infinity, which is computed but never proved.
    """
    if _never_negative(composer.builder, source):
        return composer.framed(source, rows, columns)
    if dilation != (1, 1):
        return composer.framed(source, rows, columns, -math.inf)
    for dim, (before, after) in ((1, rows), (2, columns)):
        size = composer.shape(source)[dim]
        first, last = (composer.slice(source, dim, range(place, place + 1)) for place in (0, size - 1))
        if before or after:
            source = composer.add("concat", *[first] * before, source, *[last] * after, dim=dim)
    return source


def _never_negative(builder: GraphBuilder, position: int) -> bool:
    operation = builder.operations[position]
    if operation.kind == "clip":
        return operation.number("low") >= 0
    if operation.kind in ("max_pool", "avg_pool", "reshape", "transpose", "slice", "concat"):
        return all(_never_negative(builder, source) for source in operation.inputs)
    return operation.kind in ("relu", "sigmoid")


def ceil_margins(size: int, kernel: int, stride: int, padding: Pair, dilation: int) -> int:
    """What an axis needs after its padding so that pooling rounds its output size up.

    A last window that would begin in the padding at the end is left out, as in PyTorch and ONNX.
    """
    span = size + sum(padding) - dilation * (kernel - 1) - 1
    outputs = -(-span // stride) + 1
    if (outputs - 1) * stride >= size + padding[0]:
        outputs -= 1
    return max(0, (outputs - 1) * stride - span)


def ragged_average(
    composer: Composer,
    source: int,
    kernel: Pair,
    stride: Pair,
    before: Pair,
    after: Pair,
    extra: Pair,
    *,
    include: bool,
) -> int:
    """An average pool whose last windows reach beyond the padding, where nothing counts.

    Args:
        composer: Adds the operations.
        source: A map ``(C, H, W)``.
        kernel: Height and width of a window.
        stride: Of windows.
        before: Padding above and left.
        after: Padding below and right.
        extra: What windows reach beyond it, below and right.
        include: Whether the padding counts.
    """
    (top, left), (bottom, right), (below, beside) = before, after, extra
    framed = composer.framed(source, (top, bottom + below), (left, right + beside))
    pooled = composer.add("avg_pool", framed, kernel=kernel, stride=stride, padding=(0, 0), count_include_pad=True)
    pixels = torch.ones(1, *composer.shape(source)[1:], dtype=torch.float64)
    counted = F.pad(pixels, (left, right, top, bottom), value=1.0 if include else 0.0)
    share = F.avg_pool2d(F.pad(counted, (0, beside, 0, below)), kernel, stride)
    return composer.add("scale", pooled, tensors={"scale": 1 / share})


def separable(composer: Composer, source: int, function: Callable[[Tensor], Tensor]) -> int | None:
    """A linear operation on maps that is a matrix for the rows and one for the columns.

    Args:
        composer: Adds the operations.
        source: A map ``(C, H, W)``.
        function: The operation on ``[n, 1, H, W]`` in float64. It must keep constants.

    Returns:
        The position, ``None`` if the operation is not of this kind or too large.
    """
    _, height, width = composer.shape(source)
    if max(height, width) * height * width > LARGEST_PROBE:
        return None
    of_rows = torch.eye(height, dtype=torch.float64)[:, None, :, None].expand(-1, 1, -1, width)
    of_columns = torch.eye(width, dtype=torch.float64)[:, None, None, :].expand(-1, 1, height, -1)
    rows, columns = function(of_rows.contiguous())[:, 0, :, 0].mT, function(of_columns.contiguous())[:, 0, 0].mT
    numbers = torch.arange(height * width, dtype=torch.float64)
    probe = (numbers * 0.7).sin().reshape(1, 1, height, width)
    if not torch.allclose(rows @ probe[0, 0] @ columns.mT, function(probe)[0, 0], rtol=0, atol=1e-12):
        return None
    for dim, matrix in ((1, rows), (2, columns)):
        if not torch.equal(matrix, torch.eye(len(matrix.mT), dtype=torch.float64)):
            source = composer.along(source, dim, matrix.contiguous())
    return source


def transposed_conv(
    composer: Composer,
    source: int,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    before: Pair,
    after: Pair,
    dilation: Pair,
    groups: int,
) -> int:
    """A transposed convolution: zeros between the pixels, then a convolution with the weights turned round.

    Args:
        composer: Adds the operations.
        source: A map ``(C, H, W)``.
        weight: ``[C, outputs / groups, kernel height, kernel width]``.
        bias: ``[outputs]`` or ``None``.
        stride: How far apart the pixels are in the output.
        before: Rows and columns that are cut off the output's beginning.
        after: Likewise of its end; negative for rows and columns more.
        dilation: Of the kernel.
        groups: Of channels.
    """
    channels, height, width = composer.shape(source)
    if stride != (1, 1):
        apart = composer.reshape(source, channels, height, 1, width, 1)
        apart = composer.add("pad", apart, padding=(0, stride[1] - 1, 0, 0, 0, stride[0] - 1), value=0.0)
        source = composer.reshape(apart, channels, height * stride[0], width * stride[1])
    margins = [
        (d * (k - 1) - b, d * (k - 1) - a - (s - 1))
        for d, k, b, a, s in zip(dilation, weight.shape[2:], before, after, stride, strict=True)
    ]
    framed = composer.framed(source, margins[0], margins[1])
    turned = weight.flip(2, 3).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).contiguous()
    tensors = {"weight": turned, "bias": bias}
    return composer.add(
        "conv", framed, tensors=tensors, stride=(1, 1), padding=(0, 0), dilation=dilation, groups=groups
    )


def shuffle(composer: Composer, source: int, factor: int, *, channels_last: bool = False) -> int:
    """Channels as blocks of pixels, ``factor`` by ``factor`` (pixel shuffle, depth to space).

    Args:
        composer: Adds the operations.
        source: A map ``(C, H, W)``.
        factor: Side of a block.
        channels_last: Whether the place in the block comes first in the order of channels.
    """
    channels, height, width = composer.shape(source)
    kept = channels // factor**2
    if channels_last:
        split, order = (factor, factor, kept, height, width), (2, 3, 0, 4, 1)
    else:
        split, order = (kept, factor, factor, height, width), (0, 3, 1, 4, 2)
    moved = composer.add("transpose", composer.reshape(source, *split), permutation=order)
    return composer.reshape(moved, kept, height * factor, width * factor)


def unshuffle(composer: Composer, source: int, factor: int) -> int:
    """Blocks of pixels as channels (pixel unshuffle)."""
    channels, height, width = composer.shape(source)
    split = composer.reshape(source, channels, height // factor, factor, width // factor, factor)
    moved = composer.add("transpose", split, permutation=(0, 2, 4, 1, 3))
    return composer.reshape(moved, channels * factor**2, height // factor, width // factor)


def summed(composer: Composer, source: int, dims: Sequence[int], *, keep: bool) -> int:
    """The sum along dimensions of a sample."""
    count = math.prod(composer.shape(source)[dim] for dim in dims)
    mean = composer.add("mean", source, dims=tuple(sorted(dims)), keepdim=keep)
    return composer.scale(mean, float(count))


def top_of_planes(composer: Composer, source: int, *, keep: bool) -> int:
    """The largest value of every channel."""
    channels, height, width = composer.shape(source)
    one = (1, 1)
    pooled = composer.add("max_pool", source, kernel=(height, width), stride=one, padding=(0, 0), dilation=one)
    return pooled if keep else composer.reshape(pooled, channels)
