"""Limits before activations: they tell exactly when the output exceeds a threshold, or there are none."""

import pytest
import torch

from l0tre.model.graph import Operation, run_operation
from l0tre.testgen.before_activation import limits_before

THRESHOLDS = torch.tensor([0.0, 0.3, 0.95], dtype=torch.float64)


def activation(kind: str, **attributes: float) -> Operation:
    return Operation(kind, (0,), (3,), {}, attributes)


@pytest.mark.parametrize(
    "operation",
    [
        activation("relu"),
        activation("leaky_relu", slope=0.1),
        activation("clip", low=-1.0, high=0.9),
        activation("clip", low=0.1, high=6.0),
        activation("sigmoid"),
        activation("tanh"),
        activation("gelu"),
        activation("silu"),
    ],
    ids=lambda operation: operation.kind,
)
def test_what_is_above_the_limit_exceeds_the_threshold(operation: Operation) -> None:
    limits = limits_before(operation, THRESHOLDS)
    assert limits is not None
    for value in torch.linspace(-9, 9, 777, dtype=torch.float64):
        values = value.expand(3)
        assert torch.equal(run_operation(operation, values[None])[0] > THRESHOLDS, values > limits)


def test_thresholds_that_are_exceeded_twice_have_no_limit() -> None:
    assert limits_before(activation("gelu"), torch.tensor([0.0, -0.1], dtype=torch.float64)) is None
