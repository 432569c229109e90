"""Exact smallest margins of tiny networks, by means that share nothing with the prover under test.

Four oracles: a mixed-integer program over any groups, all subsets of groups by it, a sweep over the linear pieces along
one value, and for smooth networks a dense search, which bounds the minimum from above only.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.model.graph import Graph, Operation, run, run_operation
from l0tre.model.network import margins

__all__ = ["dense_minimum", "exact_distance", "exact_minimum", "piecewise_minimum_1d"]

LINEAR = ("conv", "linear", "scale", "avg_pool", "mean", "reshape", "transpose", "pad", "add", "sub", "concat")
TOLERANCE = 1e-6  # between a program's value and the network's own margin at the input that attains it
GAIN = 1e3  # the solver stops within 1e-6 of the optimum of what it is given, so it is given more
CORNERS = 8  # values that may change in a set whose corners are all tried before a program is solved


def exact_minimum(
    graph: Graph,
    image: Tensor,
    label: int,
    domain: Domain,
    groups: Sequence[int],
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> tuple[float, Tensor]:
    """The smallest margin over all real values of some groups, for piecewise linear networks.

    Args:
        graph: The network; a float64 copy of it is taken.
        image: ``domain.shape``; values outside the groups stay as they are here.
        label: The class whose margin is minimised.
        domain: The groups and their ranges.
        groups: Which rows of ``domain.members`` may change.
        low: ``[len(groups), width]``, smallest values in the column order of ``domain.members``; the domain's if none.
        high: Likewise the largest values.

    Returns:
        The margin that the network has, in float64, at the minimising input (never below the true minimum and at most
        ``TOLERANCE`` above it), and that input, float64 ``domain.shape``.

    Raises:
        ModelError: If an operation is not piecewise linear.
        AssertionError: If the solver fails or its value is not the network's.
    """
    box = _box(domain, groups, low, high)
    value, x = _below(graph.to("cpu", torch.float64), image, label, box, float("inf"))
    assert x is not None
    return value, x


def exact_distance(graph: Graph, image: Tensor, label: int, domain: Domain, most: int) -> int:
    """The smallest number of groups that can change the decision, over all real values and all subsets.

    A tie does not count as a change; a network whose smallest margin is within ``TOLERANCE`` of zero has no reliable
    answer.

    Args:
        graph: The network, piecewise linear.
        image: ``domain.shape``.
        label: Its class.
        domain: The groups and their ranges.
        most: Largest number of groups to try.

    Returns:
        The distance, ``most + 1`` if it is larger than ``most``.
    """
    exact = graph.to("cpu", torch.float64)
    for size in range(1, most + 1):
        boxes = [_box(domain, groups, None, None) for groups in itertools.combinations(range(domain.groups), size)]
        if any(_corner(exact, image, label, box) < 0 for box in boxes):
            return size
        if any(_below(exact, image, label, box, 0.0)[1] is not None for box in boxes):
            return size
    return most + 1


def piecewise_minimum_1d(graph: Graph, image: Tensor, label: int, domain: Domain, position: int) -> float:
    """The smallest margin along one value, from the ends of all linear pieces.

    Nodes are visited in order. Between neighbouring points everything before a node is linear, so its kinks there are
    the roots of straight lines; they become points before the next node is looked at.

    Args:
        graph: The network, piecewise linear.
        image: ``domain.shape``.
        label: Its class.
        domain: Gives the range of the value.
        position: Which value of the flattened input changes.

    Returns:
        The minimum, in float64.
    """
    exact = graph.to("cpu", torch.float64)
    points = torch.stack([domain.low[position], domain.high[position]]).double()

    def inputs() -> Tensor:
        x = image.flatten().double().repeat(len(points), 1)
        x[:, position] = points
        return x.reshape(-1, *image.shape)

    for operation in exact.operations[1:]:
        if operation.kind not in LINEAR:
            lines = _kinks(operation, run(Graph(exact.operations[: operation.inputs[0] + 1]), inputs())).flatten(1)
            left, right = lines[:-1], lines[1:]
            piece, line = ((left < 0) & (right > 0) | (left > 0) & (right < 0)).nonzero(as_tuple=True)
            share = left[piece, line] / (left[piece, line] - right[piece, line])
            points = torch.cat([points, points[piece] + share * (points[piece + 1] - points[piece])]).unique()
    return float(_margins(exact, inputs(), label).min())


def dense_minimum(
    graph: Graph,
    image: Tensor,
    label: int,
    domain: Domain,
    groups: Sequence[int],
    low: Tensor | None = None,
    high: Tensor | None = None,
    points: int = 4096,
) -> tuple[float, Tensor]:
    """A small margin over some groups, of any network: a grid, then ever smaller boxes around the best points.

    Args:
        graph: The network.
        image: ``domain.shape``.
        label: Its class.
        domain: The groups and their ranges.
        groups: Which rows of ``domain.members`` may change.
        low: As for :func:`exact_minimum`.
        high: Likewise.
        points: About how many points the grid has; where it has no room for all corners, random ones of them count.

    Returns:
        An upper bound on the minimum (a proof that claims more is wrong) and the input that has this margin.
    """
    exact, (positions, lows, highs) = graph.to("cpu", torch.float64), _box(domain, groups, low, high)
    generator = torch.Generator().manual_seed(0)
    count = int(points ** (1 / len(positions)))
    if count < 2:
        shares, radius = torch.rand(points, len(positions), generator=generator, dtype=torch.float64).round(), 1.0
    else:
        axis, radius = torch.linspace(0, 1, count, dtype=torch.float64), 1.0 / (count - 1)
        shares = torch.cartesian_prod(*[axis] * len(positions)).reshape(-1, len(positions))
    while True:
        values = _margins(exact, _inputs(image, positions, lows + shares * (highs - lows)), label)
        best = shares[values.argsort()[:8]]
        if radius < 1e-9:
            break
        steps = torch.rand(8, 32, len(positions), generator=generator, dtype=torch.float64) * 2 - 1
        # Steps along single axes too: they slide along the sides of the box and of linear pieces.
        single = torch.eye(len(positions), dtype=torch.float64)
        moves = torch.cat([steps[: len(best)], torch.cat([single, -single]).expand(len(best), -1, -1)], 1)
        shares = torch.cat([best, (best[:, None] + radius * moves).clamp(0, 1).flatten(0, 1)])
        radius *= 0.7
    x = _inputs(image, positions, lows + best[:1] * (highs - lows))
    return float(_margins(exact, x, label)), x[0]


Box = tuple[Tensor, Tensor, Tensor]  # positions int64 [values], their smallest and largest values float64 [values]


def _box(domain: Domain, groups: Sequence[int], low: Tensor | None, high: Tensor | None) -> Box:
    chosen = torch.as_tensor(list(groups))
    members = domain.members[chosen].cpu()
    used = torch.arange(members.shape[1]) < domain.sizes[chosen].cpu()[:, None]  # further columns repeat the first
    lows = domain.low.cpu()[members] if low is None else low
    highs = domain.high.cpu()[members] if high is None else high
    return members[used], lows[used].double(), highs[used].double()


def _inputs(image: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    """Copies of the image ``[rows, *shape]`` with ``values`` ``[rows, positions]`` in place."""
    x = image.flatten().cpu().double().repeat(len(values), 1)
    x[:, positions] = values
    return x.reshape(-1, *image.shape)


@torch.inference_mode()
def _margins(exact: Graph, x: Tensor, label: int) -> Tensor:
    return margins(run(exact, x), torch.full((len(x),), label))


def _corner(exact: Graph, image: Tensor, label: int, box: Box) -> float:
    positions, low, high = box
    if len(positions) > CORNERS:
        return float("inf")
    ends = [torch.stack(pair) for pair in zip(low, high, strict=True)]
    corners = torch.cartesian_prod(*ends).reshape(-1, len(positions))
    return float(_margins(exact, _inputs(image, positions, corners), label).min())


def _kinks(operation: Operation, x: Tensor) -> Tensor:
    """Functions ``[points, ...]`` that are zero where a node is not linear in its input."""
    if operation.kind in ("relu", "leaky_relu"):
        return x
    if operation.kind == "clip":
        return torch.stack([x - operation.number("low"), x - operation.number("high")], 1)
    if operation.kind == "max_pool":
        windows = _windows(operation, x, float("-inf"))
        return windows[:, :, :, None] - windows[:, :, None]
    raise ModelError(f"operation {operation.kind} is not piecewise linear: use dense_minimum for this network")


def _windows(operation: Operation, x: Tensor, fill: float) -> Tensor:
    """What a max pool compares: ``[rows, channels, height, width]`` to ``[rows, channels, window, places]``."""
    (high, wide), (above, beside) = operation.ints("kernel"), operation.ints("padding")
    padded = F.pad(x, (beside, beside, above, above), value=fill)
    columns = F.unfold(padded, (high, wide), operation.ints("dilation"), 0, operation.ints("stride"))
    return columns.reshape(len(x), x.shape[1], high * wide, -1)


class _Program:
    """A mixed-integer program. An expression is an array: its constant, then a coefficient for each variable so far."""

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        self.low, self.high, self.whole = list(low), list(high), [0] * len(low)
        self.not_negative: list[np.ndarray] = []

    def variable(self, low: float, high: float, whole: int = 0) -> np.ndarray:
        """The expression of a new variable."""
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return np.append(np.zeros(len(self.low)), 1.0)

    def padded(self, expression: np.ndarray) -> np.ndarray:
        """Expressions ``[variables of their time + 1, ...]`` with zeros for newer variables."""
        missing = len(self.low) + 1 - len(expression)
        return np.concatenate([expression, np.zeros((missing, *expression.shape[1:]))])

    def total(self, *terms: tuple[float, np.ndarray]) -> np.ndarray:
        """A sum of multiples of expressions of any age."""
        return np.asarray(sum(factor * self.padded(expression) for factor, expression in terms))

    def require(self, constant: float, *terms: tuple[float, np.ndarray]) -> None:
        """Demand that ``constant + sum(factor * expression)`` is not negative."""
        self.not_negative.append(self.total((constant, np.ones(1)), *terms))

    def bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Smallest and largest values ``[n]`` of expressions ``[variables of their time + 1, n]`` by intervals."""
        low, high = (np.append(1.0, ends)[: len(rows)] for ends in (self.low, self.high))
        up, down = rows.clip(min=0), rows.clip(max=0)
        return low @ up + high @ down, high @ up + low @ down

    def relu(self, rows: np.ndarray) -> np.ndarray:
        """The positive part of expressions ``[variables of their time + 1, n]``; new variables where it has a kink."""
        low, high = self.bounds(rows)
        columns = list(np.where(high <= 0, 0.0, rows).T)
        for place in ((low < 0) & (high > 0)).nonzero()[0]:
            x, most, least = rows[:, place], float(high[place]), float(low[place])
            y, on = self.variable(0.0, most), self.variable(0.0, 1.0, 1)
            self.require(0.0, (1, y), (-1, x))
            self.require(0.0, (most, on), (-1, y))
            self.require(-least, (1, x), (least, on), (-1, y))
            columns[place] = y
        return np.stack([self.padded(column) for column in columns], 1)

    def largest(self, rows: np.ndarray) -> np.ndarray:
        """The largest of several expressions ``[variables of their time + 1, n]``."""
        low, high = self.bounds(rows)
        floor = int(low.argmax())
        rivals = [place for place in range(rows.shape[1]) if place == floor or high[place] > low[floor]]
        if len(rivals) == 1:
            return rows[:, floor]
        y = self.variable(float(low[floor]), float(high.max()))
        picks = [self.variable(0.0, 1.0, 1) for _ in rivals]
        for place, pick in zip(rivals, picks, strict=True):
            gap = float(high.max() - low[place])
            self.require(0.0, (1, y), (-1, rows[:, place]))
            self.require(gap, (1, rows[:, place]), (-gap, pick), (-1, y))
        self.require(-1.0, *((1, pick) for pick in picks))
        return y

    def minimise(self, objective: np.ndarray, relaxed: bool = False) -> tuple[float, np.ndarray]:
        """The smallest value of an expression, and the variables there; less if whole numbers need not be whole."""
        limits = np.stack([self.padded(row) for row in self.not_negative]) if self.not_negative else None
        result = milp(
            GAIN * self.padded(objective)[1:],
            integrality=None if relaxed else self.whole,
            bounds=Bounds(self.low, self.high),
            constraints=None if limits is None else LinearConstraint(limits[:, 1:], -limits[:, 0], np.inf),
            options={"mip_rel_gap": 0.0},
        )
        assert result.status == 0, f"the solver gave up: {result.message}"
        return float(result.fun / GAIN + objective[0]), np.asarray(result.x)


def _apply(program: _Program, operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
    """A node on expressions: ``[variables + 1, *shape]``, all as long as the newest."""
    rows = [torch.from_numpy(program.padded(x.numpy())) for x in inputs]
    if operation.kind in LINEAR:
        tensors = {key: value for key, value in operation.tensors.items() if key not in ("bias", "shift")}
        attributes = {**operation.attributes, "value": 0.0} if operation.kind == "pad" else operation.attributes
        slopes = run_operation(replace(operation, tensors=tensors, attributes=attributes), *(x[1:] for x in rows))
        return torch.cat([run_operation(operation, *(x[:1] for x in rows)), slopes.expand(-1, *operation.shape)])
    x = rows[0].flatten(1).numpy()
    if operation.kind == "relu":
        y = program.relu(x)
    elif operation.kind == "leaky_relu":
        slope = operation.number("slope")
        y = program.total((1 - slope, program.relu(x)), (slope, x))
    elif operation.kind == "clip":
        y = _clip(program, x, operation.number("low"), operation.number("high"))
    elif operation.kind == "max_pool":
        # Float64 holds positions exactly.
        positions = torch.arange(x.shape[1], dtype=torch.float64).reshape(1, *rows[0].shape[1:])
        windows = _windows(operation, positions, -1.0)[0].transpose(1, 2).flatten(0, 1).long()
        columns = [program.largest(x[:, window[window >= 0].numpy()]) for window in windows]
        y = np.stack([program.padded(column) for column in columns], 1)
    else:
        raise ModelError(f"operation {operation.kind} is not piecewise linear: use dense_minimum for this network")
    return torch.from_numpy(y).reshape(-1, *operation.shape)


def _clip(program: _Program, x: np.ndarray, low: float, high: float) -> np.ndarray:
    """``x`` between two limits: ``x + relu(low - x) - relu(x - high)``."""
    one = np.eye(len(x), 1)
    terms = [(1.0, x)]
    if low > -np.inf:
        terms.append((1.0, program.relu(low * one - x)))
    if high < np.inf:
        terms.append((-1.0, program.relu(x - high * one)))
    return program.total(*terms)


def _below(exact: Graph, image: Tensor, label: int, box: Box, limit: float) -> tuple[float, Tensor | None]:
    """The smallest margin and its input, or ``limit`` and nothing if no margin is below ``limit``."""
    positions, low, high = box
    program = _Program(low.tolist(), high.tolist())
    rows = torch.zeros(len(positions) + 1, image.numel(), dtype=torch.float64)
    rows[0] = image.flatten()
    rows[0, positions] = 0.0
    rows[torch.arange(len(positions)) + 1, positions] = 1.0
    values = [rows.reshape(-1, *image.shape)]
    for operation in exact.operations[1:]:
        values.append(_apply(program, operation, [values[source] for source in operation.inputs]))
    scores = program.padded(values[-1].numpy())
    gaps = scores[:, [label]] - np.delete(scores, label, 1)
    others = np.delete(np.arange(scores.shape[1]), label)
    found = None
    for number in program.bounds(gaps)[0].argsort():
        if program.bounds(gaps)[0][number] >= limit:
            break
        # Whole numbers that need not be whole often suffice to see that nothing smaller is there.
        if limit < np.inf and program.minimise(gaps[:, number], relaxed=True)[0] > limit + TOLERANCE:
            continue
        value, variables = program.minimise(gaps[:, number])
        point = torch.from_numpy(variables[: len(positions)]).clamp(low, high)
        x = _inputs(image, positions, point[None])
        own = run(exact, x)[0]
        gap = float(own[label] - own[int(others[number])])
        assert abs(gap - value) <= TOLERANCE, f"the program's minimum is {value}, the network gives {gap}"
        margin = float(_margins(exact, x, label))
        if margin < limit:
            limit, found = margin, x[0]
    return limit, found
