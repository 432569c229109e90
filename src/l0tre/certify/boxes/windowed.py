"""Images ready for bounds by clusters: the weights after the windows, the margins as rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.certify.boxes.window_forms import LocalNetwork
from l0tre.certify.relax.instance import Instance

__all__ = ["Windowed", "can_interact", "make_windowed"]


@dataclass(frozen=True)
class Windowed:
    """Images ready for bounds by clusters.

    Attributes:
        local: The network's windows.
        instance: The images.
        kinds: int64 ``[images]``, which weights of ``weights`` hold for each image.
        weights: float64 ``[kinds, H, W, C, features]`` of the dense layer after the windows. If that gives the scores,
            its features are the margins of one specification each; else its own outputs, of one kind.
        rows: float64 ``[images, classes - 1, values]``, the margins as rows of what the last operation reads; empty if
            the dense layer gives them.
        budget: Bytes for what is carried together.
    """

    local: LocalNetwork
    instance: Instance
    kinds: Tensor
    weights: Tensor
    rows: Tensor
    budget: int


def make_windowed(local: LocalNetwork, instance: Instance, budget: int) -> Windowed:
    """Prepare images."""
    graph = local.plan.graph
    shape = graph.operations[local.plan.cut].shape
    head = graph.operations[local.plan.tail - 1].tensors["weight"]
    if local.flat:
        first, kinds = _distinct(instance.rows)
        weights, rows = instance.rows[first] @ head, instance.rows[:0]
    else:
        kinds, weights = torch.zeros(len(instance.images), dtype=torch.int64, device=head.device), head[None]
        last = graph.operations[-1]
        rows = instance.rows @ last.tensors["weight"] if last.kind == "linear" else instance.rows
    weights = weights.view(*weights.shape[:2], *shape).permute(0, 3, 4, 2, 1).contiguous()
    return Windowed(local, instance, kinds, weights, rows, budget)


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where each different entry is found first, and which one every entry is."""
    found, which = rows.unique(dim=0, return_inverse=True)
    first = (which[None] == torch.arange(len(found), device=rows.device)[:, None]).int().argmax(1)
    return first, which


def can_interact(local: LocalNetwork, first: Tensor, second: Tensor) -> Tensor:
    """Whether a neuron can see both of two pixels, given by their numbers in the input's plane; bool."""
    width = local.plan.graph.input_shape[2]
    down = (first // width - second // width).abs()
    right = (first % width - second % width).abs()
    return (down < local.sight[0]) & (right < local.sight[1])
