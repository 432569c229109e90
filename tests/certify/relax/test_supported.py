"""Max pools go before what never falls: the same network."""

import torch

from l0tre.certify.relax.supported import pools_first
from l0tre.model.graph import Graph, Operation, run


def graph_of(*kinds: str, second: int = 0) -> Graph:
    """Maps of 6 x 6 through elementwise operations and a max pool with padding; ``second`` reads the first one too."""
    operations = [Operation("input", (), (2, 6, 6))]
    for kind in kinds:
        source = len(operations) - 1
        if kind == "max_pool":
            attributes = {"kernel": (2, 3), "stride": (2, 2), "padding": (0, 1), "dilation": (1, 1)}
            operations.append(Operation(kind, (source,), (2, 3, 3), attributes=attributes))
        elif kind == "add":
            operations.append(Operation(kind, (second, source), operations[source].shape))
        else:
            operations.append(Operation(kind, (source,), operations[source].shape, attributes={"slope": 0.1}))
    return Graph(tuple(operations))


def kinds_of(graph: Graph) -> list[str]:
    return [operation.kind for operation in graph.operations[1:]]


def test_pools_go_before_what_never_falls() -> None:
    for kind in ("relu", "tanh", "sigmoid"):
        graph = graph_of(kind, "max_pool", kind)
        moved = pools_first(graph)
        assert kinds_of(moved) == ["max_pool", kind, kind]
        assert [operation.shape for operation in moved.operations] == [(2, 6, 6), (2, 3, 3), (2, 3, 3), (2, 3, 3)]
        x = torch.randn(5, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.allclose(run(graph, x), run(moved, x), rtol=0, atol=1e-15)


def test_pools_stay_behind_what_falls_or_is_read_elsewhere() -> None:
    assert kinds_of(pools_first(graph_of("gelu", "max_pool"))) == ["gelu", "max_pool"]
    assert kinds_of(pools_first(graph_of("relu", "max_pool", "relu"))) == ["max_pool", "relu", "relu"]
    both = graph_of("relu", "relu", "add", second=1)
    read = Graph(
        (
            *both.operations[:2],
            Operation("max_pool", (1,), (2, 3, 3), attributes=graph_of("max_pool").operations[1].attributes),
            *both.operations[2:],
        )
    )
    assert kinds_of(pools_first(read))[:2] == ["relu", "max_pool"]
