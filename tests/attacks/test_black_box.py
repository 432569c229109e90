"""Networks without a graph: numpy functions, torch functions with and without gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.api.attack import attack_details
from l0tre.attacks.auto import METHODS
from l0tre.attacks.meter import has_gradients
from l0tre.defaults import Method
from l0tre.domain import make_domain
from l0tre.errors import ConfigError
from tests.attacks.cases import check_result, make_linear

SHAPE = (1, 4, 4)
CASE = make_linear(6, SHAPE, 3)
WEIGHT, BIAS = (parameter.detach() for parameter in CASE.module[1].parameters())
GRADIENTS = [name for name, method in METHODS.items() if method.gradients]


def with_numpy(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.asarray(x).reshape(len(x), -1) @ WEIGHT.numpy().T + BIAS.numpy()
    return result


def with_torch(x: Tensor) -> Tensor:
    return x.flatten(1) @ WEIGHT.T + BIAS


def without_graph(x: Tensor) -> Tensor:
    with torch.no_grad():
        return with_torch(x)


def of_parameters_only(x: Tensor) -> Tensor:
    """Scores that want gradients, but not with respect to the input."""
    return with_torch(x.detach()) * nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("function", [with_numpy, without_graph, of_parameters_only])
def test_without_gradients_auto_works_and_says_what_it_left_out(function: object) -> None:
    result = attack_details(function, CASE.images, CASE.labels, budget=800)  # type: ignore[arg-type]
    check_result(CASE.module, CASE.images, result, make_domain(SHAPE))
    assert int(result.backwards.sum()) == 0
    assert all(distance == CASE.distance(row) for row, distance in enumerate(result.distance.tolist()))
    assert set(result.methods) <= {"greedy", "search", "exact"}
    (note,) = result.notes
    assert note.startswith(f"{function.__name__} gives no gradients")  # type: ignore[attr-defined]
    assert note.endswith(": linear, saliency, local, values")


@pytest.mark.parametrize("method", GRADIENTS)
def test_a_method_that_needs_gradients_is_refused(method: Method) -> None:
    with pytest.raises(ConfigError, match=f"{method} needs gradients.*use auto, greedy, search or exact"):
        attack_details(with_numpy, CASE.images, CASE.labels, method=method)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in GRADIENTS])
def test_a_method_that_needs_none_runs_alone(method: Method) -> None:
    result = attack_details(with_numpy, CASE.images, CASE.labels, method=method, budget=500)
    check_result(CASE.module, CASE.images, result, make_domain(SHAPE))
    assert result.notes == ()


@pytest.mark.parametrize("method", ["auto", "local"])
def test_gradients_of_a_torch_function_are_used(method: Method) -> None:
    result = attack_details(with_torch, CASE.images, CASE.labels, method=method, budget=1000)
    check_result(CASE.module, CASE.images, result, make_domain(SHAPE))
    assert bool((result.backwards > 0).all())
    assert result.notes == ()
    assert result.distance.tolist() == [CASE.distance(row) for row in range(len(CASE.images))]


class Squares(nn.Module):
    """A product of two values, which has no graph here, but has gradients."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.stack([(flat * flat).sum(1), torch.full((len(x),), 4.0)], 1)


def test_gradients_of_a_module_without_a_graph_are_used() -> None:
    network = l0tre.load(Squares(), input_shape=SHAPE, device="cpu")
    assert network.graph is None
    assert has_gradients(network)
    images = torch.full((1, *SHAPE), 0.6)
    result = attack_details(network, images, budget=1000)
    assert int(result.backwards.sum()) > 0
    assert result.distance.tolist() == [5]  # 16 * 0.36 - 4 = 1.76, and a pixel put to zero takes 0.36


def test_values_alone_say_that_they_find_nothing() -> None:
    result = attack_details(CASE.network, CASE.images, CASE.labels, method="values", budget=100)
    assert not bool(result.found.any())
    assert "use auto" in result.notes[0]
