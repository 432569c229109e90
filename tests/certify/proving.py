"""Instances, nodes and points inside nodes for the tests of the prover, and checks that several of them share."""

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from l0tre.certify.cells.cell_search import CellSearch
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes, split_boxes, split_cells
from l0tre.certify.regions.tree import Tree, make_tree
from l0tre.certify.relax.bounds import bound, input_ranges
from l0tre.certify.relax.instance import Instance, make_instance
from l0tre.certify.relax.plan import make_plan
from l0tre.domain import Domain
from l0tre.memory import Batcher
from l0tre.model.graph import Graph, run, run_operation
from l0tre.model.network import Network, margins
from l0tre.objective import AllRivals
from tests.certify import random_networks
from tests.certify.random_networks import Case, random_case
from tests.tools import graph_network

CPU = torch.device("cpu")
ROWS = 2**20  # bytes for rows, enough for all of a tiny layer at once
TABLES = 2**24  # bytes for tables, enough for all of them
ROUNDING = 1e-9  # between two ways to compute the same number


def as_network(graph: Graph) -> Network:
    return graph_network(graph)


def settled(case: Case, graph: Graph, image: Tensor, domain: Domain, firmness: float) -> Case:
    """A case of a graph whose last bias makes the decision at the image as firm as wanted."""
    x = domain.low + torch.rand(60, len(domain.low)) * (domain.high - domain.low)
    scores = run(graph, torch.cat([image[None], x.reshape(-1, *image.shape)]))
    label = int(scores[0].argmax())
    gaps = margins(scores, torch.full((len(scores),), label))
    last = graph.operations[-1]
    bias = last.tensors["bias"].clone()
    bias[label] += firmness * float(gaps[0] - gaps.min()) + 0.01 - float(gaps[0])
    graph = Graph((*graph.operations[:-1], replace(last, tensors={**last.tensors, "bias": bias})))
    return replace(case, graph=graph, network=as_network(graph), image=image, label=label, domain=domain)


def variant(seed: int, number: int) -> Case:
    """The operations of a random case with other weights, image and domain; number 0 is the case itself.

    Importing a module takes far longer than everything that is done to it here.
    """
    case = random_case(seed)
    if number == 0:
        return case
    draw = random.Random(1000 * seed + number)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.randrange(2**31))
        nodes = tuple(
            replace(
                operation, tensors={key: v * (1 + 0.5 * torch.randn_like(v)) for key, v in operation.tensors.items()}
            )
            for operation in case.graph.operations
        )
        domain = random_networks._domain(draw, case.domain.shape)
        image = random_networks._inside(draw, domain)
        return settled(case, Graph(nodes), image, domain, draw.choice([0.2, 0.4, 0.6, 0.8, 1.1, 1.4]))


def make(case: Case, t: int, *, tables: int = TABLES, windows: bool = True) -> Instance:
    """The instance of a case; without windows every row is carried as a whole."""
    assert case.network.exact is not None
    plan = make_plan(case.network.exact, case.domain, CPU)
    if not windows:
        plan = replace(plan, receptive_fields={}, matrices={})
    tree = make_tree(case.domain, case.network.exact)
    return make_instance(
        plan, tree, case.domain, case.image.flatten()[None], AllRivals(torch.tensor([case.label])), t, tables
    )


def groups_of(tree: Tree, cell: int) -> list[int]:
    """The groups of a cell, by walking down to its leaves."""
    if cell >= tree.slots:
        return [group for group in tree.order[cell - tree.slots : cell - tree.slots + 1].tolist() if group >= 0]
    return groups_of(tree, 2 * cell) + groups_of(tree, 2 * cell + 1)


def sets_of(tree: Tree, cells: Sequence[int]) -> list[tuple[int, ...]]:
    """Every set of groups that a node stands for, each as often as the node gives it."""
    parts = [itertools.combinations(groups_of(tree, cell), list(cells).count(cell)) for cell in dict.fromkeys(cells)]
    return [tuple(sorted(itertools.chain(*choice))) for choice in itertools.product(*parts)]


def random_cells(tree: Tree, t: int, rng: np.random.Generator, stop: float = 0.3) -> list[int]:
    """The cells of a node, by random splits from the root."""
    cells = [1] * t
    while rng.random() > stop:
        inner = sorted({cell for cell in cells if cell < tree.slots})
        if not inner:
            break
        cell = int(rng.choice(inner))
        taken, place = cells.count(cell), cells.index(cell)
        room = len(groups_of(tree, 2 * cell)), len(groups_of(tree, 2 * cell + 1))
        left = int(rng.integers(max(0, taken - room[1]), min(taken, room[0]) + 1))
        cells[place : place + taken] = [2 * cell] * left + [2 * cell + 1] * (taken - left)
    return cells


def cell_nodes(tree: Tree, t: int, rng: np.random.Generator, count: int, stop: float = 0.3) -> CellNodes:
    """The root and random nodes of cells."""
    cells = [[1] * t, *(random_cells(tree, t, rng, stop) for _ in range(count - 1))]
    return CellNodes(torch.zeros(count, dtype=torch.int64), torch.tensor(cells))


def box_nodes(tree: Tree, domain: Domain, t: int, rng: np.random.Generator, count: int) -> BoxNodes:
    """Random boxes of random sets; the first is a whole one, some are narrow or hold one value."""
    slots = (tree.order >= 0).nonzero()[:, 0].numpy()
    chosen = np.stack([rng.permutation(slots)[:t] for _ in range(count)])
    groups = tree.order[torch.from_numpy(chosen)]
    used = torch.arange(domain.members.shape[1]) < domain.sizes[groups][:, :, None]
    ends = torch.from_numpy(np.clip(rng.uniform(-0.3, 1.3, (2, *used.shape)), 0, 1)).sort(0).values
    ends[0, 0], ends[1, 0] = 0.0, 1.0
    ends[1, -1] = ends[0, -1]
    low, high = (end[domain.members[groups]].double() for end in (domain.low, domain.high))
    low, high = (torch.where(used, low + share * (high - low), 0.0) for share in ends)
    cells = torch.from_numpy(chosen) + tree.slots
    depth = torch.zeros(count, dtype=torch.int64)
    return BoxNodes(torch.zeros(count, dtype=torch.int64), cells, low, high, depth)


def parts_of(instance: Instance, nodes: Nodes) -> Nodes:
    """Halves of all nodes that can be split, which know what the bounds of the whole ones say."""
    found = bound(instance, nodes, ROWS)
    knowing = replace(nodes, known=found.known)
    if isinstance(knowing, CellNodes):
        several = (instance.tree.sizes[nodes.cells] > 1).any(1)
        return split_cells(instance.tree, knowing.pick(several))[0]
    return split_boxes(knowing, torch.ones_like(knowing.low))


def points_in(case: Case, tree: Tree, nodes: Nodes, row: int, rng: np.random.Generator, sets: int = 3) -> Tensor:
    """Inputs of a node: of some of its sets random values and (up to 64) corners, float64 ``[points, values]``."""
    cells = nodes.cells[row].tolist()
    result = []
    for _ in range(sets):
        places, low, high = [], [], []
        for cell in dict.fromkeys(cells):
            for group in rng.permutation(groups_of(tree, cell))[: cells.count(cell)]:
                own = case.domain.members[group, : case.domain.sizes[group]]
                places.append(own)
                if isinstance(nodes, CellNodes) or nodes.high is None:
                    low.append(case.domain.low[own].double())
                    high.append(case.domain.high[own].double())
                else:
                    low.append(nodes.low[row, cells.index(cell), : len(own)])
                    high.append(nodes.high[row, cells.index(cell), : len(own)])
        place, least, most = torch.cat(places), torch.cat(low), torch.cat(high)
        if len(place) <= 6:
            corners = np.array(list(itertools.product((0.0, 1.0), repeat=len(place))))
        else:
            corners = rng.integers(0, 2, (64, len(place))).astype(float)
        shares = torch.from_numpy(np.concatenate([corners, rng.random((8, len(place)))]))
        x = case.image.flatten().double().repeat(len(shares), 1)
        x[:, place] = torch.minimum(torch.maximum(least + shares * (most - least), least), most)
        result.append(x)
    return torch.cat(result)


def layer_values(graph: Graph, x: Tensor) -> list[Tensor]:
    """The values of every node of a graph, ``[points, *shape]`` each."""
    values = [x.reshape(-1, *graph.input_shape)]
    for operation in graph.operations[1:]:
        values.append(run_operation(operation, *(values[source] for source in operation.inputs)))
    return values


def true_margins(case: Case, x: Tensor) -> Tensor:
    """The label's score less every other one at inputs ``[points, values]``, float64 ``[points, classes - 1]``."""
    assert case.network.exact is not None
    scores = run(case.network.exact, x.double().reshape(-1, *case.image.shape))
    others = [number for number in range(scores.shape[1]) if number != case.label]
    return scores[:, [case.label]] - scores[:, others]


def check_bounds(
    case: Case,
    instance: Instance,
    nodes: Nodes,
    rng: np.random.Generator,
    row_bytes: int = ROWS,
    refined: Collection[int] | None = None,
) -> Tensor:
    """Assert that bounds and ranges of nodes hold at points inside; returns the bounds ``[nodes, classes - 1]``."""
    lower = bound(instance, nodes, row_bytes, refined).margins
    ranges = input_ranges(instance, nodes, row_bytes)
    assert bool(torch.isfinite(lower).all())
    for row in range(len(nodes)):
        x = points_in(case, instance.tree, nodes, row, rng)
        least = true_margins(case, x).amin(0)
        assert bool((lower[row] - instance.slack[0] <= least + 1e-12).all()), f"bound {lower[row]}, margin {least}"
        values = layer_values(instance.plan.graph, x)
        for position, (low, high) in ranges.items():
            inside = (values[position] >= low[row] - 1e-12) & (values[position] <= high[row] + 1e-12)
            assert bool(inside.all()), f"a value of layer {position} is outside its range"
    return lower


@dataclass(frozen=True)
class Outcome:
    """What a search found: ``safe``, ``unsafe``, ``tie`` or ``open`` if it was stopped, and the way there."""

    verdict: str
    proved: tuple[tuple[Nodes, Tensor], ...]
    witness: Tensor | None
    shares: tuple[Fraction, ...]
    search: CellSearch


def start(case: Case, t: int, *, tables: int = TABLES, budget: int = 2**24) -> CellSearch:
    """A search that has all sets of the case's image before it."""
    search = waiting(case, t, tables=tables, budget=budget)
    search.begin(0)
    return search


def waiting(case: Case, t: int, *, tables: int = TABLES, budget: int = 2**24) -> CellSearch:
    """A search with nothing to do yet."""
    return CellSearch(make(case, t, tables=tables), case.domain, Batcher(case.network, 2**26), t, budget)


def pursue(search: CellSearch, steps: int = 40, before: Fraction = Fraction(0)) -> Outcome:
    """Take steps until the search is decided or has had enough of them."""
    proved: list[tuple[Nodes, Tensor]] = []
    shares = [before]
    for _ in range(steps):
        if not search.open():
            break
        step = search.step()
        proved.append((step.proved, step.bounds))
        shares.append(shares[-1] + step.shares.get(0, Fraction(0)))
        if step.candidates or step.ties:
            verdict = "unsafe" if step.candidates else "tie"
            return Outcome(verdict, tuple(proved), step.candidates.get(0), tuple(shares), search)
    verdict = "safe" if shares[-1] == search.total else "open"
    return Outcome(verdict, tuple(proved), None, tuple(shares), search)


def levels(case: Case, most: int = 2) -> Iterator[int]:
    """The levels at which a case is small enough to be searched."""
    yield from range(1, min(most + (case.domain.groups <= 8), case.domain.groups) + 1)


def notices(check: Callable[[], None]) -> bool:
    """Whether a check fails."""
    try:
        check()
    except AssertionError:
        return True
    return False
