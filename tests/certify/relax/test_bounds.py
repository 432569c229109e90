"""Bounds of the margins and ranges of the layers hold at every point of a node, however they are computed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Nodes
from l0tre.certify.relax import bounds as bound_module
from l0tre.certify.relax.bounds import Bounds, bound, refinements
from l0tre.certify.relax.concretize import minimizing_inputs
from l0tre.certify.relax.instance import Instance, make_instance
from l0tre.domain import make_domain
from l0tre.model.graph import GraphBuilder
from l0tre.objective import AllRivals
from tests.certify.proving import (
    ROUNDING,
    ROWS,
    TABLES,
    as_network,
    box_nodes,
    cell_nodes,
    check_bounds,
    groups_of,
    make,
    parts_of,
    true_margins,
    variant,
)
from tests.certify.random_networks import KINDS, Case, random_case
from tests.certify.wide_networks import DOMAINS, WIDE, wide_case

SEEDS = range(4 * len(KINDS))
VARIANTS = range(4)  # 208 cases with the seeds


def nodes_of(case: Case, instance: Instance, t: int, rng: np.random.Generator, count: int = 5) -> list[Nodes]:
    return [cell_nodes(instance.tree, t, rng, count), box_nodes(instance.tree, case.domain, t, rng, count)]


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_and_ranges_hold(seed: int) -> None:
    """With tables and room for all rows, and with neither: the bounds of boxes are the same then."""
    for number in VARIANTS:
        case, rng = variant(seed, number), np.random.default_rng([seed, number])
        t = 1 + (seed // len(KINDS) + number) % min(3, case.domain.groups)
        instance, bare = make(case, t), make(case, t, tables=0)
        assert not bare.tables
        for nodes in nodes_of(case, instance, t, rng):
            first = check_bounds(case, instance, nodes, rng)
            second = check_bounds(case, bare, nodes, rng, row_bytes=ROWS if number % 2 else 1)
            if isinstance(nodes, BoxNodes):
                assert torch.allclose(first, second, atol=ROUNDING)


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS[: 2 * len(KINDS)])
def test_the_worst_input_lies_in_the_node_and_above_its_bound(seed: int) -> None:
    case, rng = variant(seed, 1), np.random.default_rng(seed)
    t = min(2, case.domain.groups)
    instance = make(case, t)
    low, high = case.domain.low.double(), case.domain.high.double()
    for nodes in nodes_of(case, instance, t, rng):
        bounds = bound(instance, nodes, ROWS)
        for number in range(bounds.margins.shape[1]):
            rows = torch.full((len(nodes),), number)
            inputs = minimizing_inputs(instance, nodes, bounds.form, rows, low, high)
            assert bool(((inputs >= case.domain.low) & (inputs <= case.domain.high)).all())
            truth = true_margins(case, inputs)[:, number]
            assert bool((bounds.margins[:, number] <= truth + 1e-5).all())  # inputs are rounded to float32
            for row in range(len(nodes)):
                changed = {
                    group
                    for group, (own, size) in enumerate(zip(case.domain.members, case.domain.sizes, strict=True))
                    if (inputs[row] != case.image.flatten())[own[:size]].any()
                }
                cells = nodes.cells[row].tolist()
                for cell in set(cells):
                    inside = changed.intersection(groups_of(instance.tree, cell))
                    assert len(inside) <= cells.count(cell)
                    changed -= inside
                assert not changed


def linear_minimum(case: Case, instance: Instance, nodes: Nodes, row: int) -> Tensor:
    """The exact least margins ``[classes - 1]`` of a network without bends, by sorting what each group can take."""
    x = case.image.flatten().double()
    own = true_margins(case, x[None])[0]
    unit = true_margins(case, torch.eye(len(x), dtype=torch.float64)) - true_margins(case, torch.zeros(1, len(x)))
    result = own.clone()
    cells = nodes.cells[row].tolist()
    for cell in dict.fromkeys(cells):
        takes = []
        for group in groups_of(instance.tree, cell):
            place = case.domain.members[group, : case.domain.sizes[group]]
            low, high = case.domain.low[place].double(), case.domain.high[place].double()
            if isinstance(nodes, BoxNodes):
                column = cells.index(cell)
                low, high = nodes.low[row, column, : len(place)], nodes.high[row, column, : len(place)]
            ends = torch.stack([(end - x[place])[:, None] * unit[place] for end in (low, high)])
            takes.append(ends.amin(0).sum(0))
        result += torch.stack(takes).sort(0).values[: cells.count(cell)].sum(0)
    return result


@pytest.mark.parametrize("seed", [10 + 13 * number for number in range(6)])
def test_bounds_of_a_linear_network_are_exact(seed: int) -> None:
    for number in VARIANTS:
        case, rng = variant(seed, number), np.random.default_rng([seed, number])
        assert case.kind == "linear"
        for t in range(1, min(4, case.domain.groups) + 1):
            instance = make(case, t)
            for nodes in nodes_of(case, instance, t, rng, 8):
                margins = bound(instance, nodes, ROWS).margins
                wanted = torch.stack([linear_minimum(case, instance, nodes, row) for row in range(len(nodes))])
                assert torch.allclose(margins, wanted, rtol=0, atol=ROUNDING)


def wide_seed(build: str, how: str) -> int:
    """One channel or two, so that every network and every kind of groups meets both."""
    return (list(WIDE).index(build) + DOMAINS.index(how)) % 2


@pytest.mark.family
@pytest.mark.parametrize("how", DOMAINS)
@pytest.mark.parametrize("build", WIDE)
def test_bounds_hold_where_neurons_see_windows(build: str, how: str) -> None:
    case, rng = wide_case(build, how, wide_seed(build, how)), np.random.default_rng(0)
    for t, tables in ((1, TABLES), (2, 0), (3, TABLES)):
        instance = make(case, t, tables=tables)
        # Many splits mix cells that are there several times with cells that a window does not meet.
        check_bounds(case, instance, cell_nodes(instance.tree, t, rng, 6, 0.1), rng)
        check_bounds(case, instance, box_nodes(instance.tree, case.domain, t, rng, 3), rng)


@pytest.mark.parametrize("how", DOMAINS)
def test_gaps_are_charged_to_pixels(how: str) -> None:
    """The cases above would show nothing about charging if none of them charged."""
    case, rng = wide_case("shallow", how, wide_seed("shallow", how), side=16), np.random.default_rng(0)
    instance = make(case, 1)
    nodes = cell_nodes(instance.tree, 1, rng, 6, 0.05)
    check_bounds(case, instance, nodes, rng)
    local = bound(instance, nodes, ROWS).form.local
    assert local is not None
    assert bool((local <= 0).all())
    assert bool((local < 0).any())


@pytest.mark.family
@pytest.mark.parametrize("build", WIDE)
@pytest.mark.parametrize("how", DOMAINS[::2])
def test_windows_and_whole_rows_agree(build: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, rng = wide_case(build, how, wide_seed(build, how)), np.random.default_rng(0)
    t = 3
    instance, whole = make(case, t), make(case, t, windows=False)
    assert instance.plan.receptive_fields
    assert not whole.plan.receptive_fields
    # Without charging, which only windows allow, both are the same bounds.
    monkeypatch.setattr(bound_module, "chargeable_pixels", lambda *_: 0)
    for nodes in (cell_nodes(instance.tree, t, rng, 4, 0.1), box_nodes(instance.tree, case.domain, t, rng, 2)):
        margins = check_bounds(case, instance, nodes, rng, row_bytes=2**14)
        assert torch.allclose(margins, bound(whole, nodes, ROWS).margins, atol=ROUNDING)


@pytest.mark.parametrize("seed", SEEDS[: len(KINDS)])
def test_several_images_are_bounded_as_one_at_a_time(seed: int) -> None:
    case, rng = random_case(seed), np.random.default_rng(seed)
    t = min(2, case.domain.groups)
    one = make(case, t)
    low, high = case.domain.low, case.domain.high
    images = torch.cat([case.image.flatten()[None], low + torch.rand(2, len(low)) * (high - low)])
    classes = one.rows.shape[2]
    labels = torch.tensor([case.label, (case.label + 1) % classes, case.label])
    several = make_instance(one.plan, one.tree, case.domain, images, AllRivals(labels), t, TABLES)
    for nodes in nodes_of(case, one, t, rng):
        parts = []
        for row in range(3):
            alone = make_instance(one.plan, one.tree, case.domain, images[[row]], AllRivals(labels[[row]]), t, TABLES)
            parts.append(bound(alone, nodes, ROWS).margins)
        order = torch.from_numpy(rng.permutation(3 * len(nodes)))
        rows = torch.arange(3).repeat_interleave(len(nodes))[order]
        mixed = replace(nodes.pick(order % len(nodes)), image=rows)
        wanted = torch.stack(parts)[rows, order % len(nodes)]
        assert torch.allclose(bound(several, mixed, ROWS).margins, wanted, atol=ROUNDING)


def test_ranges_of_large_inputs_are_not_too_narrow_by_rounding() -> None:
    """Columns in their own units, normalised by the network: small weights, large values, constants in between."""
    random = torch.Generator().manual_seed(0)
    builder = GraphBuilder((6,))
    top = builder.add("scale", [0], {"scale": torch.tensor(1.3e-9), "shift": torch.tensor(-0.7)})
    top = builder.add("linear", [top], {"weight": torch.randn(8, 6, generator=random), "bias": torch.ones(8)})
    top = builder.add("linear", [builder.add("relu", [top])], {"weight": torch.randn(2, 8, generator=random)})
    graph = builder.build(top).to("cpu")
    domain = make_domain((6,), high=1e9)
    image = torch.rand(6, generator=random) * 1e9
    case = Case(torch.nn.Identity(), graph, as_network(graph), image, 0, domain, "large")
    rng = np.random.default_rng(0)
    for t in (1, 2, 3):
        instance = make(case, t)
        for nodes in nodes_of(case, instance, t, rng, 8):
            check_bounds(case, instance, nodes, rng)


@pytest.mark.parametrize("seed", SEEDS[: len(KINDS)])
def test_parts_of_nodes_may_rest_on_what_the_nodes_knew(seed: int) -> None:
    case, rng = random_case(seed), np.random.default_rng(seed)
    t = min(2, case.domain.groups)
    instance = make(case, t)
    for nodes in nodes_of(case, instance, t, rng):
        parts = parts_of(instance, nodes)
        for _ in range(2):
            if len(parts):
                check_bounds(case, instance, parts.pick(slice(0, 4)), rng)
                parts = parts_of(instance, parts)


@pytest.mark.parametrize("seed", SEEDS[: len(KINDS) : 2])
def test_ranges_may_be_refined_one_after_the_other(seed: int) -> None:
    case, rng = random_case(seed), np.random.default_rng(seed)
    instance = make(case, min(2, case.domain.groups))
    for nodes in nodes_of(case, instance, min(2, case.domain.groups), rng):
        parts = parts_of(instance, nodes).pick(slice(0, 4))
        if not len(parts):
            continue
        assert parts.known is not None
        before = parts.known.margins
        for refined in refinements(instance.plan):
            lower = check_bounds(case, instance, parts, rng, refined=refined)
            assert bool((lower >= before).all())
            parts, before = replace(parts, known=bound(instance, parts, ROWS, refined).known), lower


@pytest.mark.parametrize("build", WIDE)
def test_parts_keep_what_was_proved_of_a_rival(build: str) -> None:
    """A rival that the whole node excludes is not bounded again; bounds of the others are no worse than before."""
    case, rng = wide_case(build, "pixel"), np.random.default_rng(0)
    instance = make(case, 1)
    nodes = cell_nodes(instance.tree, 1, rng, 12, 0.1)
    whole = bound(instance, nodes, ROWS)
    assert whole.rivals.shape == whole.margins.shape
    parts = parts_of(instance, nodes)
    assert isinstance(parts, CellNodes)
    assert parts.known is not None
    found = bound(instance, parts, ROWS)
    assert bool((found.margins >= parts.known.margins).all())
    excluded = (parts.known.margins > instance.slack[parts.image]) & torch.isfinite(parts.known.margins)
    assert bool((found.margins == parts.known.margins)[excluded & ~_bounded(found)].all())
    assert found.rivals.shape[1] == max(1, int((~excluded).sum(1).max()))


def _bounded(found: Bounds) -> Tensor:
    return torch.zeros_like(found.margins, dtype=torch.bool).scatter(1, found.rivals, value=True)
