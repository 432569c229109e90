"""Sums of what single pixels do: sound for pixels that no neuron sees together, and without effect on verdicts."""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn

import l0tre
from l0tre.certify.cells import cell_search as search_module
from l0tre.certify.cells.additive import apart, can_add, make_losses, sum_proves
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.nodes import Nodes
from l0tre.domain import make_domain
from l0tre.memory import Batcher
from l0tre.model.graph import run


def module(seed: int, channels: int = 1, stride: int = 1, padding: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    body = [nn.Conv2d(channels, 3, 2, stride, padding), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten()]
    size = nn.Sequential(*body)(torch.zeros(1, channels, 6, 6)).shape[1]
    net = nn.Sequential(*body, nn.Linear(size, 3))
    for parameter in net.parameters():
        parameter.data *= 1.5
    return net


def prover_of(network: l0tre.Network) -> Prover:
    return make_prover(network, make_domain(network.input_shape), Batcher(network, 2**28), 2**28)


@pytest.mark.parametrize(("channels", "stride", "padding"), [(1, 1, 0), (1, 1, 1), (2, 1, 0), (1, 2, 0), (2, 2, 1)])
def test_sums_are_below_every_margin_of_pixels_that_are_apart(channels: int, stride: int, padding: int) -> None:
    network = l0tre.load(module(3, channels, stride, padding), input_shape=(channels, 6, 6), device="cpu")
    prover = prover_of(network)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, channels * 36, generator=generator)
    labels = network.scores(images.view(-1, channels, 6, 6)).argmax(1)
    search = prover.search(2, images, labels, [None, None], [None, None])
    assert can_add(search.instance)
    instance, tree = search.instance, search.instance.tree
    singles = make_losses(instance, search.low, search.high, 64, 2**22)
    slots = (tree.order >= 0).nonzero()[:, 0]
    pairs = torch.tensor(list(itertools.combinations(slots.tolist(), 2))) + tree.slots
    nodes = Nodes(torch.arange(2).repeat_interleave(len(pairs)), pairs.repeat(2, 1))
    far = apart(singles, nodes)
    assert 0 < int(far.sum()) < len(nodes)
    nodes = nodes.pick(far)
    bounds, _ = sum_proves(instance, singles, nodes)
    assert network.exact is not None
    closest = torch.inf
    for _ in range(60):
        x = instance.images[nodes.image].clone()
        for column in instance.members[nodes.cells - tree.slots].flatten(1).T:
            values = torch.rand(len(nodes), generator=generator, dtype=torch.float64)
            values = torch.where(torch.rand(len(nodes), generator=generator) < 0.5, values.round(), values)
            x.scatter_(1, column[:, None], values[:, None])
        scores = run(network.exact, x.view(-1, channels, 6, 6))
        margins = torch.einsum("nrc,nc->nr", instance.rows[nodes.image], scores)
        assert bool((bounds <= margins + 1e-9).all())
        closest = min(closest, float((margins - bounds).min()))
    assert closest < 0.2  # the sums are bounds, and close ones


@pytest.mark.parametrize("seed", range(6))
def test_sums_change_no_verdict(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PATIENCE", -1)
    network = l0tre.load(module(seed), input_shape=(1, 6, 6), device="cpu")
    prover = prover_of(network)
    image = torch.rand(1, 36, generator=torch.Generator().manual_seed(seed))
    label = network.scores(image.view(1, 1, 6, 6)).argmax(1)
    verdicts, nodes = {}, {}
    for sums in (False, True):
        search = prover.search(2, image, label, [None], [None], sums=sums)
        proved, count, found = Fraction(0), 0, False
        while search.open() and not found:
            step = search.step()
            proved += step.shares.get(0, Fraction(0))
            count += sum(step.nodes.values())
            found = bool(step.candidates)
        verdicts[sums] = "unsafe" if found else "safe"
        assert found or proved == search.total
        assert not sums or search.singles is not None
        nodes[sums] = count
    assert verdicts[False] == verdicts[True]


def test_a_dense_layer_with_a_relu_behind_the_windows_does_not_add_up() -> None:
    net = nn.Sequential(module(0), nn.ReLU(), nn.Linear(3, 3))
    network = l0tre.load(net, input_shape=(1, 6, 6), device="cpu")
    image = torch.rand(1, 36)
    label = network.scores(image.view(1, 1, 6, 6)).argmax(1)
    search = prover_of(network).search(2, image, label, [None], [None], sums=True)
    assert not can_add(search.instance)
    assert not search.adds
