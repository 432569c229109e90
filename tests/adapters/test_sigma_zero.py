"""Our sigma-zero beside adv-lib's, which is the reference."""

import pytest
import torch

from l0tre.adapters.peers import advlib
from l0tre.adapters.peers.sigma_zero import sigma_zero
from l0tre.errors import MissingExtraError
from tests.adapters.linear import fewest_changes, make_case


@pytest.mark.parametrize("budget", [1, 20, 300])
def test_both_implementations_give_the_same_inputs(budget: int) -> None:
    try:
        advlib.load()
    except MissingExtraError:
        pytest.skip("adv-lib is not installed")
    model, images, labels = make_case(4)
    reference = advlib.sigma_zero(model, images, labels, budget, 0)
    assert torch.allclose(sigma_zero(model, images, labels, budget, 0), reference, atol=1e-4)


def test_it_comes_near_to_the_fewest_changes_of_a_linear_network() -> None:
    model, images, labels = make_case(4)
    found = sigma_zero(model, images, labels, 600, 0)
    assert bool((model(found).argmax(1) != labels).all())
    assert bool(((found >= 0) & (found <= 1)).all())
    for row, image in enumerate(images):
        fewest = fewest_changes(model, image, int(labels[row]))
        assert fewest <= int((found[row] != image).sum()) <= 2 * fewest + 2
