"""The one graph of operations that every engine works on.

A graph is a tuple of operations in execution order. Operation 0 is the input, the last operation the output. Shapes are
those of one sample: the batch dimension is never part of an operation and always comes first in the tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.errors import ModelError

__all__ = ["OPERATIONS", "Graph", "GraphBuilder", "Operation", "conv_by_products", "convolve", "run", "run_operation"]

Attribute = int | float | bool | tuple[int, ...]

PATCH_BYTES = 2**30  # of the patches of a convolution that are laid out at a time
LARGEST_WHOLE = 2**53  # up to here float64 holds every whole number


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        kind: Key of :data:`OPERATIONS`, or ``"input"``.
        inputs: Positions of the operations whose outputs it reads, all smaller than its own.
        shape: Shape of its output for one sample.
        tensors: Constants: ``weight``, ``bias``, ``scale``, ``shift``, as imported in float64, without any rounding. A
            bias or shift that was summed from other constants comes with the sum of their absolute values
            (``bias_terms``, ``shift_terms``), which its own rounding error is a share of.
        attributes: Other settings: stride, padding, dimensions without the batch, slope.
        name: The source's own name, for messages.
    """

    kind: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""

    def ints(self, key: str) -> tuple[int, ...]:
        """The attribute ``key`` as a tuple of integers."""
        value = self.attributes[key]
        return value if isinstance(value, tuple) else (int(value),)

    def number(self, key: str) -> float:
        """The attribute ``key`` as a float."""
        value = self.attributes[key]
        if isinstance(value, tuple):
            raise TypeError(f"attribute {key} of {self.kind} is a tuple")
        return float(value)


@dataclass(frozen=True)
class Graph:
    """A network as a tuple of operations in execution order; the last operation gives the scores."""

    operations: tuple[Operation, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input sample."""
        return self.operations[0].shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output for one sample, ``(classes,)`` for a classifier."""
        return self.operations[-1].shape

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Graph":
        """The same graph with its constants on another device or in another precision."""
        return Graph(
            tuple(
                replace(operation, tensors={key: value.to(device, dtype) for key, value in operation.tensors.items()})
                for operation in self.operations
            )
        )

    def last_use(self) -> tuple[int, ...]:
        """For every operation the position of the last operation that reads it (its own position if none does)."""
        last = list(range(len(self.operations)))
        for position, operation in enumerate(self.operations):
            for source in operation.inputs:
                last[source] = position
        return tuple(last)


def _pair(operation: Operation, key: str) -> tuple[int, int]:
    first, second = operation.ints(key)
    return first, second


def _batched(dims: Sequence[int]) -> list[int]:
    """Sample dimensions (from 0) as tensor dimensions (from 1, after the batch)."""
    return [dim + 1 for dim in dims]


def _conv(operation: Operation, x: Tensor) -> Tensor:
    return convolve(operation, x, operation.tensors.get("bias"), _pair(operation, "padding"))


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
    stride, dilation = _pair(operation, "stride"), _pair(operation, "dilation")
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


def _avg_pool(operation: Operation, x: Tensor) -> Tensor:
    return F.avg_pool2d(
        x,
        _pair(operation, "kernel"),
        _pair(operation, "stride"),
        _pair(operation, "padding"),
        count_include_pad=bool(operation.attributes["count_include_pad"]),
    )


def _max_pool(operation: Operation, x: Tensor) -> Tensor:
    return F.max_pool2d(
        x,
        _pair(operation, "kernel"),
        _pair(operation, "stride"),
        _pair(operation, "padding"),
        _pair(operation, "dilation"),
    )


def _transpose(operation: Operation, x: Tensor) -> Tensor:
    return x.permute(0, *_batched(operation.ints("permutation")))


def _mean(operation: Operation, x: Tensor) -> Tensor:
    return x.mean(_batched(operation.ints("dims")), keepdim=bool(operation.attributes["keepdim"]))


def _softmax(operation: Operation, x: Tensor) -> Tensor:
    return x.softmax(int(operation.number("dim")) + 1)


def _log_softmax(operation: Operation, x: Tensor) -> Tensor:
    return x.log_softmax(int(operation.number("dim")) + 1)


def _scale(operation: Operation, x: Tensor) -> Tensor:
    scale, shift = operation.tensors.get("scale"), operation.tensors.get("shift")
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


# What every operation computes, from its operation and its inputs (batch first). Attributes:
#   conv        weight [out, in/groups, h, w], bias; stride, padding, dilation (pairs), groups; symmetric zero padding
#   linear      weight [out, in], bias; on the last dimension
#   scale       x * scale + shift, each optional and broadcast against one sample's shape (batch norm, constants)
#   add, sub, mul, concat   of several variable inputs
#   pad         padding in F.pad's order (last dimension first), value
OPERATIONS: Mapping[str, Callable[..., Tensor]] = {
    "conv": _conv,
    "linear": lambda operation, x: F.linear(x, operation.tensors["weight"], operation.tensors.get("bias")),
    "scale": _scale,
    "relu": lambda _, x: x.relu(),
    "leaky_relu": lambda operation, x: F.leaky_relu(x, operation.number("slope")),
    "sigmoid": lambda _, x: x.sigmoid(),
    "tanh": lambda _, x: x.tanh(),
    "clip": lambda operation, x: x.clamp(operation.number("low"), operation.number("high")),
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "mean": _mean,
    "reshape": lambda operation, x: x.reshape(x.shape[0], *operation.ints("shape")),
    "transpose": _transpose,
    "pad": lambda operation, x: F.pad(x, operation.ints("padding"), value=operation.number("value")),
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "concat": lambda operation, *xs: torch.cat(xs, int(operation.number("dim")) + 1),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
}


def run_operation(operation: Operation, *inputs: Tensor) -> Tensor:
    """The output of one operation for a batch.

    Args:
        operation: Any operation but the input.
        inputs: Outputs of ``operation.inputs``, each ``[batch, *shape]``.

    Returns:
        ``[batch, *operation.shape]``.
    """
    return OPERATIONS[operation.kind](operation, *inputs)


def run(graph: Graph, x: Tensor, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
    """Evaluate a graph; an intermediate result is dropped as soon as nothing reads it any more.

    Args:
        graph: The network, its constants on the device and in the precision of ``x``.
        x: ``[batch, *graph.input_shape]``.
        see: Shown what every operation reads, by the operation's position.

    Returns:
        ``[batch, *graph.output_shape]``.
    """
    last, output = graph.last_use(), len(graph.operations) - 1
    values: dict[int, Tensor] = {0: x}
    for position, operation in enumerate(graph.operations[1:], start=1):
        if see is not None:
            for source in operation.inputs:
                see(position, values[source])
        values[position] = run_operation(operation, *(values[source] for source in operation.inputs))
        for source in {*operation.inputs, position}:
            if last[source] == position != output:
                del values[source]
    return values[output]


def _exact(constant: Tensor, name: str) -> Tensor:
    """A constant in float64, which holds all numbers of the narrower types."""
    if constant.is_complex() or constant.is_quantized:
        raise ModelError(f"operation {name} has a constant of type {constant.dtype}; only real numbers are supported")
    if not constant.is_floating_point() and bool((constant.abs() > LARGEST_WHOLE).any()):
        raise ModelError(f"operation {name} has a whole number above 2**53 as a constant, which float64 would round")
    return constant.detach().to(torch.float64)


def _blank(batch: int, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(batch, *shape, device="meta", dtype=torch.float64)


class GraphBuilder:
    """Collects operations; shapes are inferred by running each operation on empty (meta) batches."""

    def __init__(self, input_shape: Sequence[int], name: str = "input") -> None:
        self.operations: list[Operation] = [Operation("input", (), tuple(input_shape), name=name)]

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of one sample at an operation."""
        return self.operations[position].shape

    def add(
        self,
        kind: str,
        inputs: Sequence[int],
        tensors: Mapping[str, Tensor | None] | None = None,
        name: str = "",
        **attributes: Attribute,
    ) -> int:
        """Append an operation.

        Args:
            kind: Key of :data:`OPERATIONS`.
            inputs: Positions of its inputs.
            tensors: Constants by name; ``None`` values are left out.
            name: The source's own name of the operation, for messages.
            attributes: Settings of the operation.

        Returns:
            The position of the new operation.

        Raises:
            ModelError: If the operation does not fit the shapes of its inputs, or a constant is no number that float64
                holds.
        """
        constants = {k: _exact(v, name or kind) for k, v in (tensors or {}).items() if v is not None}
        operation = Operation(kind, tuple(inputs), (), constants, attributes, name)
        blank = replace(operation, tensors={k: v.to("meta") for k, v in constants.items()})
        try:
            # Two sizes: a broadcast that takes the batch for another dimension fits one of them at most.
            small, large = (
                run_operation(blank, *(_blank(batch, self.shape(source)) for source in inputs)).shape
                for batch in (2, 3)
            )
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(self.shape(source)) for source in inputs)
            reason = str(error).splitlines()[0]
            raise ModelError(f"operation {name or kind} does not fit inputs of shape {shapes}: {reason}") from error
        if (small[:1], large[:1]) != ((2,), (3,)) or small[1:] != large[1:]:
            raise ModelError(f"operation {name or kind} mixes the samples of a batch, which l0tre cannot use")
        self.operations.append(replace(operation, shape=tuple(small[1:])))
        return len(self.operations) - 1

    def build(self, output: int) -> Graph:
        """The graph up to operation ``output``, without operations that it does not need."""
        needed = {output, 0}
        for position in range(output, 0, -1):
            if position in needed:
                needed.update(self.operations[position].inputs)
        order = sorted(needed)
        place = {old: new for new, old in enumerate(order)}
        return Graph(
            tuple(
                replace(self.operations[old], inputs=tuple(place[source] for source in self.operations[old].inputs))
                for old in order
            )
        )
