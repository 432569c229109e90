"""What the checks are worth: each notices one mistake that would make proofs wrong, and passes without it."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.cells import cell_search as search_module
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, Known, Nodes, root, split_boxes, split_cells
from l0tre.certify.relax import bounds as bound_module
from l0tre.certify.relax.plan import ReceptiveField
from l0tre.certify.relax.relaxation import Relaxation, relax
from l0tre.domain import Domain, make_domain
from l0tre.model.graph import Graph
from l0tre.model.network import margins
from l0tre.objective import AllRivals
from tests.certify import proving
from tests.certify.proving import (
    as_network,
    box_nodes,
    cell_nodes,
    check_bounds,
    make,
    notices,
    parts_of,
    pursue,
    sets_of,
    start,
    true_margins,
    variant,
)
from tests.certify.random_networks import KINDS, Case, planted, random_case
from tests.certify.wide_networks import wide_case

Patch = pytest.MonkeyPatch
Check = Callable[[], None]


def assert_noticed(check: Check, patch: Callable[[Patch], None]) -> None:
    """The check passes, fails with the mistake, and passes again."""
    check()
    with pytest.MonkeyPatch.context() as place:
        patch(place)
        assert notices(check), "the mistake goes unnoticed"
    check()


def firm_case() -> Case:
    """Safe at two groups, but only splits of cells and of boxes show it."""
    return variant(17, 3)


def check_everything_is_proved() -> None:
    """A safe network is proved, and the proved nodes are every set of groups, each once."""
    case = firm_case()
    outcome = pursue(start(case, 2))
    assert outcome.verdict == "safe"
    assert any(isinstance(nodes, CellNodes) and len(nodes) for nodes, _ in outcome.proved)
    assert any(isinstance(nodes, BoxNodes) and len(nodes) and int(nodes.depth.max()) > 1 for nodes, _ in outcome.proved)
    tree = outcome.search.instance.tree
    found: Counter[tuple[int, ...]] = Counter()
    for nodes, _ in outcome.proved:
        for row, cells in enumerate(nodes.cells.tolist()):
            halvings = int(nodes.depth[row]) if isinstance(nodes, BoxNodes) else 0
            for groups in sets_of(tree, cells):
                found[groups] += 2 ** (40 - halvings)
    assert found == dict.fromkeys(itertools.combinations(range(case.domain.groups), 2), 2**40)


def check_planted_pairs_stay() -> None:
    """Two pixels change the decision, so two pixels are never proved."""
    for shape in ((1, 4, 4), (2, 3, 3)):
        case = planted((1, 7), (0.9, 0.1), shape)
        assert pursue(start(case, 1), 200).verdict == "safe"
        assert pursue(start(case, 2), 200).verdict != "safe"


def check_random_bounds() -> None:
    """Bounds of random networks hold at points of their nodes."""
    for seed in range(2 * len(KINDS)):
        case, rng = random_case(seed), np.random.default_rng(seed)
        t = min(2, case.domain.groups)
        instance = make(case, t)
        check_bounds(case, instance, cell_nodes(instance.tree, t, rng, 6), rng)
        check_bounds(case, instance, box_nodes(instance.tree, case.domain, t, rng, 4), rng)


def check_bounds_of_parts() -> None:
    """Bounds hold that rest on what was known of larger nodes."""
    for seed in range(0, 2 * len(KINDS), 4):
        case, rng = random_case(seed), np.random.default_rng(seed)
        t = min(2, case.domain.groups)
        instance = make(case, t)
        nodes = cell_nodes(instance.tree, t, rng, 6), box_nodes(instance.tree, case.domain, t, rng, 4)
        for whole in nodes:
            parts = parts_of(instance, whole)
            if len(parts):
                check_bounds(case, instance, parts, rng)


def check_charged_bounds() -> None:
    """Bounds hold where gaps are charged to pixels."""
    case, rng = wide_case("shallow", "pixel", side=10), np.random.default_rng(0)
    instance = make(case, 1)
    check_bounds(case, instance, cell_nodes(instance.tree, 1, rng, 40, 0.05), rng)


def check_witnesses() -> None:
    """Candidates change the decision."""
    for seed in range(len(KINDS)):
        case = random_case(seed)
        outcome = pursue(start(case, 1), 20)
        assert outcome.witness is None or float(true_margins(case, outcome.witness[None]).min()) < 1e-5


def too_few_slots(patch: Patch) -> None:
    def one_less(image: int, t: int, device: torch.device) -> Nodes:
        return root(image, t - 1, device)

    patch.setattr(search_module, "root", one_less)


def too_low_a_level(patch: Patch) -> None:
    full = search_module.CellSearch

    def one_less(instance: Any, domain: Domain, batcher: Any, t: int, budget: int) -> search_module.CellSearch:
        return full(instance, domain, batcher, max(1, t - 1), budget)

    patch.setattr(proving, "CellSearch", one_less)


def a_dropped_cell(patch: Patch) -> None:
    def without_last(tree: Any, nodes: CellNodes, weight: Tensor) -> tuple[CellNodes, Tensor]:
        children, parents = split_cells(tree, nodes, weight)
        return children.pick(slice(0, -1)), parents[:-1]

    patch.setattr(search_module, "split_cells", without_last)


def a_dropped_box(patch: Patch) -> None:
    def lower_halves(nodes: BoxNodes, weight: Tensor) -> BoxNodes:
        return split_boxes(nodes, weight).pick(slice(0, len(nodes)))

    patch.setattr(search_module, "split_boxes", lower_halves)


def wrong_lines(how: Callable[[Tensor], Tensor], patch: Patch) -> None:
    def changed(*args: Any, **options: Any) -> Relaxation:
        lines = relax(*args, **options)
        return replace(lines, maps=how(lines.maps))

    patch.setattr(bound_module, "relax", changed)


def signs(*factors: float) -> Callable[[Tensor], Tensor]:
    """Slope below, slope above, gap below and gap above times a factor each."""
    return lambda maps: maps * torch.tensor(factors, dtype=maps.dtype)[:, None, None]


def ranks_by_number(count: Callable[[Tensor], Tensor], patch: Patch) -> None:
    def ranks(self: Nodes) -> Tensor:
        return count(self.cells[:, :, None] == self.cells[:, None, :])

    for kind in (CellNodes, BoxNodes):
        patch.setattr(kind, "ranks", ranks)


def other_domain(change: Callable[[Domain], Domain], patch: Patch) -> None:
    """The prover works on another domain than the one that the checks know."""

    def mistaken(call: Callable[..., Any], place: int, *args: Any) -> Any:
        return call(*args[:place], change(args[place]), *args[place + 1 :])

    for name, place in (("make_tree", 0), ("make_instance", 2), ("CellSearch", 1)):
        patch.setattr(proving, name, partial(mistaken, getattr(proving, name), place))


def channels_apart(domain: Domain) -> Domain:
    low, high = domain.low.reshape(domain.shape), domain.high.reshape(domain.shape)
    return make_domain(domain.shape, groups="feature", low=low, high=high)


def normalised(domain: Domain) -> Domain:
    return replace(domain, low=(domain.low - 0.1) / 2, high=(domain.high - 0.1) / 2)


def free_pixels(patch: Patch) -> None:
    def nothing(self: ReceptiveField, values: Tensor, origin: Any, shape: tuple[int, int]) -> Tensor:  # noqa: ARG001
        return values.new_zeros(*values.shape[:-2], *shape)

    patch.setattr(ReceptiveField, "spread", nothing)


def of_others(known: Known) -> Tensor:
    return torch.arange(len(known.margins)).roll(1)


def wrong_heritage(how: Callable[[Known], Known], patch: Patch) -> None:
    def changed(*args: Any) -> Any:
        found = bound_module.bound(*args)
        return replace(found, known=how(found.known))

    patch.setattr(proving, "bound", changed)


def turned_margins(patch: Patch) -> None:
    patch.setattr(AllRivals, "margins", lambda claims, scores: -margins(scores, claims.labels))


MISTAKES: dict[str, tuple[Check, Callable[[Patch], None]]] = {
    "one slot too few": (check_everything_is_proved, too_few_slots),
    "one level too low": (check_planted_pairs_stay, too_low_a_level),
    "a cell is dropped": (check_everything_is_proved, a_dropped_cell),
    "half a box is dropped": (check_everything_is_proved, a_dropped_box),
    "slope above turned": (check_random_bounds, partial(wrong_lines, signs(1, -1, 1, 1))),
    "slope below turned": (check_random_bounds, partial(wrong_lines, signs(-1, 1, 1, 1))),
    "gap above turned": (check_random_bounds, partial(wrong_lines, signs(1, 1, 1, -1))),
    "gap below forgotten": (check_random_bounds, partial(wrong_lines, signs(1, 1, 0, 1))),
    "lines exchanged": (check_random_bounds, partial(wrong_lines, lambda maps: maps[[1, 0, 3, 2]])),
    "the last of equal cells only": (
        check_random_bounds,
        partial(ranks_by_number, lambda same: same.sum(2) - 1),
    ),
    "channels as pixels": (check_planted_pairs_stay, partial(other_domain, channels_apart)),
    "ranges in normalised units": (check_random_bounds, partial(other_domain, normalised)),
    "nobody pays for gaps": (check_charged_bounds, free_pixels),
    "a layer's smallest values as its largest": (
        check_bounds_of_parts,
        partial(wrong_heritage, lambda known: replace(known, high=known.low)),
    ),
    "a layer's largest values as its smallest": (
        check_bounds_of_parts,
        partial(wrong_heritage, lambda known: replace(known, low=known.high)),
    ),
    "what another node knew": (
        check_bounds_of_parts,
        partial(wrong_heritage, lambda known: known.pick(of_others(known))),
    ),
    "margins without their sign": (
        check_bounds_of_parts,
        partial(wrong_heritage, lambda known: replace(known, margins=known.margins.abs())),
    ),
    "margins turned": (check_witnesses, turned_margins),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name: str) -> None:
    assert_noticed(*MISTAKES[name])


@pytest.mark.parametrize("mistake", [a_dropped_cell, a_dropped_box, too_few_slots])
def test_a_search_that_lost_something_is_never_done(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    outcome = pursue(start(firm_case(), 2))
    assert not outcome.search.open()
    assert outcome.verdict == "open"
    assert outcome.shares[-1] < outcome.search.total


@pytest.mark.slow
def test_equal_cells_may_all_take_the_strongest_group(monkeypatch: Patch) -> None:
    """The same group twice is more than can happen: looser, but not wrong."""
    ranks_by_number(lambda same: torch.zeros_like(same[:, :, 0], dtype=torch.int64), monkeypatch)
    check_random_bounds()


def broken(case: Case, value: float) -> list[Case]:
    """The case with one weight replaced, once for every layer."""
    cases = []
    for position, operation in enumerate(case.graph.operations):
        for key, tensor in operation.tensors.items():
            changed = tensor.clone()
            changed.view(-1)[-1] = value
            new = replace(operation, tensors={**operation.tensors, key: changed})
            graph = Graph((*case.graph.operations[:position], new, *case.graph.operations[position + 1 :]))
            cases.append(replace(case, graph=graph, network=as_network(graph)))
    return cases


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_weights_that_are_no_numbers_prove_nothing(seed: int, value: float) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(seed)
    tree = make(case, 1).tree
    for wrong in broken(case, value):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proving, "make_tree", lambda *_: tree)  # its halves follow from the weights
            instance = make(wrong, 1)
        for nodes in (cell_nodes(tree, 1, rng, 4), box_nodes(tree, case.domain, 1, rng, 4)):
            found = bound_module.bound(instance, nodes, proving.ROWS)
            if value == 3e38:
                # A number after all, so a proof must hold: large in the label's favour it can.
                for row in found.proved.nonzero()[:, 0].tolist():
                    truth = true_margins(wrong, proving.points_in(wrong, tree, nodes, row, rng))
                    assert bool((truth > 0).all())
            else:
                assert not bool(found.proved.any())
