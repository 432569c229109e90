"""A classifier that is ready to be queried: batches in, scores out, on one device."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from l0tre.errors import ModelError
from l0tre.model.graph import Graph, run
from l0tre.model.rounding import Peaks, bends, gates
from l0tre.names import NO_NAMES, Names

__all__ = ["Network", "exact_float32", "margins", "pick_device", "round_off"]

Scores = Callable[[Tensor], Tensor]


# Two float32 evaluations of one input (other batch size, other device) differ by a few units in the last place of the
# largest score. A margin within this share of it does not count as safe.
ROUND_OFF = 2.0**-19


@dataclass(frozen=True)
class Network:
    """A loaded classifier. Inputs are in the domain's units; normalisation happens inside.

    Attributes:
        forward: Scores of a batch on ``device``: float32 ``[batch, *input_shape]`` to ``[batch, classes]``.
        reference: The same from the network's source on the CPU (onnxruntime for ONNX, the original module for
            PyTorch); witnesses are replayed on it.
        input_shape: Shape of one input.
        classes: Number of classes, at least two.
        device: Where ``forward`` computes.
        graph: The operations, normalisation included, or ``None`` for a black box.
        name: How the user named it.
        fingerprint: Hash of the weights and the normalisation; empty when the source has none.
        note: Why there is no graph; empty when there is one.
        sample_bytes: Estimated peak memory of ``forward`` for one sample, in bytes.
        origin: How to load it again (path, mean, std), when it came from a file or a name.
        exact: The operations in float64 on the CPU, for proofs: constants folded without rounding to float32. ``None``
            where an evaluation of the source in float64 does not confirm them; the note then says why.
        literal: The operations as the source has them, nothing folded, in float64 on the CPU; a softmax at the end is
            left out. For the round-off of the source.
        double: The source evaluated in float64 on the CPU, by code that shares nothing with the importer.
        thresholds: For a function that is constant between thresholds (an ensemble of trees), those of each value,
            float64: values at or below one are on its one side. ``None`` for all others.
        names: What the source calls its values and classes.
        reading: How its output was understood, in words, where that is not plain.
        takes_bytes: Whether its inputs are whole numbers of 0 to 255.
        dropped: The softmax or log-softmax at the source's end that the graphs leave out, see ``simplify``.
    """

    forward: Scores
    reference: Scores
    input_shape: tuple[int, ...]
    classes: int
    device: torch.device
    graph: Graph | None
    name: str
    fingerprint: str = ""
    note: str = ""
    sample_bytes: int = 1
    origin: Mapping[str, Any] = field(default_factory=dict)
    exact: Graph | None = None
    literal: Graph | None = None
    double: Scores | None = None
    dropped: str = ""
    thresholds: tuple[Tensor, ...] | None = None
    names: Names = NO_NAMES
    reading: str = ""
    takes_bytes: bool = False

    @torch.inference_mode()
    def scores(self, x: Tensor) -> Tensor:
        """Scores of a batch, on ``device``.

        Args:
            x: float32 ``[batch, *input_shape]``, any device.

        Returns:
            float32 ``[batch, classes]``.
        """
        with exact_float32(self.device):
            return self.forward(x.to(self.device))

    @torch.inference_mode()
    def watched_scores(self, x: Tensor, peaks: Peaks) -> Tensor:
        """As :meth:`scores`, for a network with a graph, and note the largest values on the way."""
        if self.graph is None:
            return self.scores(x)
        operations, numbers = self.graph.operations, bends(self.graph)

        def see(position: int, value: Tensor) -> None:
            if position in numbers:
                peaks.see(numbers[position], value, relu=gates(operations[position]))

        with exact_float32(self.device):
            return run(self.graph, x.to(self.device), see)

    @torch.inference_mode()
    def source_scores(self, x: Tensor) -> Tensor:
        """Scores of a batch by the network's own source, on the CPU: float32 ``[batch, classes]``."""
        return self.reference(x.cpu())

    @torch.inference_mode()
    def replay(self, x: Tensor) -> Tensor:
        """Scores of a single input by the network's own source, on the CPU.

        Args:
            x: float32 ``input_shape``.

        Returns:
            float32 ``[classes]`` on the CPU.
        """
        return self.reference(x.cpu()[None])[0]


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """No TF32 inside: on CUDA, matrix products and convolutions could otherwise be rounded to ten bits of mantissa."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        # Without the first argument this would switch cuDNN off.
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def margins(scores: Tensor, labels: Tensor) -> Tensor:
    """How far each label's score is above the best other score.

    Args:
        scores: ``[batch, classes]``.
        labels: int64 ``[batch]``.

    Returns:
        ``[batch]``; zero for a tie, negative for another decision, NaN for NaN scores.
    """
    own = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], float("-inf"))
    return (own - others.amax(1, keepdim=True))[:, 0]


def round_off(scores: Tensor) -> Tensor:
    """Largest margin that does not count as safe, for each row of scores ``[rows, classes]``."""
    return ROUND_OFF * scores.abs().amax(1)


def pick_device(wish: str) -> torch.device:
    """The device for a user's wish.

    Args:
        wish: ``auto`` (CUDA when there is one), ``cpu``, ``cuda`` or ``cuda:1``.

    Returns:
        The device.

    Raises:
        ModelError: If it does not exist here.
    """
    if wish == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise ModelError(f"device {wish!r} is unknown: give auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"device {wish!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices: give cpu or auto"
        )
    return device
