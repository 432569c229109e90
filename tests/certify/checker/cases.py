"""Small networks and certificates from random splits, for the tests of the checker."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.checker import check as check_module
from l0tre.certify.checker.certificate import Certificate, make_certificate
from l0tre.certify.checker.check import check
from l0tre.domain import Domain, make_domain
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, GraphBuilder, run
from l0tre.model.network import Network
from tests.tools import graph_network

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A network, an image and what may change."""

    network: Network
    image: Tensor
    domain: Domain
    label: int


def as_network(graph: Graph, fingerprint: str = "f") -> Network:
    return graph_network(graph, fingerprint)


def build(kind: str, seed: int) -> Graph:
    """A small random network of one kind, three classes."""
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) / math.sqrt(math.prod(shape[1:]) or 1)

    def conv(graph: GraphBuilder, source: int, out: int, size: int = 2, padding: int = 0, groups: int = 1) -> int:
        inputs = graph.shape(source)[0] // groups
        return graph.add(
            "conv",
            [source],
            {"weight": weights(out, inputs, size, size), "bias": weights(out)},
            stride=(1, 1),
            padding=(padding, padding),
            dilation=(1, 1),
            groups=groups,
        )

    pool: dict[str, Any] = {"kernel": (2, 2), "stride": (1, 1)}
    if kind == "dense":
        graph = GraphBuilder((5,))
        top = graph.add("relu", [graph.add("linear", [0], {"weight": weights(8, 5), "bias": weights(8)})])
        top = graph.add("relu", [graph.add("linear", [top], {"weight": weights(6, 8), "bias": weights(6)})])
    elif kind == "curved":
        graph = GraphBuilder((4,))
        top = graph.add("tanh", [graph.add("linear", [0], {"weight": 3 * weights(6, 4), "bias": weights(6)})])
        top = graph.add("sigmoid", [graph.add("linear", [top], {"weight": 3 * weights(6, 6), "bias": weights(6)})])
        top = graph.add(
            "clip", [graph.add("scale", [top], {"scale": weights(6) * 3, "shift": None})], low=-0.5, high=0.7
        )
    elif kind == "grey":
        graph = GraphBuilder((1, 3, 2))
        top = graph.add("leaky_relu", [conv(graph, 0, 4)], slope=0.1)
    elif kind == "pools":
        graph = GraphBuilder((1, 3, 3))
        top = graph.add("relu", [conv(graph, graph.add("pad", [0], padding=(1, 0, 0, 1), value=0.3), 4, padding=1)])
        high = graph.add("max_pool", [top], **pool, padding=(1, 1), dilation=(1, 1))
        mean = graph.add("avg_pool", [top], **pool, padding=(1, 1), count_include_pad=False)
        both = graph.add("concat", [graph.add("sub", [high, mean]), mean], dim=0)
        top = graph.add("relu", [conv(graph, both, 4, size=1, groups=2)])
        top = graph.add("mean", [graph.add("transpose", [top], permutation=(1, 2, 0))], dims=(1,), keepdim=False)
    else:
        graph = GraphBuilder((3, 2, 2))
        first = graph.add("scale", [0], {"scale": torch.full((3, 1, 1), 2.0), "shift": torch.full((3, 1, 1), -1.0)})
        top = graph.add("relu", [conv(graph, first, 3, size=3, padding=1)])
        top = graph.add("relu", [graph.add("add", [conv(graph, top, 3, size=3, padding=1), first])])
    top = graph.add("reshape", [top], shape=(math.prod(graph.shape(top)),))
    top = graph.add("linear", [top], {"weight": weights(3, graph.shape(top)[0]), "bias": 0.3 * weights(3)})
    return graph.build(top).to("cpu")


KINDS = ("dense", "curved", "grey", "pools", "colour")


def make_case(kind: str, seed: int, *, lead: float = 0.0, **options: Any) -> Case:
    """A case whose decision leads by ``lead`` more than a random network's would."""
    graph = build(kind, seed)
    domain = make_domain(graph.input_shape, **options)
    image = torch.rand(graph.input_shape, generator=torch.Generator().manual_seed(seed))
    label = int(run(graph, image[None])[0].argmax())
    last = graph.operations[-1]
    bias = last.tensors["bias"] + lead * torch.nn.functional.one_hot(torch.tensor(label), 3)
    last = replace(last, tensors={**last.tensors, "bias": bias})
    return Case(as_network(Graph((*graph.operations[:-1], last)), f"{kind} {seed}"), image, domain, label)


def split_order(groups: int, rng: np.random.Generator) -> np.ndarray:
    """Groups in random slots of a tree that is a little too large."""
    order = np.full(2 ** (groups - 1).bit_length() * int(rng.integers(1, 3)), -1)
    order[rng.permutation(len(order))[:groups]] = rng.permutation(groups)
    return order


def counts(order: np.ndarray) -> np.ndarray:
    count = np.zeros(2 * len(order), np.int64)
    count[len(order) :] = order >= 0
    for cell in range(len(order) - 1, 0, -1):
        count[cell] = count[2 * cell] + count[2 * cell + 1]
    return count


Parts = list[tuple[tuple[int, ...], np.ndarray | None, np.ndarray | None]]


def random_parts(order: np.ndarray, radius: int, domain: Domain, rng: np.random.Generator, stop: float) -> Parts:
    """Nodes by random splits from the root: cells in any order, then values in any order."""
    count = counts(order)
    pending: Parts = [((1,) * radius, None, None)]
    done: Parts = []
    group_of = {cell: order[cell - len(order)] for cell in range(len(order), 2 * len(order))}
    while pending:
        cells, low, high = pending.pop()
        if rng.random() < (stop if low is None else max(stop, 0.6)):  # bisections must come to an end
            done.append((cells, low, high))
            continue
        inner = sorted({cell for cell in cells if cell < len(order)})
        if inner:
            cell = int(rng.choice(inner))
            taken = cells.count(cell)
            rest = [c for c in cells if c != cell]
            for left in range(taken + 1):
                if left <= count[2 * cell] and taken - left <= count[2 * cell + 1]:
                    children = [2 * cell] * left + [2 * cell + 1] * (taken - left)
                    pending.append((tuple(sorted(rest + children)), None, None))
            continue
        groups = [group_of[cell] for cell in cells]
        if low is None or high is None:
            used = (torch.arange(domain.members.shape[1]) < domain.sizes[groups][:, None]).numpy()
            low, high = (
                np.where(used, end[domain.members[groups]].double().numpy(), 0.0) for end in (domain.low, domain.high)
            )
        row = int(rng.integers(len(groups)))
        place = (row, int(rng.integers(int(domain.sizes[groups[row]]))))
        cut = low[place] + (high[place] - low[place]) * rng.uniform(0.1, 0.9)
        below, above = high.copy(), low.copy()
        below[place] = above[place] = cut
        pending += [(cells, low, below), (cells, above, high)]
    return done


def certify(case: Case, radius: int, seed: int, stop: float = 0.4, bound: float = 0.0) -> Certificate:
    """A certificate from random splits; whether it holds is not asked."""
    rng = np.random.default_rng(seed)
    order = split_order(case.domain.groups, rng)
    parts = random_parts(order, radius, case.domain, rng, stop)
    boxes = [(low, high) for _, low, high in parts if low is not None]
    box = np.cumsum([low is not None for _, low, _ in parts]) - 1
    box = np.where([low is not None for _, low, _ in parts], box, -1)
    shape = (-1, radius, case.domain.members.shape[1])
    return make_certificate(
        case.network,
        case.image,
        case.domain,
        label=case.label,
        order=order,
        cells=np.array([cells for cells, _, _ in parts]),
        bounds=np.full(len(parts), bound),
        arithmetic="real",
        box=box,
        low=np.array([low for low, _ in boxes], np.float64).reshape(shape),
        high=np.array([high for _, high in boxes], np.float64).reshape(shape),
    )


def accepted(certificate: Certificate, case: Case) -> check_module.CheckResult:
    return check(certificate, case.network, case.image, case.domain)


def refused(certificate: Certificate, case: Case, match: str) -> None:
    with pytest.raises(CertificateError, match=match):
        accepted(certificate, case)


def grid_margin(case: Case, radius: int, points: int) -> float:
    """Smallest margin over all choices of groups and a grid of their values."""
    graph, flat = case.network.exact, case.image.double().flatten()
    assert graph is not None
    least = math.inf
    for groups in itertools.combinations(range(case.domain.groups), radius):
        positions = sorted({int(v) for g in groups for v in case.domain.members[g]})
        axes = [torch.linspace(float(case.domain.low[p]), float(case.domain.high[p]), points) for p in positions]
        values = torch.cartesian_prod(*axes).double().reshape(-1, len(positions))
        rows = flat.repeat(len(values), 1)
        rows[:, positions] = values
        scores = run(graph, rows.reshape(-1, *graph.input_shape))
        gaps = scores[:, [case.label]] - scores
        gaps[:, case.label] = math.inf
        least = min(least, float(gaps.min()))
    return least


def changed(array: np.ndarray, place: Any, value: Any) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy
