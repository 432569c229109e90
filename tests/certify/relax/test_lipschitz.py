"""Lipschitz bounds: above every slope that a network has, equal to it where it is known, never more than the truth."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import l0tre
from l0tre.certify.regions.tree import make_tree
from l0tre.certify.relax.instance import Instance, make_instance
from l0tre.certify.relax.lipschitz import axis_gaps, group_costs
from l0tre.certify.relax.plan import make_plan
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError
from l0tre.grid import Colours, GridKind, make_grid
from l0tre.model.graph import Graph, GraphBuilder, run
from l0tre.model.network import Network, margins
from l0tre.objective import AllRivals
from tests.certify.oracle import exact_minimum
from tests.certify.random_networks import KINDS, SMOOTH, planted, random_case

CPU = torch.device("cpu")
BUDGET = 2**24


def exact_graph(network: Network) -> Graph:
    assert network.exact is not None, network.note
    return network.exact


def instance_of(
    graph: Graph, domain: Domain, images: Tensor, labels: list[int], t: int, table_bytes: int = 2**24
) -> Instance:
    plan = make_plan(graph, domain, CPU)
    return make_instance(
        plan, make_tree(domain), domain, images.flatten(1), AllRivals(torch.tensor(labels)), t, table_bytes
    )


def network_instance(module: nn.Module, domain: Domain, image: Tensor, label: int = 0, t: int = 1) -> Instance:
    network = l0tre.load(module.eval(), input_shape=domain.shape, device="cpu")
    return instance_of(exact_graph(network), domain, image[None], [label], t)


def one_by_one(curve: nn.Module, shifts: list[float]) -> nn.Module:
    """A curve of each value, shifted; class 0 scores their sum, class 1 nothing."""
    inner, head = nn.Linear(len(shifts), len(shifts)), nn.Linear(len(shifts), 2, bias=False)
    with torch.no_grad():
        inner.weight.copy_(torch.eye(len(shifts)))
        inner.bias.copy_(torch.tensor(shifts))
        head.weight.copy_(torch.tensor([[1.0], [0.0]]).expand(2, len(shifts)))
    return nn.Sequential(inner, curve, head)


def slopes(instance: Instance, domain: Domain, t: int) -> Tensor:
    """The bound of every value's slope, ``[images, values]``, from costs that only one value of each group causes."""
    result = torch.zeros(instance.images.shape, dtype=torch.float64)
    for column in range(domain.members.shape[1]):
        values = domain.members[:, column]
        gaps = torch.zeros(instance.values, dtype=torch.float64)
        gaps[values] = 2.0
        costs = group_costs(instance, t, gaps, BUDGET)
        result[:, values] = costs
    return result


def changed(domain: Domain, image: Tensor, t: int, count: int, seed: int) -> Tensor:
    """Inputs that differ from the image in at most ``t`` groups, float64 ``[count, values]``; often at ends."""
    draw = torch.Generator().manual_seed(seed)
    x = image.flatten().double().repeat(count, 1)
    for row in x:
        for group in torch.randperm(domain.groups, generator=draw)[:t].tolist():
            places = domain.members[group, : domain.sizes[group]]
            low, high = domain.low[places].double(), domain.high[places].double()
            share = (torch.rand(len(places), generator=draw, dtype=torch.float64) * 2 - 0.5).clamp(0, 1)
            row[places] = low + share * (high - low)
    return x


def derivatives(graph: Graph, x: Tensor, label: int) -> Tensor:
    """Gradients of all margins at some inputs, ``[inputs, classes - 1, values]``."""
    x = x.reshape(-1, *graph.input_shape).requires_grad_()
    scores = run(graph, x)
    others = [c for c in range(scores.shape[1]) if c != label]
    parts = [torch.autograd.grad((scores[:, label] - scores[:, c]).sum(), x, retain_graph=True)[0] for c in others]
    return torch.stack([part.flatten(1) for part in parts], 1)


def grid_minimum(
    graph: Graph, domain: Domain, grid: Tensor, image: Tensor, label: int, groups: tuple[int, ...]
) -> float:
    """The smallest margin over the grid points of a set, in float64."""
    rows = []
    for points in itertools.product(range(grid.shape[1]), repeat=len(groups)):
        x = image.flatten().double()
        for group, point in zip(groups, points, strict=True):
            x[domain.members[group]] = grid[group, point].double()
        rows.append(x)
    scores = run(graph, torch.stack(rows).reshape(-1, *domain.shape))
    return float(margins(scores, torch.full((len(rows),), label)).min())


@pytest.mark.family
@pytest.mark.parametrize("t", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_no_derivative_is_larger(seed: int, t: int) -> None:
    case = random_case(seed)
    t = min(t, case.domain.groups)
    graph = exact_graph(case.network)
    instance = instance_of(graph, case.domain, case.image[None], [case.label], t)
    bounds = slopes(instance, case.domain, t)[0]
    free = case.domain.members.unique()
    found = derivatives(graph, changed(case.domain, case.image, t, 200, seed), case.label)[:, :, free]
    # Autograd rounds as well.
    assert (found.abs().amax((0, 1)) <= bounds[free] * (1 + 1e-12) + 1e-12).all()
    assert not bounds[[v for v in range(len(bounds)) if v not in free.tolist()]].any()


@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_margins_change_no_faster(seed: int) -> None:
    case = random_case(seed)
    graph, t = exact_graph(case.network), min(2, case.domain.groups)
    bounds = slopes(instance_of(graph, case.domain, case.image[None], [case.label], t), case.domain, t)[0]
    ends = changed(case.domain, case.image, t, 100, seed)
    # Between two points of the segment from the image to a changed input.
    share = torch.rand(100, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.9
    first = case.image.flatten().double() * (1 - share) + ends * share
    scores = [run(graph, x.reshape(-1, *case.domain.shape)) for x in (first, ends)]
    gaps = [s[:, [case.label]] - s for s in scores]
    limit = ((ends - first).abs() * bounds).sum(1, keepdim=True)
    assert ((gaps[0] - gaps[1]).abs() <= limit + 1e-12).all()


@pytest.mark.parametrize("seed", [list(KINDS).index("linear") + len(KINDS) * k for k in range(5)])
def test_linear_networks_have_their_weights(seed: int) -> None:
    case = random_case(seed)
    graph = exact_graph(case.network)
    found = slopes(instance_of(graph, case.domain, case.image[None], [case.label], 2), case.domain, 2)[0]
    exact = derivatives(graph, case.image.flatten().double()[None], case.label)[0].abs().amax(0)
    free = case.domain.members.unique()
    torch.testing.assert_close(found[free], exact[free], rtol=1e-7, atol=1e-12)


PIECEWISE = [seed for seed in range(3 * len(KINDS)) if list(KINDS)[seed % len(KINDS)] not in SMOOTH]


@pytest.mark.family
@pytest.mark.parametrize("seed", PIECEWISE)
def test_the_bound_is_never_above_the_exact_minimum(seed: int) -> None:
    case = random_case(seed)
    graph, domain = exact_graph(case.network), case.domain
    grid = make_grid(domain, 0.5, colours="corners" if domain.members.shape[1] > 3 else "grid")
    gaps = axis_gaps(domain, grid)
    for t in range(1, min(2, domain.groups) + 1):
        costs = group_costs(instance_of(graph, domain, case.image[None], [case.label], t), t, gaps, BUDGET)[0]
        sets = list(itertools.combinations(range(domain.groups), t))
        for groups in sets[:: max(1, len(sets) // 4)]:
            if grid.shape[1] ** t > 4096:
                continue
            least = grid_minimum(graph, domain, grid, case.image, case.label, groups)
            truth = exact_minimum(graph, case.image, case.label, domain, groups)[0]
            assert least - float(costs[list(groups)].sum()) <= truth + 1e-9


def test_fine_grids_come_close_to_the_exact_minimum() -> None:
    case = random_case(list(KINDS).index("dense"))
    graph, domain = exact_graph(case.network), case.domain
    instance = instance_of(graph, domain, case.image[None], [case.label], 1)
    truth = exact_minimum(graph, case.image, case.label, domain, (0,))[0]
    short = []
    for epsilon in (0.1, 0.01, 0.001):
        grid = make_grid(domain, epsilon)
        cost = float(group_costs(instance, 1, axis_gaps(domain, grid), BUDGET)[0, 0])
        short.append(truth - (grid_minimum(graph, domain, grid, case.image, case.label, (0,)) - cost))
    assert 0 <= short[2] < 0.02 * short[0]


def test_a_spot_between_grid_points_is_paid_for() -> None:
    case = planted([5], [0.125])
    graph, grid = exact_graph(case.network), make_grid(case.domain, 0.25)
    instance = instance_of(graph, case.domain, case.image[None], [case.label], 1)
    costs = group_costs(instance, 1, axis_gaps(case.domain, grid), BUDGET)[0]
    least = grid_minimum(graph, case.domain, grid, case.image, case.label, (5,))
    assert least > 0  # the grid alone sees nothing
    assert least - costs[5] <= -0.1 + 1e-6
    others = [group for group in range(16) if group != 5]
    assert costs[others].abs().max() < 1e-6
    assert costs[5] == pytest.approx(0.125, rel=1e-3)  # slope 1


@pytest.mark.parametrize("slope", [0.0, 0.25, 3.0])
def test_ranges_decide_slopes(slope: float) -> None:
    """One neuron on its upper piece, one on its lower piece, one on both."""
    domain = make_domain((3,))
    instance = network_instance(one_by_one(nn.LeakyReLU(slope), [0.5, -2.0, -0.5]), domain, torch.full((3,), 0.2), t=2)
    expected = torch.tensor([1.0, abs(slope), max(1.0, abs(slope))]).double()
    torch.testing.assert_close(slopes(instance, domain, 2)[0], expected, rtol=1e-8, atol=1e-200)


def test_the_steepest_point_of_a_curve_counts() -> None:
    domain = make_domain((2,))
    for curve, at_zero in ((nn.Sigmoid(), 0.25), (nn.Tanh(), 1.0)):
        # One range around zero, one from 1 to 2.
        found = slopes(network_instance(one_by_one(curve, [-0.5, 1.0]), domain, torch.zeros(2)), domain, 1)[0]
        z = torch.ones((), dtype=torch.float64, requires_grad=True)
        (at_one,) = torch.autograd.grad(curve(z), z)
        torch.testing.assert_close(found, torch.stack([at_one.new_tensor(at_zero), at_one]), rtol=1e-6, atol=0)


def test_a_max_pool_passes_slopes_to_possible_maxima_only() -> None:
    low = torch.tensor([[[0.0, 0.5], [0.2, 0.0]]])
    high = torch.tensor([[[0.1, 1.0], [0.7, 0.3]]])
    head = nn.Linear(9, 2, bias=False)
    with torch.no_grad():
        head.weight.zero_()
        head.weight[0, 4] = 1.0  # the middle window sees all four
        head.weight[0, 0] = -2.0  # the first one the first pixel alone
    module = nn.Sequential(nn.MaxPool2d(2, 1, 1), nn.Flatten(), head)
    domain = make_domain((1, 2, 2), low=low, high=high)
    found = slopes(network_instance(module, domain, (low + high) / 2, t=4), domain, 4)[0]
    torch.testing.assert_close(found.tolist(), [2.0, 1.0, 1.0, 0.0], rtol=1e-6, atol=1e-9)


def test_channels_and_masks() -> None:
    head = nn.Linear(12, 2)
    mask = torch.ones(3, 2, 2, dtype=torch.bool)
    mask[1, 0, 0] = mask[:, 1, 0] = False
    domain = make_domain((3, 2, 2), mask=mask)
    instance = network_instance(nn.Sequential(nn.Flatten(), head), domain, torch.full((3, 2, 2), 0.5))
    weight = (head.weight[0] - head.weight[1]).detach().double().abs().reshape(3, 4)
    gaps = torch.arange(1.0, 13.0).double().reshape(3, 4)
    shares = (weight * gaps / 2) * mask.reshape(3, 4)
    expected = shares.sum(0)[[0, 1, 3]]  # the third pixel never changes
    found = group_costs(instance, 1, gaps.flatten(), BUDGET)
    assert found.shape == (1, 3)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found[0], expected, rtol=1e-7, atol=0)


def test_more_changes_never_cost_less() -> None:
    case = random_case(list(KINDS).index("average"))
    graph, domain = exact_graph(case.network), case.domain
    costs = [
        group_costs(
            instance_of(graph, domain, case.image[None], [case.label], 3), t, torch.ones(len(domain.low)), BUDGET
        )
        for t in (1, 2, 3)
    ]
    assert (costs[0] <= costs[1] * (1 + 1e-9)).all()
    assert (costs[1] <= costs[2] * (1 + 1e-9)).all()
    assert (costs[0] < costs[2]).any()


@pytest.mark.parametrize("kind", ["convolution", "max_pool", "dense"])
def test_images_and_memory_change_nothing(kind: str) -> None:
    case = random_case(list(KINDS).index(kind))
    graph, domain = exact_graph(case.network), case.domain
    images = changed(domain, case.image, 4, 5, 0).float()
    labels = [0, 1, 0, 1, 1]
    gaps = torch.rand(len(domain.low), generator=torch.Generator().manual_seed(1))
    together = group_costs(instance_of(graph, domain, images, labels, 2), 2, gaps, BUDGET)
    small = group_costs(instance_of(graph, domain, images, labels, 2), 2, gaps, 1)
    torch.testing.assert_close(together, small, rtol=1e-9, atol=1e-12)
    for row, label in enumerate(labels):
        alone = group_costs(instance_of(graph, domain, images[row : row + 1], [label], 2), 2, gaps, BUDGET)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-9, atol=1e-12)


def test_without_tables_costs_are_valid_and_larger() -> None:
    case = random_case(list(KINDS).index("convolution"))
    graph, domain = exact_graph(case.network), case.domain
    with_tables, without = (
        slopes(instance_of(graph, domain, case.image[None], [case.label], 1, size), domain, 1)[0] for size in (2**24, 0)
    )
    assert (with_tables <= without * (1 + 1e-9)).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["first weight", "first bias", "last weight", "last bias"])
def test_networks_that_are_not_finite_prove_nothing(value: float, place: str) -> None:
    shapes = {"first weight": (3, 4), "first bias": (3,), "last weight": (2, 3), "last bias": (2,)}
    draw = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in shapes.items()}
    tensors[place].view(-1)[0] = value
    builder = GraphBuilder((4,))
    hidden = builder.add("linear", [0], {"weight": tensors["first weight"], "bias": tensors["first bias"]})
    bent = builder.add("relu", [hidden])
    builder.add("linear", [bent], {"weight": tensors["last weight"], "bias": tensors["last bias"]})
    instance = instance_of(Graph(tuple(builder.operations)), make_domain((4,)), torch.zeros(1, 4), [0], 1)
    costs = group_costs(instance, 1, torch.full((4,), 0.25), BUDGET)
    assert not (1e9 - costs > 0).any()


def test_a_network_that_ignores_its_input_costs_nothing() -> None:
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.zero_()
    domain = make_domain((3,))
    assert not group_costs(
        network_instance(nn.Sequential(head), domain, torch.zeros(3)), 1, torch.ones(3), BUDGET
    ).any()


def test_gaps_of_another_size_are_refused() -> None:
    domain = make_domain((3,))
    instance = network_instance(nn.Sequential(nn.Linear(3, 2)), domain, torch.zeros(3))
    with pytest.raises(ConfigError, match=r"shape \(2,\) .* 3 input values"):
        group_costs(instance, 1, torch.ones(2), BUDGET)


RANGES = make_domain((4,), low=torch.tensor([0.0, -1.0, 0.2, 0.0]), high=torch.tensor([1.0, 2.0, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("kind", "colours", "expected"),
    [
        ("uniform", "grid", [0.25, 0.3, 0.0, 0.1]),
        ("paper", "grid", [0.5, 1.5, 0.0, 0.05]),
        ("uniform", "corners", [1.0, 3.0, 0.0, 0.1]),
    ],
)
def test_gaps_of_every_grid(kind: GridKind, colours: Colours, expected: list[float]) -> None:
    grid = make_grid(RANGES, 0.3, kind, colours)
    torch.testing.assert_close(axis_gaps(RANGES, grid), torch.tensor(expected).double(), rtol=1e-6, atol=1e-7)


def test_gaps_count_ends_that_a_grid_leaves_out() -> None:
    domain = make_domain((2,))
    grid = torch.tensor([[[0.25], [0.5], [0.75]], [[0.9], [0.0], [0.5]]])
    torch.testing.assert_close(axis_gaps(domain, grid), torch.tensor([0.5, 0.5]).double(), rtol=1e-6, atol=0)
    one = torch.tensor([[[0.25]], [[1.0]]])
    torch.testing.assert_close(axis_gaps(domain, one), torch.tensor([1.5, 2.0]).double(), rtol=1e-6, atol=0)


def test_a_grid_of_another_domain_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 groups of up to 1 values: make it for the same domain"):
        axis_gaps(make_domain((2,)), make_grid(make_domain((3,)), 0.5))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3 * len(KINDS)), st.sampled_from([0.11, 0.3, 0.5, 2.0]), st.sampled_from(["uniform", "paper"]))
def test_every_input_has_a_grid_point_within_half_a_gap(seed: int, epsilon: float, kind: GridKind) -> None:
    domain = random_case(seed).domain
    grid = make_grid(domain, epsilon, kind, "corners" if domain.members.shape[1] > 3 else "grid")
    gaps = axis_gaps(domain, grid)
    x = changed(domain, domain.low.reshape(domain.shape), domain.groups, 1, seed)[0]
    for group in range(domain.groups):
        values = domain.members[group]
        near = ((grid[group].double() - x[values]).abs() <= gaps[values] / 2 * (1 + 1e-12)).all(1)
        assert near.any()
