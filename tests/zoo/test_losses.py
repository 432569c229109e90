import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0tre.zoo.losses import loss_and_scores
from l0tre.zoo.recipes import Adversarial, CrossEntropy, Loss, Trades


def linear(weights: Tensor) -> nn.Module:
    """Two scores, ``+-`` the product with the weights, and dropout that shows which mode the network is in."""
    layer = nn.Linear(weights.numel(), 2, bias=False)
    layer.weight.data = torch.stack([weights, -weights])
    return nn.Sequential(nn.Flatten(), layer, nn.Dropout(0.0)).train()


WEIGHTS = torch.tensor([3.0, -4.0, 0.0, 0.0])
IMAGES = torch.full((2, 1, 2, 2), 0.5)
LABELS = torch.tensor([0, 1])


def at(network: nn.Module, change: Tensor) -> Tensor:
    """The mean cross entropy where the first image moves against the weights and the second along them."""
    moved = IMAGES + torch.stack([-change, change]).reshape(IMAGES.shape)
    return F.cross_entropy(network(moved), LABELS)


def test_plain_loss_is_the_cross_entropy() -> None:
    network = linear(WEIGHTS)
    loss, scores = loss_and_scores(CrossEntropy(), network, IMAGES, LABELS, 0.5)
    torch.testing.assert_close(loss, F.cross_entropy(network(IMAGES), LABELS))
    torch.testing.assert_close(scores, network(IMAGES))


@pytest.mark.parametrize(("done", "share"), [(0.0, 0.0), (0.1, 0.5), (0.2, 1.0), (0.9, 1.0)])
def test_ascent_on_a_linear_network_ends_at_the_worst_point(done: float, share: float) -> None:
    """The worst change in a ball is known: along the weights (L2) or their signs (L-infinity); radii grow from 0."""
    network = linear(WEIGHTS)
    round_ball = Adversarial("l2", radius=0.2, step=0.1, steps=30, warm_up=0.2)
    torch.manual_seed(0)
    loss, _ = loss_and_scores(round_ball, network, IMAGES, LABELS, done)
    torch.testing.assert_close(loss, at(network, share * 0.2 * WEIGHTS / 5), rtol=1e-4, atol=1e-5)
    cube = Adversarial("linf", radius=0.2, step=0.1, steps=10, warm_up=0.2)
    loss, _ = loss_and_scores(cube, network, IMAGES, LABELS, done)
    torch.testing.assert_close(loss, at(network, share * 0.2 * WEIGHTS.sign()))
    assert network.training


def test_points_stay_images() -> None:
    network, seen = linear(WEIGHTS), []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for loss in (
        Adversarial("linf", 0.9, 0.5, 3, 0.0),
        Adversarial("l2", 9.0, 3.0, 3, 0.0),
        Trades(0.9, 0.5, 3, 1.0, 0.0),
    ):
        loss_and_scores(loss, network, IMAGES, LABELS, 1.0)
    every = torch.stack(seen)
    assert every.min() == 0.0
    assert every.max() == 1.0


def test_trades_adds_the_divergence_at_the_worst_point() -> None:
    network = linear(WEIGHTS)
    torch.manual_seed(0)
    loss, scores = loss_and_scores(Trades(0.1, 0.05, 10, weight=2.0, warm_up=0.0), network, IMAGES, LABELS, 1.0)
    target = network(IMAGES).softmax(1)
    corners = [sign * 0.1 * WEIGHTS.sign().reshape(1, 1, 2, 2) for sign in (1, -1)]
    spread = [F.kl_div(network(IMAGES + c).log_softmax(1), target, reduction="none").sum(1) for c in corners]
    expected = F.cross_entropy(network(IMAGES), LABELS) + 2 * torch.stack(spread).amax(0).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(scores, network(IMAGES))
    assert network.training


@pytest.mark.parametrize("loss", [CrossEntropy(), Adversarial("l2", 1.0, 0.5, 2), Trades(0.1, 0.05, 2, 1.0)])
def test_weights_get_a_slope(loss: Loss) -> None:
    network = linear(WEIGHTS)
    value, scores = loss_and_scores(loss, network, IMAGES, LABELS, 1.0)
    value.backward()
    (weights,) = network.parameters()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0
    assert scores.shape == (2, 2)
