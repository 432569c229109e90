"""Runs the network for an attack and counts what each image costs."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l0tre.attacks.rows import places
from l0tre.errors import ModelError
from l0tre.halting import Clock
from l0tre.memory import Batcher
from l0tre.model.network import Network, exact_float32
from l0tre.tuning import DEFAULT_TUNING, Tuning

if TYPE_CHECKING:
    from l0tre.attacks.corners import Corners

__all__ = ["Meter", "has_gradients"]

# A backward pass keeps every activation that a forward pass may drop.
BACKWARD_SHARE = 4

Loss = Callable[[Tensor, slice], Tensor]


def has_gradients(network: Network) -> bool:
    """Whether scores can be differentiated with respect to the input."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.zeros(1, *network.input_shape, device=network.device, requires_grad=True)
            # Scores may depend on parameters that want gradients without depending on the input.
            torch.autograd.grad(network.forward(x).sum(), x)
    except (ModelError, RuntimeError, TypeError, ValueError):  # a function that leaves torch, or refuses such a tensor
        return False
    return True


class Meter:
    """A network, its memory budget, and the queries that were spent on each image.

    Attributes:
        tuning: How large batches are.
        forwards: int64 ``[images]``, forward passes so far.
        backwards: int64 ``[images]``, backward passes so far.
        halted: Whether the work should stop; asked inside long steps.
        watch: Called after every query.
        best: What the method at work has found so far, see :meth:`working_copy`.
        corners: How all sets of groups are scanned, once a method needed it, see ``corners.corners_of``.
    """

    def __init__(
        self,
        network: Network,
        images: int,
        memory: int,
        halted: Callable[[], bool] = lambda: False,
        tuning: Tuning = DEFAULT_TUNING,
    ) -> None:
        self.network = network
        self.memory = memory
        self.tuning = tuning
        self.clock = Clock(halted, tuning.grace_seconds)
        self.batcher = Batcher(network, memory, tuning, self.clock.pulse)
        self.forwards = torch.zeros(images, dtype=torch.int64, device=network.device)
        self.backwards = torch.zeros(images, dtype=torch.int64, device=network.device)
        self.halted = halted
        self.watch: Callable[[], None] = lambda: None
        self.best = torch.empty(0)
        self.corners: Corners | None = None

    @property
    def spent(self) -> Tensor:
        """Forward and backward passes so far, int64 ``[images]``."""
        return self.forwards + self.backwards

    def working_copy(self, best: Tensor) -> Tensor:
        """A copy for a method to improve in place: what is in it counts even if the method is halted in a batch."""
        self.best = best.clone()
        return self.best

    def affords(self, owner: Tensor, limit: Tensor, each: int = 1) -> Tensor:
        """Which rows can be queried within a limit, those of an image one after the other.

        Args:
            owner: int64 ``[rows]``, the image behind each input.
            limit: int64 ``[images]``, passes that an image may have spent in the end.
            each: Passes that a row costs.

        Returns:
            bool ``[rows]``.
        """
        return self.spent[owner] + each * (places(owner) + 1) <= limit[owner]

    def charge(self, images: Tensor, queries: Tensor | int) -> None:
        """Count forward passes that were made elsewhere.

        Args:
            images: int64 ``[rows]``, without repetition.
            queries: For each of them.
        """
        self.forwards[images] += queries

    def scores(self, owner: Tensor, make: Callable[[int, int], Tensor]) -> Tensor:
        """Scores of inputs that are made as they are needed.

        Args:
            owner: int64 ``[rows]``, the image behind each input.
            make: Gives the inputs of rows ``start`` to ``stop`` as ``[stop - start, values]``.

        Returns:
            float32 ``[rows, classes]``.

        Raises:
            Halted: If the work should stop.
        """
        shape = self.network.input_shape
        self.forwards += torch.bincount(owner, minlength=len(self.forwards))
        scores = self.batcher.run(len(owner), lambda start, stop: make(start, stop).reshape(-1, *shape))
        self.watch()
        return scores

    def gradients(self, owner: Tensor, inputs: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Scores, and the gradient of a loss with respect to each input.

        Args:
            owner: int64 ``[rows]``, the image behind each input.
            inputs: float32 ``[rows, values]``.
            loss: From scores ``[part, classes]`` of some rows, and which ones, to a loss for each.

        Returns:
            float32 ``[rows, classes]`` and ``[rows, values]``.

        Raises:
            Halted: If the work should stop.
            ModelError: If the network gives NaN or infinite gradients.
        """
        count = torch.bincount(owner, minlength=len(self.forwards))
        self.forwards += count
        self.backwards += count
        scores = torch.empty(len(inputs), self.network.classes, device=inputs.device)
        slopes = torch.empty(inputs.shape, device=inputs.device)
        start = 0
        while start < len(inputs):
            self.clock.pulse()
            size, began = max(1, self.batcher.rows // BACKWARD_SHARE), time.monotonic()
            rows = slice(start, min(start + size, len(inputs)))
            try:
                scores[rows], slopes[rows] = self._differentiate(inputs[rows], rows, loss)
            except torch.OutOfMemoryError as error:
                if self.batcher.rows == 1:
                    raise ModelError("the device has too little memory for one input: use `device='cpu'`") from error
                torch.cuda.empty_cache()
                self.batcher.rows = self.batcher.most = self.batcher.rows // 2
                continue
            self.batcher.adapt(time.monotonic() - began, full=rows.stop - start == size)
            start = rows.stop
        if not bool(torch.isfinite(slopes).all()):
            raise ModelError(
                f"{self.network.name} gives NaN or infinite gradients inside the domain: check the model, or use a "
                "method without gradients (greedy, search)"
            )
        self.watch()
        return scores, slopes

    def _differentiate(self, inputs: Tensor, rows: slice, loss: Loss) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False), torch.enable_grad(), exact_float32(self.network.device):
            x = inputs.clone().requires_grad_()
            scores = self.network.forward(x.reshape(-1, *self.network.input_shape))
            (slope,) = torch.autograd.grad(loss(scores, rows).sum(), x)
        return scores.detach(), slope
