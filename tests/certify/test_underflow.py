"""Numbers that float64 cannot hold any more: what is lost there is in the rounding terms of prover and checker."""

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.certify.checker.margins import LEAST, make_bounder
from l0tre.certify.relax.plan import FLOOR, make_plan
from l0tre.domain import make_domain
from l0tre.model.graph import Graph, GraphBuilder

DOWN, REST, UP = [2.0**-126] * 8, 3.45 * 2.0**-66, [2.0**126] * 8  # together 3.45 * 2**-1074, then 2**1008


class Chain(nn.Module):
    """A product of weights that passes through the numbers below 2**-1022; the rival's score is the product."""

    def __init__(self, own: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for weight in [*DOWN, REST, *UP]:
            layer = nn.Linear(1, 1, bias=False)
            layer.weight.data.fill_(weight)
            layers += [layer, nn.ReLU()]
        self.chain, self.out = nn.Sequential(*layers), nn.Linear(1, 2)
        self.out.weight.data = torch.tensor([[0.0], [1.0]])
        self.out.bias.data = torch.tensor([own, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.chain(x))
        return result


@pytest.mark.slow
def test_a_chain_through_subnormal_numbers_proves_nothing(tmp_path: Path) -> None:
    own = 3.2 * 2.0**-66
    module = Chain(own)
    gain = Fraction(1)
    for weight in module.chain.parameters():
        gain *= Fraction(float(weight))
    assert Fraction(float(module.out.bias[0])) < gain  # in real numbers the rival wins at 1
    network = l0tre.load(module, input_shape=(1,), device="cpu")
    bounds = l0tre.evaluate(network, torch.ones(1, 1), [0], max_t=1, guarantee="certified", attack_queries=0).images[0]
    assert bounds.lower == 0
    certificate = tmp_path / "one.l0cert"
    assert l0tre.verify(network, torch.ones(1), 0, radius=1, certificate=certificate).answer != "safe"


def chain(weights: list[float], *, curved: bool = True) -> Graph:
    builder, top = GraphBuilder((1,)), 0
    for weight in weights:
        tensors = {"weight": torch.tensor([[weight]], dtype=torch.float64)}
        top = builder.add("linear", [top], tensors)
        top = builder.add("relu", [top]) if curved else top
    return builder.build(top)


@pytest.mark.parametrize("curved", [True, False])
@pytest.mark.parametrize(
    "weights",
    [[2.0**-600, 2.0**-474, 2.0**1000], [2.0**1000, 2.0**-537, 2.0**-537]],
    ids=["in a value", "in a coefficient"],
)
def test_both_rounding_terms_cover_what_is_lost(weights: list[float], curved: bool) -> None:
    """A product of 3 * 2**-1074 by 2**1000: computed backwards or forwards it is off by up to 2**-75."""
    graph, domain = chain(weights, curved=curved), make_domain((1,))
    slack = float(make_plan(graph, domain, torch.device("cpu")).slack[-1])
    again = float(make_bounder(graph, torch.ones(1), domain, torch.arange(1), torch.device("cpu"), 2**20).slack[-1])
    assert min(slack, again) >= 2.0**-75
    # No ordinary network pays for it.
    ordinary = chain([0.5, 2.0])
    assert float(make_plan(ordinary, domain, torch.device("cpu")).slack[-1]) < 1e-10
    assert max(FLOOR, LEAST) < 1e-280


def test_a_bias_that_cancels_counts_with_what_it_was_summed_from() -> None:
    """1e8 and -1e8 + 1 give 1; the error of that sum is one of 1e8."""
    builder = GraphBuilder((1,))
    wide = {"bias": torch.tensor([1.0], dtype=torch.float64), "bias_terms": torch.tensor([2e8], dtype=torch.float64)}
    graph = builder.build(builder.add("linear", [0], {"weight": torch.ones(1, 1), **wide}))
    domain = make_domain((1,))
    slack = float(make_plan(graph, domain, torch.device("cpu")).slack[-1])
    again = float(make_bounder(graph, torch.ones(1), domain, torch.arange(1), torch.device("cpu"), 2**20).slack[-1])
    assert min(slack, again) >= 2e8 * 2.0**-52
