"""The paper's networks with random weights: speed does not depend on them."""

import torch
from torch import nn

from l0tre import zoo

__all__ = ["cifar_attack", "dnn_0", "sdnn"]


def sdnn() -> nn.Module:
    """Case study one, 14x14, one dense layer."""
    torch.manual_seed(0)
    return zoo.build("sdnn")


def dnn_0() -> nn.Module:
    """Case study one, 28x28, two dense layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def cifar_attack() -> nn.Module:
    """Case study two, 32x32 with three channels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 25, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
