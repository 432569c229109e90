"""Margins of boxes by forward forms: below the true ones at every point, on every graph, whichever way is taken."""

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes import form_bounds as form_bounds_module
from l0tre.certify.boxes.bounders import FormBounder
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.boxes.form_bounds import FormInstance, form_bounds
from l0tre.certify.boxes.joints import Joint, apart, find_joints
from l0tre.certify.boxes.margin_errors import proved
from l0tre.certify.boxes.single_tables import SingleTables
from l0tre.certify.boxes.tail import make_tail
from l0tre.certify.prover import make_prover
from l0tre.certify.regions.nodes import BoxNodes, join
from l0tre.memory import Batcher
from l0tre.model.graph import Graph, run
from l0tre.objective import AllRivals
from l0tre.tuning import Tuning
from tests.certify.boxes.cases import balanced, decide, directions, make_case, share_left
from tests.certify.boxes.recipes import RECIPES
from tests.certify.oracle import exact_distance
from tests.certify.random_networks import Case, random_case

BY_FORMS = Tuning(meeting_share=0.0, box_step_seconds=0.0)
EVERY = 2**24


def search_of(case: Case, t: int, memory: int = EVERY, tuning: Tuning = BY_FORMS) -> BoxSearch:
    prover = make_prover(case.network, case.domain, Batcher(case.network, 2**26), memory, tuning)
    return prover.search_boxes(t, case.image.flatten()[None], AllRivals(torch.tensor([case.label])), [None])


def forms_of(search: BoxSearch) -> FormInstance:
    assert isinstance(search.bounder, FormBounder)
    return search.bounder.forms


def boxes_of(search: BoxSearch, case: Case, t: int, count: int, seed: int) -> BoxNodes:
    """Random sets of groups with random parts of their ranges, whole ones among them."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    instance = search.instance
    slots = (instance.tree.order >= 0).nonzero()[:, 0].tolist()
    cells = torch.tensor([draw.sample(slots, t) for _ in range(count)]) + instance.tree.slots
    members = instance.members[cells - instance.tree.slots]
    low, high = (torch.nn.functional.pad(v.double(), (0, 1))[members] for v in (case.domain.low, case.domain.high))
    ends = torch.rand(2, *low.shape, generator=generator, dtype=torch.float64).sort(0).values
    ends[:, ::3] = torch.tensor([0.0, 1.0], dtype=torch.float64).view(2, 1, 1, 1)
    zeros = torch.zeros(count, dtype=torch.int64)
    return BoxNodes(zeros, cells, low + ends[0] * (high - low), low + ends[1] * (high - low), zeros)


def least_margins(search: BoxSearch, case: Case, nodes: BoxNodes) -> Tensor:
    """The least margins over many points of boxes, ``[nodes, rivals]``: corners and points inside."""
    instance = search.instance
    members = instance.members[nodes.cells - instance.tree.slots].flatten(1)
    u = directions(members.shape[1], torch.Generator().manual_seed(1), 64) / 2 + 0.5
    low, high = nodes.low.flatten(1)[:, None], nodes.high.flatten(1)[:, None]
    values = (low + (high - low) * u)[..., :]
    padded = torch.nn.functional.pad(instance.images[nodes.image], (0, 1))[:, None].repeat(1, len(u), 1)
    inputs = padded.scatter(2, members[:, None].expand(-1, len(u), -1), values)[..., :-1]
    scores = run(instance.plan.graph, inputs.reshape(-1, *case.image.shape)).view(len(nodes), len(u), -1)
    others = instance.specification.rivals(scores.shape[2])[0]
    return (scores[..., case.label, None] - scores[..., others]).amin(1)


@pytest.mark.family
@pytest.mark.parametrize("seed", range(24))
def test_bounds_are_below_the_margins_on_any_graph(seed: int) -> None:
    case = random_case(seed)
    for t in range(1, min(3, case.domain.groups) + 1):
        search = search_of(case, t)
        nodes = boxes_of(search, case, t, 40, seed)
        bounds, slopes = form_bounds(forms_of(search), nodes)
        assert bool((bounds <= least_margins(search, case, nodes) + 1e-9).all())
        assert slopes.shape == (*bounds.shape, nodes.low[0].numel())


@pytest.mark.family
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("t", [1, 2, 3])
def test_bounds_are_below_the_margins_in_windows(name: str, t: int) -> None:
    case = make_case(RECIPES[name], 1)
    search = search_of(case, t)
    nodes = boxes_of(search, case, t, 60, t)
    bounds, _ = form_bounds(forms_of(search), nodes)
    assert bool((bounds <= least_margins(search, case, nodes) + 1e-9).all())


@pytest.mark.family
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("t", [1, 2, 3])
def test_all_ways_to_carry_give_the_same_bounds(name: str, t: int) -> None:
    """Whole maps from the input; windows; sums at joints; a budget for one box at a time.

    No forms joined from parts: these would be closer than those of whole maps.
    """
    case = make_case(RECIPES[name], 2)
    search = search_of(case, t)
    forms = replace(forms_of(search), singles=SingleTables(0))
    nodes = boxes_of(search, case, t, 40, 7)
    whole = form_bounds(replace(forms, windows=None, joints=(Joint(0, (0, 0)),)), nodes)[0]
    for other in (forms, replace(forms, windows=None)):
        assert torch.allclose(form_bounds(other, nodes)[0], whole, rtol=1e-6, atol=1e-6)
    # Rivals that are proved are carried back too if others of the same batch are not: what is proved stays the same.
    one_by_one = form_bounds(replace(forms, budget=1), nodes)[0]
    assert bool((one_by_one <= whole + 1e-6).all())
    verdicts = [proved(bounds).tolist() for bounds in (one_by_one, whole)]
    assert verdicts[0] == verdicts[1]


def test_near_pixels_go_through_windows_together_and_far_ones_alone() -> None:
    case = make_case(RECIPES["two hidden"], 0, unit=True)
    search = search_of(case, 2)
    ways = [
        type(way).__name__ for way, _ in form_bounds_module._ways(forms_of(search), boxes_of(search, case, 2, 60, 1))
    ]
    assert "_Sum" in ways


@pytest.mark.parametrize("name", ["plain", "two hidden"])
def test_gaps_close_with_the_square_of_the_sides(name: str) -> None:
    case = make_case(RECIPES[name], 3)
    search = search_of(case, 2)
    nodes = boxes_of(search, case, 2, 40, 5)
    gaps = []
    for share in (2.0**-4, 2.0**-7):
        narrow = replace(nodes, high=nodes.low + share * (nodes.high - nodes.low))
        gaps.append(float((least_margins(search, case, narrow) - form_bounds(forms_of(search), narrow)[0]).mean()))
    assert gaps[1] < gaps[0] / 8 + 1e-9


def test_rows_carried_back_are_better_than_forms_alone() -> None:
    """The tail of a network of three dense layers begins at its first."""
    case = make_case(RECIPES["two hidden"], 2)
    search = search_of(case, 2)
    forms, nodes = forms_of(search), boxes_of(search, case, 2, 60, 2)
    assert forms.tail.start < forms.tail.end
    nowhere = replace(forms.tail, start=forms.tail.end, needed=frozenset({forms.tail.end}), named={})
    alone = replace(forms, tail=nowhere)
    ours, theirs = (form_bounds(way, nodes)[0] for way in (forms, alone))
    assert bool((ours >= theirs - 1e-12).all())
    assert bool((ours > theirs + 1e-6).any())


def test_errors_that_have_names_cancel_behind_the_next_layer() -> None:
    case = make_case(RECIPES["two hidden"], 2)
    search = search_of(case, 1)
    forms, nodes = forms_of(search), boxes_of(search, case, 1, 60, 2)
    assert forms.tail.named
    without = replace(forms, tail=replace(forms.tail, named={}))
    ours, theirs = (form_bounds(way, nodes)[0] for way in (forms, without))
    assert bool((ours <= least_margins(search, case, nodes) + 1e-9).all())
    assert float((ours - theirs).mean()) > 1e-3


def test_joints_are_where_nothing_sees_two_groups() -> None:
    """Brute force: what two pixels do together at a joint is the sum of what each does, if they are apart there."""
    case = make_case(RECIPES["two hidden"], 0, unit=True)
    search = search_of(case, 2)
    forms, instance = forms_of(search), search.instance
    plan = instance.plan
    _, height, width = plan.graph.input_shape
    joints = find_joints(plan, forms.tail.start)
    assert [joint.sight for joint in joints] == [(0, 0), (2, 2)]
    assert [joint.place for joint in joints] == sorted(joint.place for joint in joints)
    met = set()
    pixels = list(itertools.product(range(height), range(width)))
    for first, second in itertools.combinations(pixels[::3], 2):
        groups = torch.tensor([[[p[0], p[0], p[1], p[1]] for p in (first, second)]])
        for joint in joints:
            changes = []
            for chosen in ([first], [second], [first, second]):
                x = instance.images.view(1, *plan.graph.input_shape).clone()
                for y, c in chosen:
                    x[0, :, y, c] = 1 - x[0, :, y, c]
                changes.append(run(Graph(plan.graph.operations[: joint.place + 1]), x))
            own = run(Graph(plan.graph.operations[: joint.place + 1]), instance.images.view(1, *plan.graph.input_shape))
            adds = torch.allclose(changes[2] - own, changes[0] + changes[1] - 2 * own, rtol=0, atol=1e-10)
            far = bool(apart(groups, joint.sight)[0])
            assert adds or not far
            met.add((adds, far))
    assert (False, False) in met
    assert (True, True) in met
    assert forms.joints[0].sight == (0, 0)


def test_groups_of_several_pixels_are_apart_only_if_all_of_them_are() -> None:
    groups = torch.tensor([[[0, 2, 0, 0], [5, 9, 0, 0]], [[0, 2, 0, 0], [4, 9, 0, 0]], [[0, 2, 0, 9], [0, 2, 12, 13]]])
    assert apart(groups, (3, 3)).tolist() == [True, False, True]
    assert apart(groups, (0, 0)).tolist() == [True] * 3
    three = torch.cat([groups[:1], torch.tensor([[[9, 9, 20, 20]]])], 1)
    assert apart(three, (3, 3)).tolist() == [True]
    assert apart(three, (4, 4)).tolist() == [False]


@pytest.mark.family
@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_searches_by_forms_end_with_the_exact_distance(seed: int) -> None:
    case = random_case(seed)
    if any(operation.kind not in LINEAR_PIECES for operation in case.graph.operations):
        pytest.skip("the oracle knows piecewise linear networks")
    distance = exact_distance(case.graph, case.image, case.label, case.domain, 2)
    for t in range(1, min(2, case.domain.groups) + 1):
        search = search_of(case, t)
        verdict = decide(search)
        assert verdict.answer == ("safe" if t < distance else "unsafe")


LINEAR_PIECES = {
    "input", "conv", "linear", "scale", "relu", "leaky_relu", "clip", "max_pool", "avg_pool", "mean", "reshape",
    "transpose", "pad", "slice", "add", "sub", "concat",
}  # fmt: skip


@pytest.mark.parametrize("t", [1, 2])
def test_steps_count_every_set_once(t: int) -> None:
    case = balanced(RECIPES["two hidden"], 1, t, 0.0, by=0.02)
    search, proved = search_of(case, t), Fraction(0)
    while search.open():
        proved += search.step().shares.get(0, Fraction(0))
        assert proved + share_left(search) == search.total
    assert proved == search.total


def test_the_way_back_costs_at_most_half_of_the_forms() -> None:
    case = make_case(RECIPES["two hidden"], 0)
    plan = search_of(case, 1).instance.plan
    few, many = make_tail(plan, 1), make_tail(plan, 10**9)
    assert few.start < few.end == many.end == many.start


def test_boxes_that_share_an_end_are_not_mixed_up() -> None:
    """What is carried once for several sets is a group with all its ends: whole ranges, halves and points together."""
    case = make_case(RECIPES["two hidden"], 2)
    search = search_of(case, 2)
    forms, whole = forms_of(search), boxes_of(search, case, 2, 12, 3)
    middle = (whole.low + whole.high) / 2
    kinds = [whole, replace(whole, high=middle), replace(whole, low=middle), replace(whole, high=whole.low)]
    together, _ = form_bounds(forms, join(kinds))
    alone = torch.cat([form_bounds(forms, kind)[0] for kind in kinds])
    verdicts = [proved(bounds).tolist() for bounds in (together, alone)]
    assert verdicts[0] == verdicts[1]
    assert bool((together <= least_margins(search, case, join(kinds)) + 1e-9).all())
    assert bool((together[-12:] > together[:12] + 1e-6).any())
