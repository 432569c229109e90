"""A network that counts how often it is asked, for attacks that do not."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Counting"]


class Counting(nn.Module):
    """A network as a module that counts the samples of forward and backward passes.

    Attributes:
        forwards: Samples that went forward.
        backwards: Samples whose scores' gradient was asked for; twice for two backward passes through one forward.
    """

    def __init__(
        self, scores: Callable[[Tensor], Tensor], device: torch.device, each: Callable[["Counting"], None]
    ) -> None:
        """Wrap a network.

        Args:
            scores: From a batch to scores ``[batch, classes]``.
            device: Where it computes.
            each: Called after every count, for progress; it may raise to end the attack.
        """
        super().__init__()
        self.scores = (scores,)  # a module would become a part of this one, to be moved along with it
        self.each = each
        self.forwards = 0
        self.backwards = 0
        # Libraries ask a module's first parameter for the device.
        self.device = nn.Parameter(torch.empty(0, device=device), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of a batch, counted."""
        self.forwards += len(x)
        self.each(self)
        scores = self.scores[0](x)
        if not scores.requires_grad:
            return scores
        counted: Tensor = _Backward.apply(scores, self)  # type: ignore[no-untyped-call]
        return counted


class _Backward(torch.autograd.Function):
    """The identity, counted on the way back."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, counter: Counting) -> Tensor:
        ctx.counter = counter
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        ctx.counter.backwards += len(gradient)
        return gradient, None
