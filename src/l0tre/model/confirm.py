"""Is the graph that proofs are about the model? An independent evaluation of the source in float64 tells."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.errors import L0treError
from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.model.network import Network
from l0tre.model.operations import KINDS
from l0tre.model.operations.kind import Linear
from l0tre.model.user_code import user_code

__all__ = ["check_points", "differs", "float64_gap"]

POINTS = 3  # of each kind: corners of the domain, and any points of it
# Two float64 evaluations of one input differ by some units in the last place (2**-53) of the largest sum of absolute
# values on the way; one of them with a constant rounded to float32 differs by 2**-25 of it.
TOLERANCE = 2.0**-42
SECONDS = 5.0  # for the comparison; a large network is compared on fewer points,
LEAST_POINTS = 3  # but on these at least
SATURATED = 600.0  # logits this far below the largest one are no numbers after a softmax


def check_points(low: Tensor, high: Tensor, images: Tensor | None = None) -> Tensor:
    """Inputs all over a domain.

    Args:
        low: float32 ``shape``, smallest values.
        high: Likewise the largest.
        images: float32 ``[images, *shape]`` of the domain; a few of them and mixtures with corners are added.

    Returns:
        float32 ``[points, *shape]``: both ends, random corners, random points.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (POINTS, *low.shape)
    low, high = low.cpu().float(), high.cpu().float()
    corners = torch.where(torch.rand(shape, generator=generator) < 0.5, low, high)
    # Clamped, since rounding could leave the domain.
    inner = torch.minimum(torch.maximum(low + torch.rand(shape, generator=generator) * (high - low), low), high)
    # A point of each kind first: for a large network the time does not do for all.
    points = [inner[:1], corners[:1], low[None], high[None], inner[1:], corners[1:]]
    if images is not None and len(images):
        some = images[:POINTS].cpu().float().reshape(-1, *low.shape)
        few = torch.rand(some.shape, generator=generator) < 0.1
        points = [some[:1], *points, some[1:], torch.where(few, corners[: len(some)], some)]
    return torch.cat(points)


@torch.inference_mode()
def float64_gap(graph: Graph, source: Tensor, x: Tensor, dropped: str) -> float:
    """How far a graph is from its source, in units of what float64 round-off explains.

    Args:
        graph: In float64 on the CPU.
        source: float64 ``[points, classes]``, the source's scores.
        x: float64 ``[points, *input_shape]``.
        dropped: The operation at the source's end that the graph does not have, see ``simplify.final_softmax``.

    Returns:
        The largest difference of scores over the points, divided by the tolerance there: at most 1 if they agree; NaN
        if a score is not a number.
    """
    values, sizes = [x], x.abs().flatten(1).amax(1)
    for operation in graph.operations[1:]:
        inputs = [values[source_] for source_ in operation.inputs]
        values.append(run_operation(operation, *inputs))
        sizes = torch.maximum(sizes, _largest_sum(operation, inputs, values[-1]))
    found, wanted = values[-1].flatten(1), source
    if dropped:
        # Compared as logits: probabilities near 0 and 1 would hide any difference.
        found = found.log_softmax(1)
        wanted = wanted.log() if dropped == "softmax" else wanted
        gone = (wanted == -torch.inf) & (found < -SATURATED)
        found, wanted = found.masked_fill(gone, 0.0), wanted.masked_fill(gone, 0.0)
    return float(((found - wanted).abs().amax(1) / (TOLERANCE * (sizes + torch.finfo(torch.float64).tiny))).max())


def _largest_sum(operation: Operation, inputs: list[Tensor], output: Tensor) -> Tensor:
    """The largest sum of absolute values of products that an operation forms, for each sample."""
    kind = KINDS[operation.kind]
    if isinstance(kind, Linear) and kind.summing == "move":  # padded with minus infinity, before a max pool
        output = output.masked_fill(torch.isinf(output), 0.0)
    largest = output.abs().flatten(1).amax(1)
    if isinstance(kind, Linear) and operation.tensors:
        sums = run_operation(kind.absolute(operation, 1, True), inputs[0].abs())
        largest = torch.maximum(largest, sums.flatten(1).amax(1))
    return largest


def differs(network: Network, points: Tensor, pulse: Callable[[], None] = lambda: None) -> str:
    """Why the graph that proofs are about cannot be taken for the network; empty if it can.

    Args:
        network: With a graph in float64 (``exact``).
        points: float32 ``[points, *input_shape]``.
        pulse: Called before every point; may raise ``Halted``.

    Returns:
        The reason, in words.
    """
    if network.exact is None or network.double is None:
        return network.note or "its operations are not known"
    began = time.monotonic()
    for number, x in enumerate(points.double()[:, None]):
        if number >= LEAST_POINTS and time.monotonic() - began > SECONDS:
            break
        pulse()
        try:
            with user_code(str):
                wanted = network.double(x)
        except L0treError as error:
            return f"it cannot be evaluated in float64, so nothing confirms its graph: {error}"
        if wanted.shape != (1, network.classes):
            return f"in float64 it gives scores of shape {tuple(wanted.shape)} for one input"
        gap = float64_gap(network.exact, wanted.double(), x, network.dropped)
        if not gap <= 1:  # NaN differs
            return (
                "in float64 its own code and the imported operations give different scores "
                f"({gap:.3g} times what round-off explains)"
            )
    return ""
