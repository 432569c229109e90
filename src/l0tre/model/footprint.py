"""How much memory a forward pass takes, to size batches before anything runs out."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["sample_bytes"]

PROBE = 4  # batch size of the probing pass
SAFETY = 3  # layout copies of the backends, results kept for residual branches
BLIND = 64  # for code that torch cannot see into: this many times the input's size


class _Largest(TorchDispatchMode):
    """Records the largest sum of batch-sized inputs and outputs of any single operation, in bytes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: else torch imports its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        batched = [t for t in tensors if t.ndim > 0 and t.shape[0] == PROBE]
        self.bytes = max(self.bytes, sum(t.numel() * t.element_size() for t in batched))
        return result


@torch.inference_mode()
def sample_bytes(forward: Callable[[Tensor], Tensor], shape: tuple[int, ...], device: torch.device) -> int:
    """Estimate the peak memory of a forward pass.

    Args:
        forward: Scores of a batch on ``device``.
        shape: Shape of one input.
        device: Where it computes.

    Returns:
        Bytes for each sample of a batch; the constants of the network are not counted.
    """
    batch = torch.zeros(PROBE, *shape, device=device)
    with _Largest() as seen:
        forward(batch)
    own = 4 * math.prod(shape)
    inside = SAFETY * seen.bytes // PROBE if seen.bytes else BLIND * own
    return inside + 2 * own  # and the changed inputs themselves, while they are made
