"""The count of a proof: every node is open exactly once whatever fails, and a wrong count proves nothing."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify.boxes import bounders as bounders_module
from l0tre.certify.boxes import box_search as boxes_module
from l0tre.certify.boxes import disjoint_pairs as disjoint_module
from l0tre.certify.boxes import first_pass as first_pass_module
from l0tre.certify.boxes import overlapping_pairs as overlapping_module
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.cells import cell_search as cells_module
from l0tre.certify.cells.cell_search import CellSearch, Step
from l0tre.certify.proof import Proof
from l0tre.certify.prover import Prover
from l0tre.certify.regions.nodes import BoxNodes, root, shares, split_boxes, split_cells
from l0tre.certify.relax.bounds import bound
from l0tre.errors import InternalError, L0treError, ModelError
from l0tre.findings import Halted
from l0tre.objective import AllRivals
from l0tre.store import read_snapshot
from l0tre.tuning import PerDevice, Tuning
from tests.certify.boxes.cases import balanced, cluster_search, prover_of
from tests.certify.boxes.recipes import RELU, Recipe, conv
from tests.certify.proving import start
from tests.certify.random_networks import Case, random_case

FLAT = Recipe((1, 3, 4), (conv(2, 2), RELU))
DEEP = Recipe((1, 3, 4), (conv(2, 2), RELU), (4,))
SEARCHES: dict[str, type[CellSearch] | type[BoxSearch]] = {"cells": CellSearch, "clusters": BoxSearch}
MODULES = {"cells": cells_module, "clusters": boxes_module}


def open_share(search: CellSearch | BoxSearch, row: int = 0) -> Fraction:
    """How many sets the open nodes of an image stand for."""
    return sum((shares(search.instance.tree, part)[0] for part in search.left(row)), Fraction(0))


# What calls come to: memory that does not do, with a halt behind it at once or after a call that works.
NO_MEMORY = torch.OutOfMemoryError
FAULTS = (NO_MEMORY, Halted, NO_MEMORY, None, NO_MEMORY, Halted, None, None, NO_MEMORY, NO_MEMORY, Halted, None, Halted)


def fail(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[type[Exception]]:
    """Make a function of a module fail, before its work or after it; gives the failures as they happen."""
    work, schedule, seen = getattr(module, name), iter(FAULTS), list[type[Exception]]()

    def failing(*arguments: Any, **named: Any) -> Any:
        fault = next(schedule, None)
        if fault is not None and len(seen) % 2:
            work(*arguments, **named)
        if fault is not None:
            seen.append(fault)
            raise fault
        return work(*arguments, **named)

    monkeypatch.setattr(module, name, failing)
    return seen


def leave_much_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look of clusters halves no range."""
    monkeypatch.setattr(first_pass_module, "SINGLE_HALVINGS", 0)
    monkeypatch.setattr(overlapping_module, "HALVINGS", 0)
    monkeypatch.setattr(disjoint_module, "HALVINGS", (0,))


def check_conserved(search: CellSearch | BoxSearch, steps: int = 400) -> Fraction:
    """Take steps; nothing may be lost or open twice after any of them."""
    proved = Fraction(0)
    for _ in range(steps):
        if not search.open():
            break
        step = search.step()
        assert not step.ties
        proved += step.shares.get(0, Fraction(0))
        assert proved + open_share(search) == search.total
        assert search.is_open(0) == bool(search.left(0))
    return proved


CELL_FAULTS = ("bound", "split_cells", "split_boxes", "minimizing_inputs", "look_up_minima", "shares")


@pytest.mark.parametrize("name", CELL_FAULTS)
def test_cells_are_open_once_whatever_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = balanced(DEEP, 2, 2, 0.0, by=0.05)
    search = start(case, 2)
    search.batch = 64
    seen = fail(monkeypatch, cells_module, name)
    assert check_conserved(search) == search.total
    assert {NO_MEMORY, Halted} == set(seen)


BOX_FAULTS = (
    (bounders_module, "first_pass"),
    (bounders_module, "lower_bounds"),
    (boxes_module, "proved"),
    (boxes_module, "split_boxes"),
    (boxes_module, "shares"),
)


@pytest.mark.parametrize(("module", "name"), BOX_FAULTS)
def test_boxes_of_clusters_are_open_once_whatever_fails(
    module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_much_open(monkeypatch)
    case = balanced(FLAT, 2, 2, 0.0, by=0.02)
    search = cluster_search(case, 2, tuning=Tuning(box_step_seconds=0.01))
    search.batch = 64
    seen = fail(monkeypatch, module, name)
    assert check_conserved(search) == search.total
    assert {NO_MEMORY, Halted} == set(seen)


def test_cells_with_too_little_memory_for_a_node_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cells_module, "bound", never)
    search = start(random_case(0), 2)
    with pytest.raises(ModelError, match="too little memory for a single node"):
        search.step()
    assert open_share(search) == search.total


def test_cells_that_were_only_split_begin_with_the_first_pass() -> None:
    """Cells and boxes beside them, of which nothing is proved, become all sets once, not all sets and the boxes."""
    case = balanced(FLAT, 0, 2, 0.0, by=0.02)
    by_cells, by_boxes = start(case, 2), cluster_search(case, 2)
    nodes = root(0, 2, torch.device("cpu"))
    while not by_cells.left(0)[1:]:
        by_cells.drop([0])
        nodes = split_cells(by_cells.instance.tree, nodes.pick((by_cells.instance.tree.sizes[nodes.cells] > 1).any(1)))[
            0
        ]
        by_cells.go_on(0, [nodes])
    by_boxes.drop([0])
    by_boxes.go_on(0, by_cells.left(0))
    assert open_share(by_boxes) == by_boxes.total
    assert check_conserved(by_boxes) == by_boxes.total


class Bump(nn.Module):
    """Score 0 is 0.5; score 1 rises to a height at ``x = 0.37`` and is 0 elsewhere, but for 0.03 on each side."""

    def __init__(self, height: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 3), nn.Linear(3, 2)
        middle, width = 0.37, 0.03
        self.first.weight.data = torch.full((3, 1), 1 / width)
        self.first.bias.data = -torch.tensor([middle - width, middle, middle + width]) / width
        self.second.weight.data = height * torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 1.0]])
        self.second.bias.data = torch.tensor([0.5, 0.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.second(torch.relu(self.first(x)))
        return scores


OPTIONS: dict[str, Any] = {"max_t": 1, "guarantee": "certified", "attack_queries": 0}


def test_memory_that_does_not_do_and_a_halt_in_one_step_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is halved to one node, then the step is halted; the run that goes on must still find the flip."""
    network, image = l0tre.load(Bump(1.0).eval(), input_shape=(1,), device="cpu"), torch.tensor([[0.9]])
    calls = itertools.count(1)
    halted = False

    def faulty(*arguments: Any, **named: Any) -> Any:
        nonlocal halted
        call = next(calls)
        if 2 <= call <= 7:
            raise torch.OutOfMemoryError
        if call == 8:
            halted = True
            raise Halted
        return bound(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(cells_module, "bound", faulty)
        l0tre.evaluate(
            network, image, [0], out=tmp_path / "run", stop=lambda: halted, tuning=tuning_of("cells"), **OPTIONS
        )
    assert halted
    assert not read_snapshot(tmp_path / "run").finished
    result = l0tre.resume(tmp_path / "run", network, tuning=tuning_of("cells")).images[0]
    assert (result.lower, result.upper) == (0, 1)


def twice(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """All sets of an image are open twice."""
    begin = SEARCHES[kind].begin

    def doubled(self: Any, image: int) -> None:
        begin(self, image)
        begin(self, image)

    monkeypatch.setattr(SEARCHES[kind], "begin", doubled)


ONE_BATCH = Tuning(box_step_seconds=0.0)  # a step
NO_BOXES = replace(ONE_BATCH, box_values=0)


def tuning_of(kind: str) -> Tuning:
    """Cells alone, or whatever is usual."""
    return NO_BOXES if kind == "cells" else Tuning()


Question = tuple[l0tre.Network, torch.Tensor, int, l0tre.Domain | None]


def firm(kind: str) -> Question:
    """A decision that no single group changes, proved at once by one kind of search."""
    if kind == "cells":
        module = nn.Linear(3, 2)
        module.weight.data.fill_(0.0)
        module.bias.data = torch.tensor([1.0, 0.0])
        return l0tre.load(module, input_shape=(3,), device="cpu"), torch.rand(3), 0, None
    case = balanced(FLAT, 0, 1, 0.0, by=50.0)
    return case.network, case.image, case.label, case.domain


def split(kind: str) -> Question:
    """A decision that no single group changes, which is proved only in parts of ranges."""
    if kind == "cells":
        return l0tre.load(Bump(0.4).eval(), input_shape=(1,), device="cpu"), torch.tensor([0.9]), 0, None
    case = balanced(DEEP, 5, 1, 0.0, by=0.01)
    return case.network, case.image, case.label, case.domain


@pytest.mark.parametrize("kind", SEARCHES)
@pytest.mark.parametrize(("batch", "what"), [(1, "some are open"), (1000, "more than there are")])
def test_sets_that_are_open_twice_are_an_error(
    kind: str, batch: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the count is complete while the others are open, or runs over, it ends with one line and no proof."""
    network, image, label, domain = firm(kind)
    count = batch if domain is None else batch * domain.groups
    monkeypatch.setattr(cells_module, "batch_sizes", lambda *_: (count, 2**20))
    tuning = replace(tuning_of(kind), box_step_seconds=0.0, boxes=PerDevice(count, count))

    def evaluate(folder: Path) -> l0tre.Snapshot:
        return l0tre.evaluate(network, image[None], [label], domain=domain, out=folder, tuning=tuning, **OPTIONS)

    assert evaluate(tmp_path / "right").images[0].lower == 1
    twice(monkeypatch, kind)
    with pytest.raises(InternalError, match=f"{what}.*please report") as caught:
        evaluate(tmp_path / "wrong")
    assert isinstance(caught.value, L0treError)
    assert "\n" not in str(caught.value)
    assert read_snapshot(tmp_path / "wrong").images[0].lower == 0


@pytest.mark.parametrize("kind", SEARCHES)
def test_sets_that_are_lost_are_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every box only the lower half is kept: nothing is open in the end, and the count is not complete."""

    def lower_halves(nodes: BoxNodes, weight: torch.Tensor) -> BoxNodes:
        return split_boxes(nodes, weight).pick(slice(0, len(nodes)))

    network, image, label, domain = split(kind)
    options: dict[str, Any] = {**OPTIONS, "domain": domain, "tuning": tuning_of(kind)}
    assert l0tre.evaluate(network, image[None], [label], **options).images[0].lower == 1
    monkeypatch.setattr(MODULES[kind], "split_boxes", lower_halves)
    with pytest.raises(InternalError, match=r"none is open.*please report"):
        l0tre.evaluate(network, image[None], [label], **options)


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_tie_beside_a_complete_count_is_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too narrow to split was neither proved nor is it open: with it, no count can be complete."""
    take = SEARCHES[kind].step

    def tied(self: Any) -> Step:
        return replace(take(self), ties=frozenset({0}))

    monkeypatch.setattr(SEARCHES[kind], "step", tied)
    network, image, label, domain = firm(kind)
    with pytest.raises(InternalError, match=r"a tie.*please report"):
        l0tre.evaluate(network, image[None], [label], domain=domain, tuning=tuning_of(kind), **OPTIONS)


@pytest.mark.parametrize("recipe", [FLAT, DEEP])
def test_an_image_is_proved_while_others_are_open(recipe: Recipe) -> None:
    """Several images in one search, which are over at different steps: what is open of others does not matter."""
    case = balanced(recipe, 0, 2, 0.0, by=0.02)
    random = torch.rand(3, *case.image.shape, generator=torch.Generator().manual_seed(0))
    images = torch.cat([case.image[None], random])
    labels = case.network.scores(images).argmax(1)
    options: dict[str, Any] = {"max_t": 2, "domain": case.domain, "guarantee": "certified", "attack_queries": 0}
    alone = [l0tre.evaluate(case.network, images[row, None], labels[row, None], **options) for row in range(4)]
    four = PerDevice(4, 4)
    tuning = replace(ONE_BATCH, cell_images=four, box_images=four, boxes=PerDevice(7, 7))
    together = l0tre.evaluate(case.network, images, labels, tuning=tuning, **options)
    assert [i.lower for i in together.images] == [r.images[0].lower for r in alone]
    assert max(i.lower for i in together.images) > 0


def middle(prover: Prover, case: Case, kind: str) -> tuple[Any, Fraction]:
    """A search at level 2 in the middle of its proof, and what it has proved."""
    images, labels = case.image.flatten()[None], torch.tensor([case.label])
    search: CellSearch | BoxSearch
    if kind == "cells":
        search = prover.search_cells(2, images, AllRivals(labels), [None])
    else:
        search = prover.search_boxes(2, images, AllRivals(labels), [None])
    search.batch = 5
    proved = Fraction(0)
    while not proved:
        proved += search.step().shares.get(0, Fraction(0))
    assert search.is_open(0)
    return search, proved


Change = Callable[[dict[str, Any]], dict[str, Any]]
CHANGES: dict[str, Change] = {
    "another tree": lambda _: {"tree": "0" * 64},
    "no tree": lambda _: {"tree": ""},
    "another level": lambda _: {"t": 1},
    "another total": lambda proof: {"total": proof["total"] + 1},
    "another total that adds up": lambda proof: {"total": proof["total"] + 1, "proved": proof["proved"] + 1},
    "more proved": lambda proof: {"proved": proof["proved"] + Fraction(1, 2)},
    "less proved": lambda proof: {"proved": proof["proved"] - Fraction(1, 2)},
    "negative": lambda _: {"proved": Fraction(-1)},
    "complete": lambda proof: {"proved": Fraction(proof["total"])},
    "nothing open": lambda _: {"fronts": ()},
    "complete and nothing open": lambda proof: {"proved": Fraction(proof["total"]), "fronts": ()},
    "nodes twice": lambda proof: {"fronts": proof["fronts"] * 2},
    "a node too few": lambda proof: {"fronts": tuple(part.pick(slice(1, None)) for part in proof["fronts"])},
    "cells that are none": lambda proof: {
        "fronts": tuple(replace(part, cells=part.cells + 10**6) for part in proof["fronts"])
    },
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_only_a_proof_that_adds_up_is_gone_on_with(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_much_open(monkeypatch)
    case = balanced(FLAT, 2, 2, 0.0, by=0.02)
    prover = prover_of(case, tuning=ONE_BATCH)
    search, proved = middle(prover, case, kind)
    known = {"t": 2, "proved": proved, "total": math.comb(case.domain.groups, 2), "fronts": search.left(0)}
    proof = Proof(**known, nodes=9, tree=prover.tree.digest)
    assert prover.can_go_on(proof, 2)
    assert not prover.can_go_on(proof, 1)
    for name, change in CHANGES.items():
        wrong = Proof(**{**vars(proof), **change(known)})
        assert not prover.can_go_on(wrong, 2), name
