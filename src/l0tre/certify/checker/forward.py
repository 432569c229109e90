"""A network that gives margins, ready for boxes of values: layers that go in windows, what follows, what is near.

Its last operation gives the label's lead over every other class, so that margins are bounded as one operation.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from l0tre.certify.checker.margins import LINEAR, Bounder, absolute
from l0tre.certify.checker.round_off import drifts, product_unit
from l0tre.certify.checker.windows import LocalLayers, make_local
from l0tre.model.graph import Graph, Operation

__all__ = ["Forward", "make_forward", "near", "parts_of", "with_margins"]


@dataclass(frozen=True)
class Forward:
    """A network that gives margins, ready for boxes.

    Attributes:
        bounder: The network, its last operation gives the margins; the image; magnitudes for the round-off.
        local: The layers that are carried in windows; nothing but the input for none.
        plain: The operations without their constants.
        positive: The linear operations with absolute weights.
        units: By position of a linear operation, see ``product_unit``.
        drift: For every operation how far the image's own values can be off, see ``drifts``.
        heads: For maps where windows end and that only dense layers read, flattened: the positions of these layers.
        spans: int64 ``[groups, 4]``, first and last row, first and last column of each group's pixels; zeros if the
            input is no image.
    """

    bounder: Bounder
    local: LocalLayers
    plain: tuple[Operation, ...]
    positive: Mapping[int, Operation]
    units: Mapping[int, float]
    drift: tuple[Tensor, ...]
    heads: Mapping[int, tuple[int, ...]]
    spans: Tensor

    @property
    def ends(self) -> tuple[int, ...]:
        """Where :func:`carry` ends: maps, and dense layers in place of those that only they read."""
        maps = [p for p in self.local.exits if p not in self.heads]
        return (*maps, *(layer for layers in self.heads.values() for layer in layers))

    @property
    def widest(self) -> int:
        """Most values of an operation that is held as a whole."""
        skipped = {s for layers in self.heads.values() for layer in layers for s in self.plain[layer].inputs}
        inside = {*self.local.reach} - {0, *self.ends}
        return max(math.prod(o.shape) for p, o in enumerate(self.plain) if p not in skipped | inside)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.spans.device

    def tables(self, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """The image's own values, their limits and their drift, flattened, with one entry for none."""
        most = self.bounder.limit[position] + self.bounder.slack[position]
        parts = (self.bounder.own[position], most, self.drift[position])
        own, most, drift = (F.pad(part.flatten(), (0, 1)) for part in parts)
        return own, most, drift

    @property
    def own(self) -> Tensor:
        """The margins at the image, ``[rivals]``."""
        return self.bounder.own[-1].flatten()

    @property
    def own_least(self) -> Tensor:
        """Lower bounds of the margins at the image."""
        return self.own - self.drift[-1].flatten()


def with_margins(graph: Graph, label: int) -> Graph:
    """The network that gives the label's lead over every other class in place of the scores."""
    last = graph.operations[-1]
    others = [c for c in range(math.prod(last.shape)) if c != label]
    if last.kind == "linear" and len(last.shape) == 1:
        # Differences of weights are off by an ulp of themselves, as a product with them is: ``product_unit`` allows it.
        tensors = {
            key: value[label] + value[others] if key.endswith("_terms") else value[label] - value[others]
            for key, value in last.tensors.items()
        }
        return Graph((*graph.operations[:-1], replace(last, tensors=tensors, shape=(len(others),))))
    rows = -torch.eye(len(others) + 1, dtype=torch.float64, device="cpu")[others]
    rows[:, label] = 1.0
    end = len(graph.operations) - 1
    flat = () if len(last.shape) == 1 else (Operation("reshape", (end,), (len(rows[0]),), {}, {"shape": (-1,)}),)
    top = Operation("linear", (end + len(flat),), (len(others),), {"weight": rows}, {})
    return Graph((*graph.operations, *flat, top))


def make_forward(bounder: Bounder) -> Forward:
    """Prepare a network of :func:`with_margins`.

    Args:
        bounder: The network and the image, its groups in the order of the domain.
    """
    operations, scope = bounder.layers.operations, bounder.scope
    spans = torch.zeros(len(scope.positions), 4, dtype=torch.int64, device=scope.positions.device)
    local = LocalLayers(
        {0: bounder.layers.reach[0]} if 0 in bounder.layers.reach else {},
        (0,),
        (1, 1),
        (0, 0),
        {0: operations[0].shape},
    )
    if scope.pixels is not None:
        width = scope.shape[2]
        real = scope.pixels < scope.shape[1] * width
        for column, place in ((0, scope.pixels // width), (2, scope.pixels % width)):
            spans[:, column] = place.masked_fill(~real, scope.low.numel()).amin(1)
            spans[:, column + 1] = place.masked_fill(~real, -1).amax(1)
        local = make_local(bounder.layers)
    plain = tuple(_plain(operation) for operation in operations)
    positive = {p: absolute(o, with_constants=False) for p, o in enumerate(operations) if o.kind in LINEAR}
    units = {p: product_unit(operations[p], [operations[s].shape for s in operations[p].inputs]) for p in positive}
    drift = drifts(operations, bounder.own)
    heads = {p: found for p in local.exits if p in local.reach and (found := _dense_readers(operations, p))}
    return Forward(bounder, local, plain, positive, units, drift, heads, spans)


def _dense_readers(operations: tuple[Operation, ...], position: int) -> tuple[int, ...]:
    """The dense layers that read a map, flattened, if nothing else does."""
    flat = [p for p, o in enumerate(operations) if position in o.inputs]
    if not all(operations[p].kind == "reshape" and len(operations[p].shape) == 1 for p in flat):
        return ()
    dense = [p for p, o in enumerate(operations) if set(flat) & set(o.inputs)]
    if not all(operations[p].kind == "linear" and len(operations[p].shape) == 1 for p in dense):
        return ()
    return tuple(dense) if len(operations) - 1 not in flat else ()


def _plain(operation: Operation) -> Operation:
    tensors = {k: v for k, v in operation.tensors.items() if k in ("weight", "scale")}
    attributes = {**operation.attributes, "value": 0.0} if operation.kind == "pad" else operation.attributes
    return replace(operation, tensors=tensors, attributes=attributes)


def near(forward: Forward, first: Tensor, second: Tensor) -> Tensor:
    """Whether an operation that is not linear may see pixels of both of two groups before the layers add up."""
    a, b = forward.spans[first], forward.spans[second]
    result = torch.ones(first.shape, dtype=torch.bool, device=a.device)
    for d in (0, 1):
        gap = torch.maximum(b[..., 2 * d] - a[..., 2 * d + 1], a[..., 2 * d] - b[..., 2 * d + 1])
        result &= gap < forward.local.sight[d]
    return result


def parts_of(count: int, each: int, forward: Forward) -> Iterator[tuple[int, int]]:
    """First and last number of each part of so many things that take so many bytes each."""
    step = max(1, forward.bounder.memory // each)
    for start in range(0, count, step):
        yield start, min(count, start + step)
