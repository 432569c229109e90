"""The search decides as the exact oracles do, counts what it proved, and can be interrupted anywhere."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from l0tre.certify.cells.cell_search import CellSearch
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax.bounds import bound
from l0tre.certify.relax.instance import make_instance
from l0tre.memory import Batcher
from l0tre.objective import AllRivals
from tests.certify.oracle import dense_minimum, exact_distance, exact_minimum
from tests.certify.proving import (
    ROWS,
    TABLES,
    Outcome,
    box_nodes,
    levels,
    make,
    points_in,
    pursue,
    start,
    true_margins,
    variant,
    waiting,
)
from tests.certify.random_networks import KINDS, SMOOTH, Case, planted, random_case

SEEDS = range(5 * len(KINDS))
VARIANTS = range(10)  # 650 cases with the seeds
TIE = 1e-5  # margins nearer to zero are decided by rounding


def least_margin(case: Case, t: int) -> float:
    """The exact smallest margin over all sets of groups."""
    sets = itertools.combinations(range(case.domain.groups), t)
    return min(exact_minimum(case.graph, case.image, case.label, case.domain, groups)[0] for groups in sets)


def check_witness(case: Case, t: int, witness: Tensor | None) -> None:
    assert witness is not None
    assert float(true_margins(case, witness[None]).min()) < TIE
    domain, changed = case.domain, witness != case.image.flatten()
    assert bool(((witness >= domain.low) & (witness <= domain.high)).all())
    groups = 0
    for own, size in zip(domain.members, domain.sizes, strict=True):
        groups += int(changed[own[:size]].any())
        changed[own[:size]] = False
    assert groups <= t
    assert not changed.any()


def check_shares(outcome: Outcome) -> None:
    total = outcome.search.total
    assert all(isinstance(share, Fraction) for share in outcome.shares[1:])
    assert list(outcome.shares) == sorted(outcome.shares)
    assert outcome.shares[-1] <= total
    if not outcome.search.open() and outcome.verdict != "tie":
        assert outcome.shares[-1] == total or outcome.verdict == "unsafe"


@pytest.mark.family
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if list(KINDS)[seed % len(KINDS)] not in SMOOTH])
def test_verdicts_are_those_of_the_oracle(seed: int) -> None:
    """A witness speaks for itself; what was found safe must be so for the oracle."""
    undecided = 0
    for number in VARIANTS:
        case, safe = variant(seed, number), 0
        for t in (t for t in levels(case) if t < 3 or number < 4):
            outcome = pursue(start(case, t))
            check_shares(outcome)
            if outcome.verdict == "unsafe":
                check_witness(case, t, outcome.witness)
            undecided += outcome.verdict in ("open", "tie")
            if outcome.verdict != "safe":
                break
            safe = t
        distance = exact_distance(case.graph, case.image, case.label, case.domain, safe)
        assert distance > safe or abs(least_margin(case, distance)) < TIE
    assert undecided <= 6  # boxes in many dimensions take long


@pytest.mark.family
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if list(KINDS)[seed % len(KINDS)] in SMOOTH])
def test_smooth_networks_are_safe_only_where_nothing_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in VARIANTS:
        case = variant(seed, number)
        for t in levels(case, 1):
            outcome = pursue(start(case, t))
            check_shares(outcome)
            if outcome.verdict == "unsafe":
                check_witness(case, t, outcome.witness)
            if outcome.verdict != "safe":
                break
            groups = list(itertools.combinations(range(case.domain.groups), t))
            for chosen in rng.permutation(len(groups))[:1]:
                value, _ = dense_minimum(case.graph, case.image, case.label, case.domain, groups[chosen], points=256)
                assert value > 0


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS[: 4 * len(KINDS)])
def test_margins_in_proved_nodes_are_positive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in (0, 1):
        case = variant(seed, number)
        t = max(levels(case))
        outcome = pursue(start(case, t), 20)
        instance = outcome.search.instance
        for nodes, bounds in outcome.proved:
            for row in rng.permutation(len(nodes))[:4].tolist():
                truth = float(true_margins(case, points_in(case, instance.tree, nodes, row, rng, 2)).min())
                assert truth > 0
                assert float(bounds[row]) <= truth + float(instance.slack.max())


@pytest.mark.family
@pytest.mark.parametrize("seed", SEEDS[: 3 * len(KINDS)])
def test_an_interrupted_search_comes_to_the_same_verdict(seed: int) -> None:
    case = variant(seed, 1)
    for t in levels(case):
        whole = pursue(start(case, t), 25)
        part = Outcome("open", (), None, (Fraction(0),), start(case, t))
        for _ in range(25):
            if part.verdict != "open" or not part.search.open():
                break
            again = waiting(case, t)
            again.go_on(0, part.search.left(0))
            part = pursue(again, 1, part.shares[-1])
            check_shares(part)
        assert part.verdict == whole.verdict
        if whole.verdict != "unsafe":
            assert part.shares[-1] == whole.shares[-1]


@pytest.mark.parametrize("shape", [(1, 4, 4), (2, 3, 3), (1, 1, 7)])
def test_planted_changes_are_never_proved_away(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    pixels = shape[1] * shape[2]
    for size in (2, 2, 3):
        chosen = rng.permutation(pixels)[:size].tolist()
        case = planted(chosen, rng.choice([0.0, 0.2, 0.9, 1.0], size).tolist(), shape)
        for t in range(1, size):
            assert pursue(start(case, t), 300).verdict == "safe"
        outcome = pursue(start(case, size), 100)
        assert outcome.verdict != "safe"
        assert outcome.shares[-1] < outcome.search.total
        if outcome.verdict == "unsafe":
            check_witness(case, size, outcome.witness)
    assert outcome.search.total == len(list(itertools.combinations(range(pixels), 3)))


@pytest.mark.slow
def test_boxes_against_the_exact_minimum() -> None:
    """Of random boxes and of those that searches proved."""
    compared = proved = 0
    for seed in range(0, 5 * len(KINDS), 4):
        case, rng = variant(seed, 3), np.random.default_rng(seed)
        t = min(2, case.domain.groups)
        if case.kind in SMOOTH or case.domain.members.shape[1] > 4:
            continue
        outcome = pursue(start(case, t), 20)
        instance = outcome.search.instance
        boxes = [nodes.pick(slice(0, 2)) for nodes, _ in outcome.proved if isinstance(nodes, BoxNodes) and len(nodes)][
            :2
        ]
        for nodes in [*boxes, box_nodes(instance.tree, case.domain, t, rng, 3)]:
            bounds = bound(instance, nodes, ROWS)
            for row in range(len(nodes)):
                groups = instance.tree.order[nodes.cells[row] - instance.tree.slots].tolist()
                assert isinstance(nodes, BoxNodes)
                truth, _ = exact_minimum(
                    case.graph, case.image, case.label, case.domain, groups, nodes.low[row], nodes.high[row]
                )
                assert float(bounds.margins[row].min()) <= truth + 1e-6
                assert truth > 0 or not bounds.proved[row]
                compared, proved = compared + 1, proved + int(bounds.proved[row])
    assert compared >= 30
    assert 5 <= proved < compared


def test_several_images_are_decided_as_one_at_a_time() -> None:
    case = random_case(0)
    low, high = case.domain.low, case.domain.high
    random = torch.Generator().manual_seed(0)
    images = torch.cat([case.image.flatten()[None], low + torch.rand(4, len(low), generator=random) * (high - low)])
    labels = case.network.scores(images.reshape(-1, *case.image.shape)).argmax(1)
    one = make(case, 2)
    instance = make_instance(one.plan, one.tree, case.domain, images, AllRivals(labels), 2, TABLES)
    search = CellSearch(instance, case.domain, Batcher(case.network, 2**26), 2, 2**24)
    for row in range(5):
        search.begin(row)
    verdicts, shares = dict.fromkeys(range(5), ""), dict.fromkeys(range(5), Fraction(0))
    while search.open():
        step = search.step()
        for row, share in step.shares.items():
            shares[row] += share
        verdicts.update(dict.fromkeys(step.candidates, "unsafe"))
        search.drop(list(step.candidates))
        assert not any(part.image.eq(row).any() for row in step.candidates for part in search.front.cells)
    for row in range(5):
        alone = Case(**{**vars(case), "image": images[row].reshape(case.image.shape), "label": int(labels[row])})
        outcome = pursue(start(alone, 2))
        assert (verdicts[row] or "safe") == outcome.verdict
        assert (shares[row] == search.total) == (outcome.verdict == "safe")


@pytest.mark.family
@pytest.mark.parametrize("how", [{"least": 64}, {"most_known": 0}])
@pytest.mark.parametrize("seed", SEEDS[: len(KINDS)])
def test_filled_batches_and_forgotten_heritage_change_no_verdict(seed: int, how: dict[str, int]) -> None:
    """Splitting before bounding, to fill a device, and nodes that inherit nothing lose no set and count none twice."""
    case = variant(seed, 2)
    for t in levels(case):
        plain = pursue(start(case, t), 25)
        other = start(case, t)
        for name, value in how.items():
            setattr(other, name, value)
        outcome = pursue(other, 25)
        check_shares(outcome)
        if "open" not in (plain.verdict, outcome.verdict):
            assert outcome.verdict == plain.verdict
