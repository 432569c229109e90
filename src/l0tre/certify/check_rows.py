"""Linear forms carried from any layer back to the input, for the checker of certificates.

A row is a linear form of the difference between a layer's values and those at the image. On the way back every
coefficient takes the line below its operation (above, if it is negative), so that the form nowhere grows. What a line
misses at the image's own value is its gap. An output that sees no changed pixel keeps its value, and its gap need not be
paid: instead of paying all gaps of a layer once, each changed pixel can pay those of all outputs that see it. Both are
lower bounds, since gaps are never above 0, and the better is taken for each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l0tre.certify.check_lines import Around
from l0tre.certify.check_reach import Layers, Reach
from l0tre.model.graph import Node, run_node

__all__ = ["Form", "Window", "carry", "carry_windows"]


@dataclass(frozen=True)
class Window:
    """A part of the input for each entry of a batch, of which some may lie outside the input.

    Attributes:
        top: int64 ``[batch]``, its first row.
        left: int64 ``[batch]``, its first column.
        size: Height and width.
    """

    top: Tensor
    left: Tensor
    size: tuple[int, int]

    def plane(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Numbers of its pixels in maps ``(C, H, W)``, int64 ``[batch, pixels]``, and which of them exist.

        The number of a pixel that does not exist is that of another one.
        """
        (y, has_y), (x, has_x) = (
            (place.clamp(0, most - 1), (place >= 0) & (place < most))
            for place, most in (
                (self.top[:, None] + torch.arange(self.size[0], device=self.top.device), shape[1]),
                (self.left[:, None] + torch.arange(self.size[1], device=self.top.device), shape[2]),
            )
        )
        numbers = y[:, :, None] * shape[2] + x[:, None]
        return numbers.flatten(1), (has_y[:, :, None] & has_x[:, None]).flatten(1)

    def index(self, shape: tuple[int, ...]) -> Tensor:
        """Numbers of its values in flattened maps ``(C, H, W)``, int64 ``[batch, C * pixels]``."""
        channel = torch.arange(shape[0], device=self.top.device) * (shape[1] * shape[2])
        return (self.plane(shape)[0][:, None] + channel[:, None]).flatten(1)


@dataclass(frozen=True)
class Form:
    """Lower bounds ``constant + gradient * (x - image)``, less what changed pixels cost whatever their values.

    Attributes:
        gradient: float64 ``[batch, rows, values]``; of a window, ``[batch, rows, channels * pixels]``.
        constant: float64 ``[batch, rows]``.
        costs: float64 ``[batch, rows, pixels]``, at most 0; ``None`` for none.
        window: Which part of the input the form is about; ``None`` for all of it.
    """

    gradient: Tensor
    constant: Tensor
    costs: Tensor | None = None
    window: Window | None = None


def carry(layers: Layers, position: int, rows: Tensor, lines: Mapping[int, Around], changes: int) -> Form:
    """Carry rows of whole layers to the input.

    Args:
        layers: The network.
        position: Whose values the rows are of.
        rows: float64 ``[batch, rows, values]``.
        lines: Of all operations before that are not linear, for the same batch.
        changes: Most pixels that change; 0 if all gaps are to be paid.

    Returns:
        Lower bounds of the rows over the regions of the batch.
    """
    nodes, constant = layers.nodes, rows.new_zeros(rows.shape[:2])
    costs: Tensor | None = None
    pending = {position: rows}
    for place in range(position, 0, -1):
        if place not in pending:
            continue
        node, rows = nodes[place], pending.pop(place)
        shapes = [nodes[source].shape for source in node.inputs]
        if place in lines:
            line = lines[place]
            rows, gaps = _relaxed(rows, line.maps)
            if changes and place in layers.reach:
                reach, (height, width) = layers.reach[place], nodes[0].shape[1:]
                gaps = gaps.view(*rows.shape[:2], *node.shape)
                paid, costs = _charged(gaps, reach, reach.offset, (height, width), changes, costs)
            else:
                paid = gaps.sum(2)
            constant += paid
            if line.index is not None:
                blank = rows.new_zeros(*rows.shape[:2], nodes[node.inputs[0]].size)
                rows = blank.scatter_add_(2, line.index[:, None].expand_as(rows), rows)
            parts = [rows]
        else:
            parts = [part.flatten(2) for part in _transposed(node, shapes, rows.view(*rows.shape[:2], *node.shape))]
        for source, part in zip(node.inputs, parts, strict=True):
            pending[source] = pending[source] + part if source in pending else part
    gradient = pending[0] if 0 in pending else constant.new_zeros(*constant.shape, nodes[0].size)
    return Form(gradient, constant, costs)
