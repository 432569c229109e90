"""Networks that give a single number for two classes: a probability of the second one, or a logit."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.graph import Graph, Operation

__all__ = ["Single", "append_two_classes", "read_single", "two_scores"]

Single = Literal["probability", "logit"]

FAR = 100.0  # times the usual inputs: where a logit leaves [0, 1], but no probability does
WEIGHT = ((-1.0,), (1.0,))
BIASES = {"probability": (1.0, 0.0), "logit": (0.0, 0.0)}


@torch.inference_mode()
def read_single(source: Callable[[Tensor], Tensor], points: Tensor) -> Single | None:
    """What a network's single number is; ``None`` for a network of two scores or more.

    Args:
        source: From a batch to what the network gives.
        points: Usual inputs, ``[points, *input_shape]``.

    Returns:
        ``probability`` if it stays between 0 and 1 even far away, else ``logit``.
    """
    near = source(points)
    if near.ndim == 2 and near.shape[1] != 1:
        return None
    values = torch.cat([near.flatten(), *(source(points * far).flatten() for far in (FAR, -FAR))])
    return "probability" if bool(((values >= 0) & (values <= 1)).all()) else "logit"


def two_scores(source: Callable[[Tensor], Tensor], kind: Single) -> Callable[[Tensor], Tensor]:
    """The network with a score for each class; the second wins above a probability of 0.5, a logit of 0."""

    def scores(x: Tensor) -> Tensor:
        given = source(x)
        if given.numel() != len(x):
            raise ModelError(
                f"the network gives {tuple(given.shape)} for a batch of {len(x)}: expected one number each"
            )
        single = given.reshape(len(x), 1)
        weight, bias = (torch.tensor(part, dtype=single.dtype, device=x.device) for part in (WEIGHT, BIASES[kind]))
        return F.linear(single, weight, bias)

    return scores


def append_two_classes(graph: Graph, kind: Single) -> Graph:
    """The same for a graph with one output, as a last operation in float64."""
    tensors = {"weight": torch.tensor(WEIGHT).double(), "bias": torch.tensor(BIASES[kind]).double()}
    last = len(graph.operations) - 1
    return Graph((*graph.operations, Operation("linear", (last,), (2,), tensors, name="two classes")))
