"""Mean and standard deviation as part of the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.layout import channel_axis
from l0tre.model.graph import Graph, Operation

__all__ = ["Normalisation", "make_normalisation", "prepend"]


@dataclass(frozen=True)
class Normalisation:
    """``(x - mean) / std``, both broadcast against one sample's shape."""

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise a batch."""
        return (x - self.mean.to(x.device)) / self.std.to(x.device)


def make_normalisation(
    mean: Sequence[float] | float | None, std: Sequence[float] | float | None, shape: tuple[int, ...]
) -> Normalisation | None:
    """The normalisation for inputs of one shape.

    Args:
        mean: One number, or one for each channel (for vectors: each feature); ``None`` for 0.
        std: Likewise; ``None`` for 1.
        shape: Shape of one input.

    Returns:
        The normalisation, or ``None`` when neither was given.

    Raises:
        ModelError: If the numbers do not fit the shape, are not finite, or ``std`` is not positive.
    """
    if mean is None and std is None:
        return None
    result = Normalisation(_spread(mean, 0.0, shape, "mean"), _spread(std, 1.0, shape, "std"))
    if not bool((result.std > 0).all()):
        raise ModelError(f"std {std} must be above 0 everywhere")
    return result


def _spread(numbers: Sequence[float] | float | None, default: float, shape: tuple[int, ...], what: str) -> Tensor:
    values = torch.tensor([default] if numbers is None else numbers, dtype=torch.float32).reshape(-1)
    if not torch.isfinite(values).all():
        raise ModelError(f"{what} {numbers} holds a value that is not finite: give finite numbers")
    if len(values) == 1:
        return values.reshape(())
    axis = 0 if len(shape) == 1 else channel_axis(shape)
    if axis is not None and len(values) == shape[axis]:
        return values.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    kind = "feature" if len(shape) == 1 else "channel"
    choice = "" if axis is None or shape[axis] == 1 else f", or {shape[axis]}: one for each {kind}"
    raise ModelError(f"{what} has {len(values)} numbers, inputs have shape {shape}: give one number{choice}")


def prepend(normalisation: Normalisation, graph: Graph) -> Graph:
    """The graph with the normalisation as its first operation, whose constants are float64."""
    mean, std = normalisation.mean.double(), normalisation.std.double()
    tensors = {"scale": 1 / std, "shift": -mean / std}
    scale = Operation("scale", (0,), graph.input_shape, tensors, name="normalisation")
    rest = [
        replace(operation, inputs=tuple(source + 1 for source in operation.inputs))
        for operation in graph.operations[1:]
    ]
    return Graph((graph.operations[0], scale, *rest))
