"""Pixels chosen one after the other, against networks of which the answer is known, and by replaying them."""

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.api.drawings import Drawing, begin_map
from l0tre.errors import ConfigError
from l0tre.maps.together import lower_together
from l0tre.model.sources import Source
from tests.maps.test_maps import SHAPE, Mixed


def drawn(module: Source, image: Tensor, target: int) -> Drawing:
    network = l0tre.load(module, input_shape=tuple(image.shape), device="cpu")
    drawing = begin_map(network, image, target=target)
    for _ in drawing.steps(coarse=False):
        pass
    return drawing


def test_pixels_that_stand_for_each_other_are_chosen_once() -> None:
    def scores(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        first = -torch.maximum(flat[:, 0], flat[:, 1]) - 0.5 * flat[:, 2] + 0.1 * flat[:, 3]
        return torch.stack([first, torch.zeros_like(first)], 1)

    drawing = drawn(scores, torch.zeros(1, 2, 3), 0)
    assert set(drawing.now().strongest(2).tolist()) == {0, 1}
    found = lower_together(drawing.perturber, drawing.state, 6)
    assert found.groups.tolist() in ([0, 2], [1, 2])  # no other lowers it any further
    torch.testing.assert_close(found.drops, torch.tensor([1.0, 1.5]))
    assert found.colours.tolist() == [[1.0], [1.0]]


def test_a_sum_is_lowered_by_its_largest_parts() -> None:
    torch.manual_seed(2)
    linear = nn.Linear(48, 3)
    image = torch.rand(3, 4, 4)
    drawing = drawn(nn.Sequential(nn.Flatten(), linear), image, 1)
    found = lower_together(drawing.perturber, drawing.state, 5)
    drop = drawing.now().drop.sort(descending=True).values[:5]
    torch.testing.assert_close(found.drops, drop.cumsum(0), rtol=1e-4, atol=1e-5)


def test_drops_are_those_of_the_changed_images() -> None:
    module = Mixed().eval()
    image = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))
    drawing = drawn(module, image, 0)
    before = drawing.perturber.evaluations
    found = lower_together(drawing.perturber, drawing.state, 6)
    assert drawing.perturber.evaluations > before
    members, changed = drawing.now().members, image.flatten().clone()
    alone = drawing.now()
    with torch.inference_mode():
        base = module(image[None])[0, 0]
        for group, colour, drop in zip(found.groups.tolist(), found.colours, found.drops, strict=True):
            changed[members[group]] = colour
            torch.testing.assert_close(base - module(changed.reshape(1, *SHAPE))[0, 0], drop, rtol=1e-3, atol=1e-5)
        best = alone.change(image, alone.strongest(6))
        assert float(found.drops[-1]) >= float(base - module(best[None])[0, 0])
    assert found.groups[0] == alone.strongest(1)[0]


def test_what_was_chosen_comes_first_in_an_attribution() -> None:
    image = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1))
    drawing = drawn(Mixed().eval(), image, 0)
    chosen = lower_together(drawing.perturber, drawing.state, 6).groups.tolist()
    plain, found = (l0tre.saliency(drawing.network, image, 0, together=count)[0].flatten() for count in (0, 6))
    order = found.argsort(descending=True).tolist()
    assert order[:6] == chosen
    rest = torch.ones_like(plain, dtype=torch.bool)
    rest[chosen] = False
    assert torch.equal(found[rest], plain[rest])
    with pytest.raises(ConfigError, match="together is -1"):
        l0tre.saliency(drawing.network, image, 0, together=-1)


def test_only_values_that_rules_allow_are_chosen() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    row = torch.full((4,), 0.5)
    network = l0tre.load(module, input_shape=(4,), device="cpu")
    domain = l0tre.restrict(l0tre.make_domain((4,)), upwards=[0, 1, 2, 3])
    drawing = begin_map(network, row, target=0, domain=domain)
    for _ in drawing.steps(coarse=False):
        pass
    found = lower_together(drawing.perturber, drawing.state, 4)
    assert bool((found.colours >= 0.5).all())
    changed = row.clone()
    for group, colour, drop in zip(found.groups.tolist(), found.colours, found.drops, strict=True):
        changed[group] = colour
        with torch.inference_mode():
            torch.testing.assert_close(module(row)[0] - module(changed)[0], drop, rtol=1e-4, atol=1e-5)
