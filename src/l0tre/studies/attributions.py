"""Captum's attributions beside ours, on the same images with the same network."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from l0tre.errors import MissingExtraError, require
from l0tre.layout import channel_axis
from l0tre.model.network import Network, exact_float32

__all__ = ["METHODS", "attribute", "captum_missing"]

STEPS = 50  # of integrated gradients, captum's default
FEATURES = 256  # at the most for Shapley sampling: squares of pixels where there are more pixels
SAMPLES = 8  # permutations of Shapley sampling
WINDOWS = 4096  # of occlusion at the most: larger squares where one pixel at a time would be more


def captum_missing() -> str:
    """Why captum's methods cannot be used; empty if they can."""
    try:
        require("captum.attr", "captum")
    except MissingExtraError as error:
        return str(error)
    return ""


def attribute(network: Network, image: Tensor, target: int, method: str) -> tuple[Tensor, float]:
    """An attribution by one of captum's methods.

    Args:
        network: The classifier.
        image: float32 ``shape``.
        target: The class.
        method: One of :data:`METHODS`.

    Returns:
        float32 ``shape`` on the CPU, and the seconds that it took.
    """
    began = time.monotonic()
    with torch.inference_mode(False), torch.enable_grad(), exact_float32(network.device):
        x = image.to(network.device).clone()[None]
        found = METHODS[method](require("captum.attr", "captum"), network, x, target)
    return found[0].detach().float().cpu(), time.monotonic() - began


def _forward(network: Network) -> Callable[[Tensor], Tensor]:
    """Scores of a batch of any size, in parts that fit."""

    def scores(x: Tensor) -> Tensor:
        return torch.cat([network.forward(part) for part in x.split(64)])

    return scores


def _gradients(attr: Any, network: Network, x: Tensor, target: int) -> Tensor:
    found: Tensor = attr.IntegratedGradients(_forward(network)).attribute(
        x, target=target, n_steps=STEPS, internal_batch_size=16
    )
    return found


def _occlusion(attr: Any, network: Network, x: Tensor, target: int) -> Tensor:
    shape, axis = list(x.shape[1:]), channel_axis(tuple(x.shape[1:]))
    spatial = [size for place, size in enumerate(shape) if place != axis]
    side = 1
    while torch.Size(spatial).numel() > WINDOWS * side**2:
        side *= 2
    window = tuple(size if place == axis else 2 * side - 1 if side > 1 else 1 for place, size in enumerate(shape))
    stride = tuple(size if place == axis else side for place, size in enumerate(shape))
    found: Tensor = attr.Occlusion(_forward(network)).attribute(
        x, target=target, sliding_window_shapes=window, strides=stride, perturbations_per_eval=16
    )
    return found


def _shapley(attr: Any, network: Network, x: Tensor, target: int) -> Tensor:
    shape, axis = list(x.shape[1:]), channel_axis(tuple(x.shape[1:]))
    spatial = [size for place, size in enumerate(shape) if place != axis]
    side = 1
    while torch.Size(spatial).numel() > FEATURES * side**2:
        side += 1
    squares = torch.arange(torch.Size(spatial).numel()).reshape(spatial)
    if len(spatial) == 2:
        rows, columns = torch.meshgrid(*(torch.arange(size) // side for size in spatial), indexing="ij")
        squares = rows * (spatial[1] // side + 1) + columns
    _, numbers = squares.unique(return_inverse=True)
    mask = numbers if axis is None else numbers.unsqueeze(axis).expand(shape).contiguous()
    torch.manual_seed(0)
    found: Tensor = attr.ShapleyValueSampling(_forward(network)).attribute(
        x, target=target, feature_mask=mask[None].to(x.device), n_samples=SAMPLES, perturbations_per_eval=16
    )
    return found


METHODS: Mapping[str, Callable[[Any, Network, Tensor, int], Tensor]] = {
    "occlusion": _occlusion,
    "integrated gradients": _gradients,
    "shapley sampling": _shapley,
}
