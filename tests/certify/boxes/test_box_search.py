"""The search by clusters decides as exact oracles and as cells do, and can be stopped anywhere without a loss."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import bounders as bounders_module
from l0tre.certify.boxes import box_search as search_module
from l0tre.certify.boxes import disjoint_pairs as disjoint_module
from l0tre.certify.boxes import first_pass as first_pass_module
from l0tre.certify.boxes import overlapping_pairs as overlapping_module
from l0tre.certify.boxes.bounders import WindowBounder
from l0tre.certify.boxes.box_bounds import lower_bounds
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import BoxNodes, CellNodes, split_boxes
from l0tre.errors import ModelError
from l0tre.findings import Halted
from l0tre.model.graph import Graph
from l0tre.objective import AllRivals
from l0tre.tuning import Tuning
from tests.certify.boxes import cases
from tests.certify.boxes.cases import (
    Verdict,
    balanced,
    decide,
    make_case,
    prover_of,
    several,
    share_left,
    windows_of,
)
from tests.certify.boxes.planted import PLANTED, PLANTED_DEPTHS, planted_windows, tied
from tests.certify.boxes.recipes import RELU, TANH, Recipe, conv, leaky, pool
from tests.certify.oracle import dense_minimum, exact_distance, exact_minimum
from tests.certify.proving import as_network, true_margins
from tests.certify.random_networks import Case

RECIPES = {
    "plain": Recipe((1, 4, 4), (conv(3, 2), RELU)),
    "stride": Recipe((1, 5, 3), (conv(2, 3, 2, 1), leaky(0.2))),
    "pool": Recipe((1, 6, 3), (conv(2, 2), RELU, pool(2, 1))),
    "colours": Recipe((3, 3, 4), (conv(2, 2), RELU)),
    "hidden": Recipe((1, 4, 4), (conv(2, 2), RELU), (4,)),
    "two hidden": Recipe((1, 4, 4), (conv(2, 2), leaky(0.3)), (4, 3)),
    "dense": Recipe((1, 3, 4), (), (5,)),
}
LEVELS = [("plain", 1), ("plain", 2), ("stride", 2), ("stride", 3), ("pool", 2), ("colours", 2), ("colours", 3)]
LEVELS += [("two hidden", 1), ("two hidden", 2), ("dense", 2)]
GAPS = (-0.02, 0.001, 0.02, 0.8)  # the smallest margin that corners and some points show


SHORT = Tuning(box_step_seconds=0.01)
ONE_BATCH = Tuning(box_step_seconds=0.0)  # a step


def cluster_search(*arguments: Any, tuning: Tuning = SHORT, **named: Any) -> BoxSearch:
    return cases.cluster_search(*arguments, tuning=tuning, **named)


def check_witness(case: Case, t: int, witness: Tensor | None) -> None:
    assert witness is not None
    assert float(true_margins(case, witness[None]).min()) < 1e-6
    assert float(case.network.scores(witness.view(1, *case.image.shape))[0].argmax()) != case.label
    low, high = case.domain.low, case.domain.high
    assert bool(((witness >= low) & (witness <= high)).all())
    changed = (witness != case.image.flatten()).view(case.image.shape).any(0).sum()
    assert int(changed) <= t
    free = torch.zeros(len(witness), dtype=torch.bool)
    free[case.domain.members.flatten()] = True
    assert bool(torch.equal(witness[~free], case.image.flatten()[~free]))


@pytest.mark.family
@pytest.mark.parametrize(("name", "t"), LEVELS)
def test_verdicts_are_those_of_the_oracle_and_of_cells(name: str, t: int) -> None:
    answers = set()
    for seed, gap in enumerate(GAPS[::3] if t == 3 else GAPS[::2]):
        case = balanced(RECIPES[name], seed, t, 0.0, by=gap)
        found = decide(cluster_search(case, t))
        answers.add(found.answer)
        if found.answer == "unsafe":  # which speaks for itself
            check_witness(case, t, found.witness)
        else:
            assert found.answer == "safe"
            assert found.proved == math.comb(case.domain.groups, t)
            assert exact_distance(case.graph, case.image, case.label, case.domain, t) > t
        if gap in (GAPS[0], GAPS[2]):
            cells = prover_of(case).search_cells(
                t, case.image.flatten()[None], AllRivals(torch.tensor([case.label])), [None]
            )
            assert decide(cells, 20).answer in (found.answer, "open")
    assert answers == {"safe", "unsafe"}


@pytest.mark.parametrize(("t", "hidden"), [(2, ()), (1, (4,))])
def test_smooth_networks_are_safe_only_where_nothing_is_found(t: int, hidden: tuple[int, ...]) -> None:
    recipe = Recipe((1, 4, 4), (conv(2, 2), TANH), hidden, TANH)
    safe = 0
    for seed, gap in enumerate(GAPS):
        case = balanced(recipe, seed, t, 0.0, by=gap)
        found = decide(cluster_search(case, t))
        if found.answer == "safe":
            safe += 1
            sets = list(itertools.combinations(range(case.domain.groups), t))
            for groups in sets[:: 1 + len(sets) // 5]:
                assert dense_minimum(case.graph, case.image, case.label, case.domain, groups, points=64)[0] > 0
        else:
            check_witness(case, t, found.witness)
    assert safe >= 2


@pytest.mark.parametrize(("name", "t"), [("plain", 1), ("two hidden", 1)])
def test_the_last_bit_of_safety_is_proved_and_no_more(name: str, t: int) -> None:
    """The same network with its bias moved so that the exact smallest margin is just above and just below zero."""
    case = balanced(RECIPES[name], 0, t, 0.0, by=0.02)
    sets = itertools.combinations(range(case.domain.groups), t)
    least = min(exact_minimum(case.graph, case.image, case.label, case.domain, groups)[0] for groups in sets)
    for by, answer in ((1e-5, "safe"), (-1e-5, "unsafe")):
        last = case.graph.operations[-1]
        bias = last.tensors["bias"].clone()
        bias[case.label] += by - least
        graph = Graph((*case.graph.operations[:-1], replace(last, tensors={**last.tensors, "bias": bias})))
        moved = replace(case, graph=graph, network=as_network(graph))
        assert decide(cluster_search(moved, t), 2000).answer == answer


def run_all(search: BoxSearch, images: int) -> list[Verdict]:
    """Take steps until all images are decided, dropping those that are."""
    done: dict[int, Verdict] = {}
    proved = [Fraction(0)] * images
    while search.open():
        step = search.step()
        for row in range(images):
            proved[row] += step.shares.get(row, Fraction(0))
            answer = "unsafe" if row in step.candidates else "tie" if row in step.ties else ""
            if answer:
                done[row] = Verdict(answer, proved[row], step.candidates.get(row))
        over = [row for row in done if search.left(row)]
        if over:
            search.drop(over)
        assert all(not search.left(row) for row in done)
    return [
        done.get(row, Verdict("safe" if proved[row] == search.total else "open", proved[row])) for row in range(images)
    ]


@pytest.mark.parametrize(("name", "t"), [("stride", 2), ("plain", 3), ("dense", 2), ("hidden", 1)])
def test_several_images_are_decided_as_one_at_a_time(name: str, t: int) -> None:
    """Of different labels and margins, dropped as they are decided; looked at first together or a few at a time."""
    answers = set()
    for seed in (1, 2):
        tuning = replace(SHORT, first_pass_images=seed, first_pass_seconds=0.0 if seed == 1 else 10.0)
        case = balanced(RECIPES[name], seed, t, 0.0, by=0.01)
        images, _ = several(case, 4)
        labels = case.network.scores(images).argmax(1).tolist()
        together = run_all(cluster_search(case, t, images, labels, tuning=tuning), 4)
        for row, found in enumerate(together):
            alone = replace(case, image=images[row], label=labels[row])
            assert found.answer == decide(cluster_search(alone, t)).answer
            if found.answer == "unsafe":
                check_witness(alone, t, found.witness)
            answers.add(found.answer)
    assert answers == {"safe", "unsafe"}


@pytest.mark.parametrize(("name", "t"), [("plain", 1), ("pool", 2), ("plain", 3), ("two hidden", 1), ("two hidden", 2)])
def test_a_search_goes_on_from_what_is_left(name: str, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step, before the first_pass too, in another search and as another row."""
    case = balanced(RECIPES[name], 0, t, 0.0, by=0.5 if name == "pool" else 0.01)
    whole = decide(cluster_search(case, t))
    monkeypatch.setattr(disjoint_module, "HALVINGS", (1,))
    monkeypatch.setattr(overlapping_module, "HALVINGS", 0)
    monkeypatch.setattr(first_pass_module, "SINGLE_HALVINGS", 0)
    images, labels = torch.stack([case.image, case.image]), [case.label, case.label]
    fronts, proved = cluster_search(case, t).left(0), Fraction(0)
    assert len(fronts) == 1
    assert isinstance(fronts[0], CellNodes)
    for number in range(400):
        row = number % 2
        search = cluster_search(case, t, images, labels, tuning=ONE_BATCH)
        search.fresh.clear()
        search.batch = {1: 2, 2: 3, 3: 40}[t]
        search.go_on(row, fronts)
        step = search.step()
        assert set(step.nodes) <= {row}
        assert not step.ties
        proved += step.shares.get(row, Fraction(0))
        assert proved + share_left(search, row) == search.total
        fronts = search.left(row)
        assert all(not part.image.any() for part in fronts)
        if not search.open():
            break
    assert whole.answer == "safe"
    assert proved == whole.proved == search.total
    assert number >= 2


@pytest.mark.parametrize(("name", "t"), [("plain", 1), ("stride", 2), ("stride", 3), ("two hidden", 2)])
def test_a_halt_at_any_call_loses_nothing(name: str, t: int) -> None:
    case = balanced(RECIPES[name], 2, t, 0.0, by=0.02)
    calls, limit = itertools.count(1), 0

    def pulse() -> None:
        if next(calls) == limit:
            raise Halted

    halts = 0
    for limit in (1, 3, 9):
        calls = itertools.count(1)
        search = cluster_search(case, t, memory={1: 1, 2: 2**15, 3: 2**20}[t], pulse=pulse)
        search.batch = 40
        proved = Fraction(0)
        while search.open():
            before = next(calls)
            step = search.step()
            proved += step.shares.get(0, Fraction(0))
            assert proved + share_left(search) == search.total
            assert not step.candidates
            halts += before <= limit < next(calls)
        assert proved == search.total
    assert halts >= 2


@pytest.mark.parametrize(("name", "t"), [("plain", 2), ("two hidden", 2)])
def test_a_device_without_memory_loses_nothing(name: str, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first_pass and between batches; with too little for a single box it says so."""
    case = balanced(RECIPES[name], 2, t, 0.0, by=0.02)
    calls = itertools.count()

    def scarce(work: Callable[..., Any], *arguments: Any) -> Any:
        if next(calls) % 3 == 0:
            raise torch.OutOfMemoryError
        return work(*arguments)

    for part in ("first_pass", "lower_bounds"):
        monkeypatch.setattr(bounders_module, part, partial(scarce, getattr(bounders_module, part)))
    search, proved = cluster_search(case, t), Fraction(0)
    most = search.batch
    while search.open():
        proved += search.step().shares.get(0, Fraction(0))
        assert proved + share_left(search) == search.total
    assert search.batch < most
    assert proved == search.total
    search = cluster_search(case, t)
    search.batch = 1
    monkeypatch.setattr(bounders_module, "first_pass", partial(scarce, first_pass_module.first_pass))
    calls = itertools.count()
    with pytest.raises(ModelError, match="too little memory"):
        search.step()


@pytest.mark.parametrize(("first", "seconds", "wanted"), [(1, 0.0, [1] * 5), (2, 0.0, [2, 2, 1]), (2, 1e9, [2, 3])])
def test_first_passes_take_a_few_images_at_a_time(first: int, seconds: float, wanted: list[int]) -> None:
    """Each once, as many as the time allows once it is known; a halt between loses none."""
    case = balanced(RECIPES["two hidden"], 0, 2, 0.0, by=0.01)
    images, labels = several(case, 5)
    tuning = replace(ONE_BATCH, first_pass_images=first, first_pass_seconds=seconds)
    search, seen, sizes = cluster_search(case, 2, images, labels, tuning=tuning), list[int](), list[int]()
    while search.fresh:
        step = search.step()
        seen.extend(step.nodes)
        sizes.append(len(step.nodes))
        for image in range(5):
            known = image in seen
            assert (search.left(image) != () and isinstance(search.left(image)[0], CellNodes)) == (not known)
            if image in step.nodes:
                assert step.shares[image] + share_left(search, image) == search.total
    assert sorted(seen) == list(range(5))
    assert sizes == wanted


def test_an_image_that_is_dropped_before_its_first_pass_has_none() -> None:
    case = balanced(RECIPES["plain"], 0, 2, 0.0, by=0.01)
    images, labels = several(case, 3)
    search = cluster_search(case, 2, images, labels)
    search.drop([0, 2])
    assert search.left(0) == search.left(2) == ()
    step = search.step()
    assert set(step.nodes) == {1}
    search.drop([1])
    assert not search.open()


@pytest.mark.family
@pytest.mark.parametrize(("name", "deep"), PLANTED_DEPTHS)
def test_a_planted_change_is_found_and_nothing_less(name: str, deep: bool) -> None:
    spots, sight, stride = PLANTED[name]
    t = len({place for spot in spots for place, _ in spot})
    case = planted_windows(spots, sight, stride=stride, deep=deep)
    for level in (1, 2) if t == 2 else (3,):
        found = decide(cluster_search(case, level), 1000)
        assert found.answer == ("unsafe" if level == t else "safe")
        if found.answer == "unsafe":
            check_witness(case, level, found.witness)


@pytest.mark.parametrize("deep", [False, True])
def test_ties_end_and_are_not_proved(deep: bool) -> None:
    """Ties that rounding hides, everywhere in the box."""
    for seed in range(2):
        case = tied(seed, deep=deep)
        for t in (1, 2) if deep else (1, 2, 3):
            found = decide(cluster_search(case, t), 200)
            assert found.answer in ("tie", "unsafe")  # float32 can favour the other class
            assert found.proved == 0


@pytest.mark.parametrize("hidden", [(), (3,)])
def test_a_tie_in_one_point_ends(hidden: tuple[int, ...]) -> None:
    """One pixel comes to a tie at the end of its range, and no further."""
    recipe = Recipe((1, 3, 3), (), hidden)
    case = make_case(recipe, 0, unit=True, classes=2)
    nodes = list(case.graph.operations)
    weight = torch.zeros(2, nodes[-1].tensors["weight"].shape[1])
    weight[1, 0] = 1.0
    nodes[-1] = replace(nodes[-1], tensors={"weight": weight, "bias": torch.tensor([1.0, 0.0])})
    if hidden:
        first = torch.zeros(3, 9)
        first[0, 0] = 1.0
        nodes[2] = replace(nodes[2], tensors={"weight": first, "bias": torch.zeros(3)})
    graph = Graph(tuple(nodes))
    case = replace(case, graph=graph, network=as_network(graph), image=torch.zeros(1, 3, 3), label=0)
    search = cluster_search(case, 1)
    found = decide(search, 400)
    assert found.answer == "tie"
    assert found.proved < search.total


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["plain", "two hidden"])
def test_weights_that_are_no_numbers_prove_nothing(name: str, value: float) -> None:
    case = make_case(RECIPES[name], 0)
    for position, operation in enumerate(case.graph.operations):
        for key, tensor in operation.tensors.items():
            changed = tensor.clone()
            changed.view(-1)[-1] = value
            wrong = replace(operation, tensors={**operation.tensors, key: changed})
            graph = Graph((*case.graph.operations[:position], wrong, *case.graph.operations[position + 1 :]))
            for t in (1, 2) if value != value else (2,):
                search = cluster_search(replace(case, graph=graph, network=as_network(graph)), t)
                search.batch = 30
                proved = sum((search.step().shares.get(0, Fraction(0)) for _ in range(2)), Fraction(0))
                assert proved == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_bounds_that_are_no_numbers_prove_nothing(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(windowed: Windowed, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
        bounds, forms = (part.clone() for part in lower_bounds(windowed, nodes))
        bounds[:, 0] = value
        return bounds, forms

    monkeypatch.setattr(bounders_module, "lower_bounds", broken)
    search = cluster_search(balanced(RECIPES["plain"], 0, 1, 0.0, by=5.0), 1)
    search.batch = 4
    assert sum((search.step().shares.get(0, Fraction(0)) for _ in range(2)), Fraction(0)) == 0


def test_a_search_that_lost_a_box_is_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are exact: what is not bounded is not proved."""
    case = balanced(RECIPES["plain"], 0, 2, 0.0, by=0.003)
    assert decide(cluster_search(case, 2)).answer == "safe"

    def lower_halves(nodes: BoxNodes, weight: Tensor) -> BoxNodes:
        return split_boxes(nodes, weight).pick(slice(0, len(nodes)))

    monkeypatch.setattr(search_module, "split_boxes", lower_halves)
    found = decide(cluster_search(case, 2))
    assert found.answer == "open"
    assert found.proved < cluster_search(case, 2).total


@pytest.mark.parametrize(("name", "t"), [("plain", 1), ("plain", 2), ("two hidden", 2)])
def test_each_image_pays_for_its_own_rounding(name: str, t: int) -> None:
    """The same image twice, once with errors that no margin can exceed."""
    case = balanced(RECIPES[name], 0, t, 0.0, by=1.0)
    search = cluster_search(case, t, torch.stack([case.image, case.image]), [case.label, case.label])
    slack = search.instance.slack.clone()
    slack[1] = 1e6
    search.bounder = WindowBounder(replace(windows_of(search), instance=replace(search.instance, slack=slack)))
    search.batch = 64
    steps = [search.step() for _ in range(4)]
    proved = [sum((step.shares.get(row, Fraction(0)) for step in steps), Fraction(0)) for row in (0, 1)]
    assert proved[0] > 0
    assert proved[1] == 0
