"""What several tests need: networks without an importer, and brute force over every subset and grid point."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.domain import Domain
from l0tre.model.graph import Graph, run
from l0tre.model.network import Network

# An evaluation without the attacks before its levels: they take most of the time, and tests of other parts need none.
NO_ATTACK: dict[str, Any] = {"attack_queries": 0}
SAMPLE_BYTES = 2**22  # what a sample of a plain network claims to take, so that tests go in small steps


def plain_network(module: nn.Module, shape: tuple[int, ...], *, sample_bytes: int = SAMPLE_BYTES) -> Network:
    """A network straight from a module, without an importer."""
    module = module.eval().requires_grad_(False)
    classes = module(torch.zeros(1, *shape)).shape[1]
    return Network(module, module, shape, classes, torch.device("cpu"), None, "tiny", "tiny", sample_bytes=sample_bytes)


def tiny_module(kind: str, seed: int, classes: int = 3) -> tuple[nn.Module, tuple[int, ...]]:
    """A small random network of one kind and its input shape."""
    torch.manual_seed(seed)
    if kind == "dense":
        module: nn.Module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, classes))
        shape: tuple[int, ...] = (5,)
    elif kind == "conv1":
        module = nn.Sequential(nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, classes))
        shape = (1, 2, 3) if seed % 2 else (1, 3, 2)
    else:
        module = nn.Sequential(nn.Conv2d(3, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, classes))
        shape = (3, 2, 2)
    if kind == "conv1":
        module[-1] = nn.Linear(4 * (shape[1] - 1) * (shape[2] - 1), classes)  # type: ignore[operator]
    for parameter in module.parameters():
        parameter.data *= 2.0  # enough gain for small distances
    return module, shape


@dataclass(frozen=True)
class Exact:
    """What brute force finds: the smallest margin and label score of every set of groups."""

    margins: dict[tuple[int, ...], float]
    scores: dict[tuple[int, ...], float]

    def distance(self) -> int:
        """Fewest groups that change the decision on the grid; one more than there are if none do."""
        sizes = [len(s) for s, margin in self.margins.items() if margin < 0]
        return min(sizes, default=max(len(s) for s in self.margins) + 1)

    def closest_tie(self) -> float:
        return min(abs(margin) for margin in self.margins.values())


def brute_force(module: nn.Module, image: Tensor, label: int, domain: Domain, axes: Sequence[float]) -> Exact:
    """Every subset of groups, every combination of axis values, in float64."""
    exact = module.double()
    margins, scores = {}, {}
    for size in range(1, domain.groups + 1):
        for groups in itertools.combinations(range(domain.groups), size):
            positions = sorted({int(v) for g in groups for v in domain.members[g]})
            values = torch.tensor(list(itertools.product(axes, repeat=len(positions))), dtype=torch.float64)
            rows = image.flatten().double().repeat(len(values), 1)
            rows[:, positions] = values
            with torch.inference_mode():
                out = exact(rows.view(-1, *image.shape))
            others = torch.cat([out[:, :label], out[:, label + 1 :]], 1)
            margins[groups] = float((out[:, label] - others.max(1).values).min())
            scores[groups] = float(out[:, label].min())
    module.float()
    return Exact(margins, scores)


def graph_network(graph: Graph, fingerprint: str = "tiny", name: str = "tiny") -> Network:
    """A network of a float32 graph, without an importer: its source is the graph itself."""
    exact = graph.to("cpu", torch.float64)

    def forward(x: Tensor) -> Tensor:
        return run(graph, x)

    def double(x: Tensor) -> Tensor:
        return run(exact, x)

    return Network(
        forward,
        forward,
        graph.input_shape,
        graph.output_shape[0],
        torch.device("cpu"),
        graph,
        name,
        fingerprint,
        exact=exact,
        literal=exact,
        double=double,
    )
