"""Attacks of adv-lib (the package adv-lib imports as ``adv_lib``). All work on whole batches."""

import sys
from types import ModuleType

import torch
from torch import Tensor, nn

from l0tre.adapters.peers.peer import import_peer, seeded

__all__ = ["fmn", "load", "pdpgd", "sigma_zero", "vfga"]

VFGA_SAMPLES = 10  # its default: twice as many forward passes a step, half of them for either direction
NAMES = ("visdom", "torchvision")


def load() -> ModuleType:
    """``adv_lib.attacks``.

    Its modules import visdom (for plots) and torchvision (for LPIPS), which the attacks here never touch and which are
    hard to install beside a recent torch: whichever is not loaded already is stood in for, for the time of the import.
    """
    if "adv_lib.attacks" in sys.modules:
        return sys.modules["adv_lib.attacks"]
    missing = [name for name in NAMES if name not in sys.modules]
    for name in missing:
        stand_in = ModuleType(name)
        stand_in.models = None  # type: ignore[attr-defined]  # what adv_lib imports from torchvision
        sys.modules[name] = stand_in
    try:
        return import_peer("adv_lib.attacks")
    finally:
        for name in missing:
            del sys.modules[name]


@seeded
def sigma_zero(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """sigma-zero (ICLR 2025): one forward and one backward pass a step."""
    found: Tensor = load().sigma_zero(model, images, labels, num_steps=max(1, budget // 2))
    return found


@seeded
def fmn(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Fast minimum norm, L0: one forward and one backward pass a step."""
    found: Tensor = load().fmn(model, images, labels, norm=0, steps=max(1, budget // 2))
    return found


@seeded
def pdpgd(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Primal-dual proximal gradient descent, L0 by the proximal operator of L2/3, which its authors prefer for L0."""
    steps = max(2, budget // 2)  # it divides by steps - 1
    found: Tensor = load().pdpgd(model, images, labels, norm=0, num_steps=steps, proximal_operator=23)
    return found


@seeded
def vfga(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """Voting folded Gaussian attack: a step changes one value; it ends when the decision changes."""
    steps = max(1, budget // (2 + 2 * VFGA_SAMPLES))
    # The candidates of a step need no gradient, which adv-lib would record; its own gradient needs one.
    found: Tensor = load().vfga(_Lean(model), images, labels, targeted=False, max_iter=steps, n_samples=VFGA_SAMPLES)
    return found


class _Lean(nn.Module):
    """Records a graph only for inputs that ask for gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad):
            scores: Tensor = self.model(x)
        return scores
