"""The paper's networks with random weights: speed does not depend on them."""

from torch import nn

from l0tre import zoo

__all__ = ["cifar_attack", "dnn_0", "sdnn"]


def sdnn() -> nn.Module:
    """Case study one, 14x14, one dense layer."""
    return zoo.build("sdnn", seed=0)


def dnn_0() -> nn.Module:
    """Case study one, 28x28, two dense layers."""
    return zoo.build("dnn-0", seed=0)


def cifar_attack() -> nn.Module:
    """Case study two, 32x32 with three channels."""
    return zoo.build("cifar10-attack", seed=0)
