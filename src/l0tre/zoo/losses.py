"""What training makes small: the cross entropy, or losses that ask for robustness too."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0tre.zoo.recipes import Adversarial, CrossEntropy, Loss, Trades

__all__ = ["loss_and_scores"]

# How far from an image TRADES begins its ascent: at the image itself the divergence has no slope.
_START = 1e-3


def loss_and_scores(
    loss: Loss, module: nn.Module, images: Tensor, labels: Tensor, done: float
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and the scores that its accuracy is counted with.

    Args:
        loss: Which one.
        module: In training mode, and left so; the ascent on images runs it in evaluation mode.
        images: ``[batch, *shape]`` in [0, 1].
        labels: ``[batch]``, int64.
        done: Share of the training that is over, from 0 to 1.

    Returns:
        The loss, a scalar, and scores ``[batch, classes]``, at the points that the cross entropy is taken at.
    """
    if isinstance(loss, CrossEntropy):
        scores = module(images)
        return F.cross_entropy(scores, labels), scores
    grown = min(1.0, done / loss.warm_up) if loss.warm_up > 0 else 1.0
    if isinstance(loss, Adversarial):
        start = images + _random_start(images, loss.norm, grown * loss.radius)
        worst = _ascend(module, images, start, loss, loss.norm, grown, lambda scores: _surprise(scores, labels))
        scores = module(worst)
        return F.cross_entropy(scores, labels), scores
    module.eval()
    with torch.no_grad():
        target = module(images).softmax(1)
    module.train()
    start = images + _START * torch.randn(images.shape).to(images.device)
    worst = _ascend(module, images, start, loss, "linf", grown, lambda scores: _divergence(scores, target))
    scores = module(images)
    divergence = _divergence(module(worst), scores.softmax(1)) / len(images)
    return F.cross_entropy(scores, labels) + loss.weight * divergence, scores


def _surprise(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, summed over the batch."""
    return F.cross_entropy(scores, labels, reduction="sum")


def _divergence(scores: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the outputs from the target shares, summed over the batch."""
    return F.kl_div(scores.log_softmax(1), target, reduction="sum")


def _ascend(
    module: nn.Module,
    images: Tensor,
    start: Tensor,
    loss: Adversarial | Trades,
    norm: str,
    grown: float,
    height: Callable[[Tensor], Tensor],
) -> Tensor:
    """Points near the images where ``height`` of the scores is large, by projected gradient ascent."""
    module.eval()
    points = start.clamp(0, 1)
    for _ in range(loss.steps):
        points.requires_grad_()
        (slope,) = torch.autograd.grad(height(module(points)), points)
        points = points.detach() + grown * loss.step * _direction(slope, norm)
        points = (images + _into_ball(points - images, norm, grown * loss.radius)).clamp(0, 1)
    module.train()
    return points.detach()


def _direction(slope: Tensor, norm: str) -> Tensor:
    return slope.sign() if norm == "linf" else slope / _lengths(slope).clamp(min=1e-12)


def _into_ball(change: Tensor, norm: str, radius: float) -> Tensor:
    if norm == "linf":
        return change.clamp(-radius, radius)
    return change * (radius / _lengths(change).clamp(min=1e-12)).clamp(max=1)


def _random_start(images: Tensor, norm: str, radius: float) -> Tensor:
    """Changes within the ball; drawn on the CPU, so that a seed means the same on every device."""
    change = (2 * torch.rand(images.shape) - 1).to(images.device)
    return radius * (change if norm == "linf" else change / _lengths(change).clamp(min=1e-12))


def _lengths(values: Tensor) -> Tensor:
    """Euclidean length of each image, shaped to broadcast over it."""
    lengths: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return lengths.reshape(-1, *[1] * (values.dim() - 1))
