"""sigma-zero by its paper (Cina et al., ICLR 2025), for machines without adv-lib; the same inputs come out of both."""

import math

import torch
from torch import Tensor, nn

__all__ = ["sigma_zero"]

# The published defaults: step length, smoothing of the count, first threshold, and its change for each step length.
RATE, SMOOTHING, THRESHOLD, PACE = 1.0, 1e-3, 0.3, 0.01
DECAY = (0.9, 0.999)  # Adam's


def sigma_zero(model: nn.Module, images: Tensor, labels: Tensor, budget: int, seed: int) -> Tensor:  # noqa: ARG001
    """Adam on the margin plus a smooth count of changed values, with a threshold below which changes are undone.

    Args:
        model: A differentiable network.
        images: In [0, 1]: ``[n, *shape]``.
        labels: int64 ``[n]``.
        budget: Passes for each image; a step takes two.
        seed: Not used: nothing is random.

    Returns:
        ``[n, *shape]``: the adversarial input with the fewest changed values, the original where there is none.
    """
    steps = max(1, budget // 2)
    shape = (-1, *[1] * (images.ndim - 1))
    change, mean, square = (torch.zeros_like(images) for _ in range(3))
    threshold = torch.full((len(images),), THRESHOLD, device=images.device)
    best, fewest = images.clone(), torch.full_like(threshold, images[0].numel())
    rate = RATE
    for step in range(steps):
        change = change.detach().requires_grad_()
        inputs = images + change
        scores = model(inputs)
        own = labels[:, None]
        rivals = scores.scatter(1, own, float("-inf")).amax(1)
        margin = (scores.gather(1, own)[:, 0] - rivals).clamp(min=0)
        squared = change**2
        smooth = (squared / (squared + SMOOTHING)).flatten(1).mean(1)
        (slope,) = torch.autograd.grad((margin + smooth).sum(), change)
        change = change.detach()
        hit = scores.argmax(1) != labels
        count = (change != 0).flatten(1).sum(1).to(fewest)
        better = hit & (count < fewest)
        fewest = torch.where(better, count, fewest)
        best = torch.where(better.reshape(shape), inputs.detach(), best)
        slope = slope / slope.flatten(1).abs().amax(1).clamp(min=1e-12).reshape(shape)
        mean = mean.lerp(slope, 1 - DECAY[0])
        square = square * DECAY[1] + (1 - DECAY[1]) * slope**2
        scale = (square.sqrt() / math.sqrt(1 - DECAY[1] ** (step + 1))) + 1e-8
        change = change - rate / (1 - DECAY[0] ** (step + 1)) * mean / scale
        change = (images + change).clamp(0, 1) - images
        rate = 0.1 * RATE + 0.9 * RATE * (1 + math.cos(math.pi * step / steps)) / 2
        threshold = (threshold + torch.where(hit, PACE * rate, -PACE * rate)).clamp(0, 1)
        change = torch.where(change.abs() < threshold.reshape(shape), 0, change)
    return best
