"""Proofs as part of an evaluation: stopping inside a step, guarantees and their reasons, ties, several images."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify.boxes import disjoint_pairs as disjoint_module
from l0tre.certify.boxes import overlapping_pairs as overlapping_module
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.cells.cell_search import CellSearch
from l0tre.domain import make_domain
from l0tre.errors import ConfigError, ModelError
from l0tre.store import open_run
from l0tre.tuning import PerDevice, Tuning
from tests.certify.boxes.cases import balanced, make_case, prover_of
from tests.certify.boxes.recipes import RELU, Recipe, conv
from tests.certify.oracle import exact_distance
from tests.certify.random_networks import planted, random_case
from tests.tools import NO_ATTACK


def small() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


@pytest.mark.slow
def test_a_step_that_is_halted_loses_nothing(tmp_path: Path) -> None:
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    at_once = Tuning(grace_seconds=-1.0)

    class Stop:
        def __init__(self, after: float) -> None:
            self.asked, self.after = 0, after

        def __call__(self) -> bool:
            self.asked += 1
            return self.asked > self.after

    never = Stop(math.inf)
    whole = l0tre.evaluate(small(), images, max_t=2, stop=never, tuning=at_once)
    assert whole.finished
    halted = 0
    for eighth in range(1, 8):
        run = tmp_path / str(eighth)
        try:
            early = l0tre.evaluate(
                small(), images, max_t=2, stop=Stop(never.asked * eighth / 8), out=run, tuning=at_once
            )
        except KeyboardInterrupt:  # before the first step
            continue
        assert not early.finished
        halted += 1
        resumed = l0tre.resume(run, small())
        assert resumed.finished
        assert [(i.lower, i.upper) for i in resumed.images] == [(i.lower, i.upper) for i in whole.images]
    assert halted >= 2


def test_planted_pairs_are_found_and_single_pixels_proved() -> None:
    case = planted((2, 9), (0.3, 0.8))
    result = l0tre.evaluate(case.network, case.image[None], [case.label], max_t=2, domain=case.domain)
    bounds = result.images[0]
    assert (bounds.lower, bounds.guarantee) == (1, "certified")
    assert bounds.upper == 2
    verdict = l0tre.verify(case.network, case.image, case.label, radius=2, domain=case.domain)
    assert verdict.answer == "unsafe"
    assert verdict.witness is not None
    assert set(verdict.witness.groups) == {2, 9}


@pytest.mark.family
@pytest.mark.parametrize("seed", range(0, 39, 3))
def test_evaluations_agree_with_exact_distances(seed: int) -> None:
    case = random_case(seed)
    if case.kind in ("sigmoid", "tanh"):
        pytest.skip("no exact distance of smooth networks")
    most = min(2, case.domain.groups)
    options: dict[str, Any] = {"domain": case.domain, "time_budget": 20.0, "attack_queries": 50}
    result = l0tre.evaluate(case.network, case.image[None], [case.label], max_t=most, **options)
    bounds = result.images[0]
    distance = exact_distance(case.graph, case.image, case.label, case.domain, most)
    assert bounds.guarantee == "certified"
    assert bounds.lower < distance
    assert bounds.witness is None or bounds.upper >= distance
    if result.finished and not bounds.blocked:
        assert bounds.lower == min(distance - 1, most)


def test_auto_says_why_it_is_a_grid() -> None:
    result = l0tre.evaluate(lambda x: torch.stack([x.sum(1), 1 - x.sum(1)], 1), torch.full((1, 3), 0.9), max_t=1)
    assert result.images[0].guarantee == "grid"
    assert "cannot be certified" in result.config["guarantee"]["note"]
    with pytest.raises(ModelError, match="certified guarantee"):
        l0tre.evaluate(lambda x: torch.stack([x.sum(1), 1 - x.sum(1)], 1), torch.rand(1, 3), guarantee="certified")


def test_products_of_variables_are_refused_by_name() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.last(x * x.relu())
            return scores

    with pytest.raises(ModelError, match=r"mul .*cannot be bounded; supported: conv, linear"):
        l0tre.evaluate(Product(), torch.rand(1, 4), guarantee="certified")


def test_a_certificate_that_cannot_be_written_is_refused_before_the_proof(tmp_path: Path) -> None:
    def never() -> bool:
        raise AssertionError("the proof has begun")

    for place in (tmp_path, tmp_path / "nowhere" / "x.l0cert"):
        with pytest.raises(ConfigError, match="cannot be written"):
            l0tre.verify(small(), torch.rand(1, 4, 4), radius=1, certificate=place, stop=never)


def test_lipschitz_is_for_two_groups_at_most_and_proves_on_a_fine_grid() -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ConfigError, match="at most 2 groups"):
        l0tre.evaluate(small(), images, max_t=3, guarantee="lipschitz")
    certified = l0tre.evaluate(small(), images, max_t=1, guarantee="certified")
    fine = l0tre.evaluate(small(), images, max_t=1, guarantee="lipschitz", epsilon=0.002)
    assert all(a.lower <= b.lower for a, b in zip(fine.images, certified.images, strict=True))
    assert sum(i.lower for i in fine.images) > 0
    assert {i.guarantee for i in fine.images} == {"lipschitz"}


def test_a_network_that_only_ties_is_never_proved() -> None:
    net = nn.Linear(2, 2)
    net.weight.data = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    net.bias.data = torch.tensor([1.0, 0.0])  # a tie at x = 1, no flip anywhere
    result = l0tre.evaluate(net, torch.zeros(1, 2), max_t=1)
    assert result.images[0].lower == 0
    assert result.images[0].blocked == 1


FLAT = Recipe((1, 3, 4), (conv(2, 2), RELU))
DEEP = Recipe((1, 3, 4), (conv(2, 2), RELU), (4,))
NEVER = 10**9


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, int]]:
    """How many steps searches of both kinds took at each level."""
    counts: Counter[tuple[str, int]] = Counter()

    def spy(kind: type[CellSearch] | type[BoxSearch], name: str) -> None:
        step = kind.step

        def counted(self: Any) -> Any:
            counts[name, self.t] += 1
            return step(self)

        monkeypatch.setattr(kind, "step", counted)

    spy(CellSearch, "cells")
    spy(BoxSearch, "clusters")
    return counts


def bounds_of(case: Any, max_t: int, **options: Any) -> tuple[int, int]:
    """Bounds of a case's image."""
    options = {"max_t": max_t, "domain": case.domain, "guarantee": "certified", "attack_queries": 0, **options}
    result = l0tre.evaluate(case.network, case.image[None], [case.label], **options)
    assert result.finished
    assert not result.images[0].blocked
    return result.images[0].lower, result.images[0].upper


@pytest.mark.parametrize("seed", range(4))
def test_networks_that_are_linear_behind_windows_go_to_clusters(seed: int, steps: Counter[tuple[str, int]]) -> None:
    """At once, at three levels."""
    case = balanced(FLAT, seed, 1 + seed % 3, 0.0, by=(0.3, -0.02, 0.02)[seed % 3])
    lower, upper = bounds_of(case, 3)
    distance = exact_distance(case.graph, case.image, case.label, case.domain, 3)
    assert lower == min(distance - 1, 3)
    assert upper == distance or distance > 3
    assert {kind for kind, _ in steps} <= {"clusters"}
    assert steps["clusters", 1] > 0


@pytest.mark.parametrize(
    ("patience", "hopeless"), [(0, -math.inf), (1, -math.inf), (NEVER, math.inf), (NEVER, -math.inf)]
)
def test_other_networks_are_handed_over_when_cells_cost_too_much(
    patience: int, hopeless: float, steps: Counter[tuple[str, int]]
) -> None:
    """Whoever proves it, the bounds are exact."""
    tuning = Tuning(record_seconds=0.0, cell_patience=patience, hopeless=hopeless)
    for seed in (2,) if patience else (0, 2):
        case = balanced(DEEP, seed, 2, 0.0, by=0.01)
        lower, upper = bounds_of(case, 3, tuning=tuning)
        distance = exact_distance(case.graph, case.image, case.label, case.domain, 3)
        assert distance > 2
        assert lower == min(distance - 1, 3)
        assert upper == distance or distance > 3
    handed = patience < NEVER or hopeless > 0
    assert (steps["clusters", 1] > 0, steps["cells", 1] > 0) == (True, False)  # single pixels are boxes at once
    assert (steps["clusters", 2] > 0, steps["cells", 2] > 0) == (handed, True)
    assert (steps["clusters", 3] > 0, steps["cells", 3] > 0) == (handed, not handed)


@pytest.mark.family
@pytest.mark.parametrize(
    ("recipe", "t", "batches"), [(FLAT, 1, 2), (FLAT, 2, 1), (FLAT, 3, 40), (DEEP, 1, 1), (DEEP, 2, 1), (DEEP, 3, 1)]
)
def test_a_run_that_stops_inside_a_proof_by_clusters_goes_on(
    recipe: Recipe,
    t: int,
    batches: int,
    tmp_path: Path,
    steps: Counter[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed once, then stopped again and again after a few batches."""
    case = balanced(recipe, 6, t, 0.0, by=0.003 if t < 3 else 0.3)
    images = torch.stack([case.image, case.image.flip(2)])
    labels = case.network.scores(images).argmax(1)
    options: dict[str, Any] = {"max_t": t, "domain": case.domain, "guarantee": "certified", "attack_queries": 0}
    whole = l0tre.evaluate(case.network, images, labels, tuning=Tuning(cell_patience=0), **options)
    assert whole.finished
    tuning = Tuning(record_seconds=0.0, cell_patience=0, box_step_seconds=0.0, boxes=PerDevice(3, 3))
    monkeypatch.setattr(disjoint_module, "HALVINGS", (0,))  # so that the first look leaves much
    monkeypatch.setattr(overlapping_module, "HALVINGS", 0)
    folder, limit = tmp_path / "run", 2

    def spent() -> int:
        return steps["cells", t] + steps["clusters", t]

    def stop() -> bool:
        return spent() >= limit

    steps.clear()
    snapshots = l0tre.anytime(case.network, images, labels, out=folder, tuning=tuning, **options)
    next(snapshot for snapshot in snapshots if stop())
    snapshots.close()  # type: ignore[attr-defined]  # as if killed
    kept, finished = 0, False
    while not finished:
        limit = spent() + batches
        result = l0tre.resume(folder, case.network, stop=stop, tuning=tuning)
        finished = result.finished
        run = open_run(folder)
        for proof in run.load_state().proofs.values():
            assert proof.fronts
            assert 0 <= proof.proved < proof.total == math.comb(case.domain.groups, proof.t)
            kept += proof.t == t and proof.nodes > 0
        run.close()
        assert spent() < 1000
    assert [(i.lower, i.upper) for i in result.images] == [(i.lower, i.upper) for i in whole.images]
    assert kept > 0
    assert steps["clusters", t] > 3


@pytest.mark.parametrize(("trial", "patience"), [(2, 0), (9, 0), (2, NEVER)])
def test_a_few_images_show_whether_cells_do(trial: int, patience: int, steps: Counter[tuple[str, int]]) -> None:
    """If all of them had to be handed over, the others go to clusters at once; the bounds are exact either way."""
    tuning = Tuning(cell_patience=patience, hopeless=-math.inf, trial_images=trial)
    case = balanced(DEEP, 2, 2, 0.0, by=0.01)
    images = torch.stack([case.image.roll(shift, 2) for shift in (0, 1, 0, 1, 0)])
    labels = case.network.scores(images).argmax(1)
    options: dict[str, Any] = {"max_t": 2, "domain": case.domain, "guarantee": "certified", "tuning": tuning}
    result = l0tre.evaluate(case.network, images, labels, **NO_ATTACK, **options)
    assert result.finished
    for shift in (0, 1):
        distance = exact_distance(case.graph, images[shift], int(labels[shift]), case.domain, 2)
        assert [image.lower for image in result.images[shift::2]] == [min(distance - 1, 2)] * (3 - shift)
    if patience == 0:
        assert steps["clusters", 2] > 0
        assert steps["cells", 2] == min(trial, 5)  # on a CPU one after the other
    else:
        assert steps["clusters", 2] == 0
        assert steps["cells", 2] > 1


@pytest.mark.parametrize("patience", [0, NEVER])
def test_a_proof_that_cells_began_is_theirs_or_begins_anew(
    patience: int, tmp_path: Path, steps: Counter[tuple[str, int]]
) -> None:
    """What cells have proved is never counted beside what clusters prove."""
    tuning = Tuning(record_seconds=0.0, cell_patience=NEVER, hopeless=-math.inf)
    case = balanced(DEEP, 2, 2, 0.0, by=0.01)
    distance = exact_distance(case.graph, case.image, case.label, case.domain, 2)
    options: dict[str, Any] = {"max_t": 2, "domain": case.domain, "guarantee": "certified", "attack_queries": 0}
    seen = 0
    for number in (3, 5, 7):
        steps.clear()
        folder, limit = tmp_path / str(number), number
        stop = partial(lambda most: sum(steps.values()) > most, limit)
        l0tre.evaluate(case.network, case.image[None], [case.label], out=folder, stop=stop, tuning=tuning, **options)
        run = open_run(folder)
        seen += sum(proof.proved > 0 and not proof.boxed for proof in run.load_state().proofs.values())
        run.close()
        other = replace(tuning, cell_patience=patience)
        result = l0tre.resume(folder, case.network, time_budget=20.0, tuning=other)
        assert result.finished
        assert result.images[0].lower == min(distance - 1, 2)
    assert seen > 0


@pytest.mark.parametrize(("patience", "hopeless"), [(5, -math.inf), (NEVER, math.inf)])
def test_what_cells_give_up_stays_with_boxes_when_a_run_is_stopped(
    patience: int, hopeless: float, tmp_path: Path, steps: Counter[tuple[str, int]]
) -> None:
    """In every step: cells that began anew in every session would never end."""
    tuning = Tuning(record_seconds=0.0, cell_patience=patience, hopeless=hopeless, trial_images=1)
    case = balanced(DEEP, 2, 2, 0.0, by=0.01)
    images = torch.stack([case.image, case.image])
    options: dict[str, Any] = {"max_t": 2, "domain": case.domain, "guarantee": "certified", "attack_queries": 0}
    whole = l0tre.evaluate(case.network, images, [case.label] * 2, tuning=tuning, **options)
    by_cells = steps["cells", 2]
    assert by_cells > 0
    steps.clear()
    options |= {"out": tmp_path / "run", "time_budget": 0.0, "tuning": tuning}
    result = l0tre.evaluate(case.network, images, [case.label] * 2, **options)
    for _ in range(200):
        if result.finished:
            break
        result = l0tre.resume(tmp_path / "run", case.network, time_budget=0.0, tuning=tuning)
    assert result.finished
    assert [(i.lower, i.upper) for i in result.images] == [(i.lower, i.upper) for i in whole.images]
    # One image shows that cells do not pay here; what it showed is not stored, so the other one may try them as well.
    assert by_cells <= steps["cells", 2] <= 2 * by_cells


@pytest.mark.parametrize("recipe", [FLAT, DEEP])
def test_certificates_are_of_the_proof_that_was_made(
    recipe: Recipe, tmp_path: Path, steps: Counter[tuple[str, int]]
) -> None:
    case = balanced(recipe, 3, 2, 0.0, by=0.2)
    verdict = l0tre.verify(
        case.network, case.image, case.label, radius=2, domain=case.domain, certificate=tmp_path / "a.l0cert"
    )
    assert verdict.answer == "safe"
    assert ("clusters", 1 if recipe.hidden else 2) in steps
    l0tre.check(l0tre.read_certificate(tmp_path / "a.l0cert"), case.network, case.image, case.domain)
    again = l0tre.verify(case.network, case.image, case.label, radius=2, domain=case.domain)
    assert again.answer == "safe"
    if not recipe.hidden:
        assert steps["clusters", 2] > 0


def test_levels_that_clusters_can_prove() -> None:
    """As long as all sets can be listed, and few values change; a block of images likewise."""
    flat, deep = (prover_of(make_case(recipe, 0, unit=True)) for recipe in (FLAT, DEEP))
    assert [flat.can_use_boxes(t) for t in (1, 2, 3, 4)] == [True, True, True, True]
    assert [deep.can_use_boxes(t) for t in (1, 2, 3)] == [True, True, True]
    assert not replace(flat, tuning=Tuning(box_values=2)).can_use_boxes(3)
    # In windows only where most pixels never meet, three of them only where the scores follow the windows.
    assert not flat.by_windows(1)
    flat, deep = (replace(prover, tuning=Tuning(meeting_share=1.0)) for prover in (flat, deep))
    assert [flat.by_windows(t) for t in (1, 2, 3, 4)] == [True, True, True, False]
    assert [deep.by_windows(t) for t in (1, 2, 3)] == [True, True, False]
    flat = replace(flat, tuning=Tuning(box_sets=66))
    assert [flat.can_use_boxes(t) for t in (1, 2, 3)] == [True, True, False]
    assert flat.block(2, boxes=True) == 1
    tuning = Tuning(box_sets=66, box_images=PerDevice(64, 64))
    flat = replace(flat, tuning=tuning)
    assert flat.block(2, boxes=True) == 64
    # What is left open must fit into the memory.
    assert replace(flat, tuning=replace(tuning, set_bytes=flat.memory // 660)).block(2, boxes=True) == 10
    flat = replace(flat, tuning=replace(tuning, block_sets=660))
    assert flat.block(2, boxes=True) == 10
    assert flat.block(3, boxes=True) == 3
    assert prover_of(planted((1, 2), (0.9, 0.1), (2, 3, 3))).can_use_boxes(2)
    vectors = prover_of(random_case(0))
    assert vectors.can_use_boxes(1)
    assert not vectors.by_windows(1)
    colours = make_case(Recipe((3, 3, 4), (conv(2, 2), RELU)), 0, unit=True)
    assert prover_of(colours).can_use_boxes(2)
    for groups in ("feature", torch.arange(12).view(3, 4) // 2):  # channels apart, two pixels together
        domain = make_domain((3, 3, 4), groups=groups)
        others = prover_of(replace(colours, domain=domain))
        assert others.can_use_boxes(1)
        assert not others.by_windows(1)
