"""How far two float32 evaluations of one network can be apart: the band around zero in which a margin decides nothing.

The error of a value has two sources: its own sum of ``n`` products, which float32 leaves within ``n u m`` of the exact
one (``u = 2**-24``, ``m`` the sum of the products' absolute values, any order of summation), and the errors of what it
reads, times the weights. Two bounds follow each value through the network:

- ``worst``: errors add up with the absolute values of the weights. Always true, and far too large after many layers.
- ``likely``: the errors of different values are independent and the partial sums of one value too, so that squares add
  up (``sqrt(n) u m``, squared weights). ``LIKELY`` times the root of that also covers some thousand errors that are all
  alike, as in a layer of equal neurons; on the networks of the zoo it is a thousand times what is measured.

What makes both of use is ``m``. It does not come from the scores: a bias of 1e7 that a later layer takes off again
rounds away what the scores depend on. It comes from the values that were met while the points were evaluated, at the
input of every operation that is not linear: the largest of all (:class:`Peaks`) where a changed group reaches, the
unchanged image's own elsewhere. Groups are taken together in strips, so that a few passes tell for all of them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from l0tre.model.graph import Graph, Operation, run_operation
from l0tre.model.operations import KINDS
from l0tre.model.operations.float32 import EXTRA, UNIT
from l0tre.model.operations.kind import Curve, Errors, Linear, Other

__all__ = ["Error", "Peaks", "RoundOff", "bends", "gates", "make_round_off"]

LIKELY = 16.0
STRIPS = 16  # of groups
STRIP_BYTES = 2**28  # of the strips that are worked out together
# Peaks count as the next power of this, so that one that grows by little is not looked at again.
PEAK = 2.0**0.25


@dataclass
class Peaks:
    """The largest absolute values met at the inputs of operations that are not linear, by their number (see ``bends``).

    Attributes:
        values: Scalars on the device, so that nothing waits for them.
    """

    values: dict[int, Tensor] = field(default_factory=dict)

    def see(self, number: int, value: Tensor, *, relu: bool = False) -> None:
        """Look at values: of what a ReLU reads only those above zero count, and minus infinity pads max pools."""
        if not value.numel():
            return
        if relu:
            largest = value.amax().clamp(min=0)
        else:
            low, high = torch.aminmax(value)
            largest = torch.maximum(low.nan_to_num(nan=torch.nan, neginf=0.0).abs(), high.abs())
        before = self.values.get(number)
        self.values[number] = largest if before is None else torch.maximum(before, largest)


@dataclass(frozen=True)
class Error:
    """What float32 can do to a score.

    Attributes:
        worst: Largest error of any score, always true; NaN if nothing is known.
        likely: Largest error of any score if errors are independent, see the module.
    """

    worst: float
    likely: float

    @property
    def margin(self) -> float:
        """How far a margin can be from that of real arithmetic, always true."""
        return 2 * self.worst

    @property
    def band(self) -> float:
        """How far the margins of two evaluations can be apart; NaN if a number is not finite."""
        return min(4 * self.worst, 2 * self.likely) if self.worst == self.worst else math.nan


def bends(graph: Graph) -> dict[int, int]:
    """The positions of operations that are not linear, numbered in order, which folding constants leaves as it is."""
    places = (place for place, operation in enumerate(graph.operations) if place and not _is_linear(operation))
    return {place: number for number, place in enumerate(places)}


def gates(operation: Operation) -> bool:
    """Whether nothing passes an operation far enough below zero, as with a ReLU."""
    kind = KINDS[operation.kind]
    return isinstance(kind, Curve) and kind.gate(operation)


def _is_linear(operation: Operation) -> bool:
    return isinstance(KINDS[operation.kind], Linear)


@dataclass(frozen=True)
class RoundOff:
    """The round-off of a network around some images.

    Attributes:
        graph: The operations as the source has them, in float64.
        largest: ``input_shape``, the largest absolute values of the domain.
        own: By number of an operation that is not linear, the images' own largest absolute values at what it reads,
            ``[1, *shape]`` for each of its inputs; for a ReLU the largest values.
        reached: Likewise bool ``[1 + strips, *shape]``: nothing, then what the groups of each strip reach.
        changes: Whether groups may change.
        known: Errors that were worked out.
    """

    graph: Graph
    largest: Tensor
    own: Mapping[int, list[Tensor]]
    reached: Mapping[int, list[Tensor]]
    changes: bool
    known: dict[tuple[tuple[int, float], ...], Error] = field(default_factory=dict, repr=False)

    def error(self, peaks: Mapping[int, float], t: int) -> Error:
        """What float32 can do to a score of an input with ``t`` changed groups.

        Args:
            peaks: By number of the operation the largest absolute value that it reads at any point. Where none is
                given, it follows from the layers before.
            t: How many groups change.

        Raises:
            ValueError: If groups change that were not named.
        """
        if t and not self.changes:
            raise ValueError("the groups that change were not given")
        finite = {number: peak for number, peak in peaks.items() if math.isfinite(peak)}
        rounded = {number: PEAK ** math.ceil(math.log(peak, PEAK)) for number, peak in finite.items() if peak > 0}
        key = (*sorted(rounded.items()), (-1, float(t)))
        if key not in self.known:
            self.known[key] = self._error({**dict.fromkeys(finite, 0.0), **rounded}, t)
        return self.known[key]

    @torch.inference_mode()
    def _error(self, peaks: Mapping[int, float], t: int) -> Error:
        # Row 0 of ``reached`` is nothing at all.
        strips = next(iter(self.reached.values()))[0].shape[0] if self.reached and t else 1
        each = 8 * 8 * sum(math.prod(operation.shape) for operation in self.graph.operations)
        parts = [self._strips(peaks, rows) for rows in torch.arange(strips).split(max(1, STRIP_BYTES // each))]
        totals = []
        for place in (1, 2):
            found = torch.cat([part[place] for part in parts])
            totals.append(float((found[0] + t * (found - found[0]).amax(0)).max()))
        return _as_error(*totals)

    @torch.inference_mode()
    def error_after(self, changes: Mapping[tuple[int, int], Tensor]) -> Error:
        """What float32 can do to a score of an input with changed groups.

        Args:
            changes: By number of an operation that is not linear and which of its inputs, by how much the values that
                it reads there can be larger than the images' own: float64, of a shape that broadcasts to theirs. Of
                absolute values, except for a gate. Where none is given, it follows from the layers before.
        """

        def limit(number: int, slot: int) -> Tensor:
            own = self.own[number][slot]
            return own + changes.get((number, slot), own.new_tensor(math.inf))

        _, worst, square = self._carry(limit, 1)
        return _as_error(float(worst.max()), float(square.max()))

    def _strips(self, peaks: Mapping[int, float], strips: Tensor) -> Errors:
        """The bounds of the scores, ``[strips, classes]``, if the groups of one strip each change."""

        def limit(number: int, slot: int) -> Tensor:
            own, reached = self.own[number][slot], self.reached[number][slot][strips.to(self.largest.device)]
            return torch.where(reached, torch.maximum(own, own.new_tensor(peaks.get(number, math.inf))), own)

        return self._carry(limit, len(strips))

    def _carry(self, limit: Callable[[int, int], Tensor], count: int) -> Errors:
        """The bounds of the scores, ``[count, classes]``.

        Args:
            limit: By number of an operation that is not linear and which of its inputs, the largest values there.
            count: In how many ways inputs change.
        """
        numbers, last = bends(self.graph), self.graph.last_use()
        size = self.largest.expand(count, *self.largest.shape)
        known: dict[int, Errors] = {0: (size, torch.zeros_like(size), torch.zeros_like(size))}
        for place, operation in enumerate(self.graph.operations[1:], start=1):
            inputs = [known[source] for source in operation.inputs]
            if place in numbers:
                number = numbers[place]
                for slot, (size, worst, square) in enumerate(inputs):
                    most = limit(number, slot)
                    if gates(operation):
                        # Far enough below zero nothing goes on, errors neither.
                        worst = worst.masked_fill(most < -worst, 0.0)
                        square = square.masked_fill(most < -LIKELY * square.sqrt(), 0.0)
                    inputs[slot] = (torch.minimum(size, most.clamp(min=0)), worst, square)
                known[place] = _bend(operation, inputs)
            else:
                known[place] = _linear(operation, self.graph, inputs)
            for source in set(operation.inputs):
                if last[source] == place:
                    del known[source]
        return known[len(self.graph.operations) - 1]


@torch.inference_mode()
def make_round_off(
    graph: Graph,
    low: Tensor,
    high: Tensor,
    groups: Tensor | None,
    images: Tensor,
    pulse: Callable[[], None] = lambda: None,
) -> RoundOff:
    """Get ready to bound the round-off around some images.

    Args:
        graph: The operations as the source has them, in float64.
        low: ``input_shape``, smallest values of the domain.
        high: Likewise the largest.
        groups: int64 ``[groups, width]``, positions of each group's values in the flattened input; ``None`` if only the
            images themselves are of interest, with none changed.
        images: float32 ``[images, values]``, on the device to compute on.
        pulse: Called before every operation; may raise ``Halted``.

    Returns:
        The round-off.
    """
    device, shape = images.device, graph.input_shape
    graph = graph.to(device, torch.float64)
    parts = () if groups is None else groups.to(device).tensor_split(min(STRIPS, len(groups)))
    strips = torch.zeros(1 + len(parts), images.shape[1], dtype=torch.bool, device=device)
    for strip, some in enumerate(parts, start=1):
        strips[strip, some.flatten()] = True
    numbers, last = bends(graph), graph.last_use()
    own: dict[int, list[Tensor]] = {}
    reached: dict[int, list[Tensor]] = {}
    values = {0: (images.double().view(-1, *shape), strips.view(-1, *shape))}
    for place, operation in enumerate(graph.operations[1:], start=1):
        pulse()
        inputs = [values[source] for source in operation.inputs]
        if place in numbers:
            own[numbers[place]] = [_magnitude(operation, value).amax(0, keepdim=True) for value, _ in inputs]
            reached[numbers[place]] = [touched for _, touched in inputs]
        values[place] = (
            run_operation(operation, *(value for value, _ in inputs)),
            _reach(operation, [touched for _, touched in inputs]),
        )
        for source in set(operation.inputs):
            if last[source] == place:
                del values[source]
    largest = torch.maximum(low.abs(), high.abs()).to(device, torch.float64).view(shape)
    return RoundOff(graph, largest, own, reached, groups is not None)


def _as_error(worst: float, square: float) -> Error:
    return Error(worst, LIKELY * math.sqrt(square) if worst < math.inf else worst)


def _magnitude(operation: Operation, value: Tensor) -> Tensor:
    """The values that a ReLU reads, the absolute values that others do, without what pads a max pool."""
    return value if gates(operation) else value.abs().masked_fill(value == -math.inf, 0.0)


def _reach(operation: Operation, touched: list[Tensor]) -> Tensor:
    """Which outputs of an operation depend on inputs that may change."""
    kind = KINDS[operation.kind]
    if isinstance(kind, Other):
        return kind.reached(operation, touched)
    if isinstance(kind, Curve):
        return touched[0]
    if isinstance(kind, Linear):
        plain = kind.absolute(operation, 1, False)
        # Sums of ones in float32 are positive wherever one term is, and take half the time of float64.
        ones = {key: torch.ones_like(value, dtype=torch.float32) for key, value in plain.tensors.items()}
        operation = replace(plain, tensors=ones)
    return run_operation(operation, *(part.float() for part in touched)) > 0


def _linear(operation: Operation, graph: Graph, inputs: list[Errors]) -> Errors:
    kind = KINDS[operation.kind]
    assert isinstance(kind, Linear)
    sizes, worsts, squares = (list(column) for column in zip(*inputs, strict=True))
    size = run_operation(kind.absolute(operation, 1, True), *sizes)
    worst = run_operation(kind.absolute(operation, 1, False), *worsts)
    terms = kind.terms(operation, [graph.operations[source].shape for source in operation.inputs])
    if kind.summing == "average":  # of equal weights: squared they are a share of themselves
        square = run_operation(operation, *squares) / terms
    else:
        square = run_operation(kind.absolute(operation, 2, False), *squares)
    if kind.summing != "move":
        worst = worst + (terms + EXTRA) * UNIT * size
        square = square + (terms + EXTRA) * (UNIT * size) ** 2
    return size, worst, square


def _bend(operation: Operation, inputs: list[Errors]) -> Errors:
    kind = KINDS[operation.kind]
    if isinstance(kind, Other):
        return kind.errors(operation, inputs)
    if isinstance(kind, Curve):
        return kind.errors(operation, inputs[0])
    size, worst, square = (run_operation(operation, part) for part in inputs[0])
    return size, worst, square
