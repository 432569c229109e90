"""Forms of single groups joined from parts: around the truth on every graph, tighter than whole ones, kept rightly."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from l0tre.certify.boxes.form_bounds import form_bounds
from l0tre.certify.boxes.forward_forms import Forms
from l0tre.certify.boxes.range_parts import halved
from l0tre.certify.boxes.rounding import ELEMENT
from l0tre.certify.boxes.single_tables import SingleTables, closer, join_parts
from l0tre.certify.regions.nodes import BoxNodes, join
from tests.certify.boxes.cases import make_case
from tests.certify.boxes.recipes import RECIPES
from tests.certify.boxes.test_form_bounds import boxes_of, forms_of, least_margins, search_of


def singles(count: int, width: int, seed: int) -> BoxNodes:
    """Boxes of single groups; some values are fixed, some ranges far from zero."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(count, 1, width, generator=generator, dtype=torch.float64) * 3
    extent = torch.rand(count, 1, width, generator=generator, dtype=torch.float64)
    extent[::4, :, 0] = 0.0
    zeros = torch.zeros(count, dtype=torch.int64)
    return BoxNodes(zeros, zeros[:, None], low, low + extent, zeros)


def points(nodes: BoxNodes, many: int, seed: int) -> Tensor:
    """Values in boxes, corners among them, ``[many, nodes, width]``."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(many, *nodes.low[:, 0].shape, generator=generator, dtype=torch.float64)
    share[::3] = share[::3].round()
    return nodes.low[:, 0] + share * (nodes.high - nodes.low)[:, 0]


def shares(nodes: BoxNodes, values: Tensor) -> Tensor:
    """Values as variables ``u`` of boxes."""
    half = (nodes.high - nodes.low)[:, 0] / 2
    middle = (nodes.high + nodes.low)[:, 0] / 2
    return torch.where(half > 0, (values - middle) / half.clamp(min=1e-300), 0.0).clamp(-1, 1)


@pytest.mark.parametrize("times", [1, 2, 3, 4])
@pytest.mark.parametrize("width", [1, 3])
def test_a_joined_form_encloses_those_of_its_parts(width: int, times: int) -> None:
    """Any forms, of which the joined one knows nothing: each end of each part's form lies inside, at any point."""
    whole = singles(12, width, times)
    parts = halved(whole, times)
    generator = torch.Generator().manual_seed(times)
    linear = torch.randn(len(parts), 1 + width, 2, 3, generator=generator, dtype=torch.float64)
    forms = Forms(linear, torch.rand(len(parts), 2, 3, generator=generator, dtype=torch.float64))
    found = join_parts(whole, parts, forms)
    for part in range(2**times):
        rows = slice(part * len(whole), (part + 1) * len(whole))
        own = parts.pick(rows)
        for values in points(own, 20, part):
            u, v = (shares(boxes, values)[:, :, None, None] for boxes in (whole, own))
            ours = found.linear[:, 0] + (found.linear[:, 1:] * u).sum(1)
            theirs = linear[rows][:, 0] + (linear[rows][:, 1:] * v).sum(1)
            assert bool(((ours - theirs).abs() + forms.error[rows] <= found.error + 1e-9).all())


def test_a_joined_form_of_parts_of_one_line_is_that_line() -> None:
    """Nothing is lost but what rounding can be, also where values are far larger than their ranges."""
    whole = singles(8, 2, 5)
    whole = replace(whole, low=whole.low + 100, high=whole.high + 100)
    parts = halved(whole, 3)
    slopes = torch.randn(2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lines = []
    for nodes in (whole, parts):
        middle, half = ((nodes.high + nodes.low)[:, 0] / 2, (nodes.high - nodes.low)[:, 0] / 2)
        lines.append(torch.cat([(middle * slopes).sum(1)[:, None], half * slopes], 1)[:, :, None])
    found = join_parts(whole, parts, Forms(lines[1], torch.zeros(len(parts), 1, dtype=torch.float64)))
    assert torch.allclose(found.linear, lines[0], rtol=0, atol=1e-10)
    assert bool((found.error > ELEMENT).all())
    assert bool((found.error < 1e-9).all())


def test_of_two_forms_the_closer_one_is_taken_value_by_value() -> None:
    first, second = (
        Forms(torch.full((1, 2, 3), k, dtype=torch.float64), torch.tensor([errors], dtype=torch.float64))
        for k, errors in ((1.0, [1.0, 5.0, torch.nan]), (2.0, [2.0, 3.0, 4.0]))
    )
    found = closer(first, second)
    assert found.linear.tolist() == [[[1.0, 2.0, 2.0]] * 2]
    assert found.error.tolist() == [[1.0, 3.0, 4.0]]


def test_nan_in_a_part_stays() -> None:
    whole = singles(4, 1, 0)
    parts = halved(whole, 2)
    forms = Forms(torch.ones(16, 2, 1, dtype=torch.float64), torch.ones(16, 1, dtype=torch.float64))
    forms.error[5] = torch.nan
    found = join_parts(whole, parts, forms)
    assert found.error.isnan()[:, 0].tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", ["plain", "two hidden", "wide"])
def test_sets_are_bounded_more_closely_by_joined_forms(name: str) -> None:
    case = make_case(RECIPES[name], 3)
    search = search_of(case, 2)
    forms, nodes = forms_of(search), boxes_of(search, case, 2, 60, 3)
    assert forms.singles.room > 0
    whole = form_bounds(replace(forms, singles=SingleTables(0)), nodes)[0]
    joined = form_bounds(forms, nodes)[0]
    assert bool((joined <= least_margins(search, case, nodes) + 1e-9).all())
    assert float((joined - whole).mean()) > 1e-3
    assert forms.singles.found


def test_what_is_kept_is_the_same_again_and_takes_no_more_than_its_room() -> None:
    case = make_case(RECIPES["two hidden"], 2)
    search = search_of(case, 2)
    forms, nodes = forms_of(search), boxes_of(search, case, 2, 60, 3)
    first = form_bounds(forms, nodes)[0]
    kept = dict(forms.singles.found)
    assert torch.equal(form_bounds(forms, nodes)[0], first)
    assert all(forms.singles.found[key] is kept[key] for key in kept)
    sizes = [8 * (found.linear.numel() + found.error.numel()) for found in kept.values()]
    groups = int((search.instance.tree.order >= 0).sum())
    assert len(kept) > groups
    small = replace(forms, singles=SingleTables(max(sizes) * groups))  # room for each group once
    for part in (*torch.arange(60).split(7), torch.arange(60)):
        assert torch.allclose(form_bounds(small, nodes.pick(part))[0], first[part], rtol=0, atol=1e-9)
        held = sum(8 * (found.linear.numel() + found.error.numel()) for found in small.singles.found.values())
        assert held <= small.singles.room


def test_boxes_of_a_group_that_share_an_end_are_kept_apart() -> None:
    """Of several images, too: each gets the form of its own values."""
    case = make_case(RECIPES["two hidden"], 2)
    search = search_of(case, 2)
    whole = boxes_of(search, case, 1, 3, 1)
    middle = (whole.low + whole.high) / 2
    nodes = join(
        [whole, replace(whole, high=middle), replace(whole, low=middle), replace(whole, image=1 - whole.image)]
    )
    own = torch.arange(len(nodes))

    def carry(some: BoxNodes) -> Forms:
        """Twice the value, and three more for the second image."""
        centre = (some.low + some.high)[:, :, 0] + 3 * some.image[:, None]
        linear = torch.stack([centre, (some.high - some.low)[:, :, 0]], 1)
        return Forms(linear.view(-1, 2, 1, 1, 1), torch.zeros(len(some), 1, 1, 1, dtype=torch.float64))

    instance = replace(search.instance, up=search.instance.up.repeat(2, 1), down=search.instance.down.repeat(2, 1))
    tables = SingleTables(2**24)
    for rows in (own, own.flip(0)):
        chosen = nodes.pick(rows)
        found = tables.joined(instance, 3, chosen, carry)
        assert torch.allclose(found.linear, carry(chosen).linear, rtol=0, atol=1e-9)
        assert torch.equal(found.linear, tables.joined(instance, 3, chosen, carry).linear)
    assert len(tables.found) == len(nodes)
