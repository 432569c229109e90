"""Attacks of the Adversarial Robustness Toolbox (ART). They compute in numpy, a batch at a time."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.adapters.peers.peer import count_classes, import_peer, keep_best, seeded

__all__ = ["carlini_l0", "classifier", "jsma", "load"]

TARGETS = 9  # JSMA is a targeted attack: it is run for so many classes, the best-scoring ones first
JSMA_QUERIES = 3  # of a step: a forward and a backward pass for the gradient, a forward pass for the decision
CARLINI_STEPS = 3  # gradient steps of a round
CARLINI_RATE = 1.0  # first step size, which a line search halves and doubles
CARLINI_CONSTANT = 10.0  # weight of the decision against the distance


def load() -> ModuleType:
    """``art.attacks.evasion``."""
    import_peer("art.estimators.classification")
    return import_peer("art.attacks.evasion")


def classifier(model: nn.Module, images: Tensor, shape: tuple[int, ...], classes: int) -> Any:
    """ART's view of a network on the device of ``images``, inputs in [0, 1]."""
    return import_peer("art.estimators.classification").PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=shape,
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if images.device.type == "cuda" else "cpu",
    )


@seeded
def jsma(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:
    """JSMA, two values a step to the top (theta = 1) or to the bottom (-1), for each target; the best is kept."""
    with torch.no_grad():
        scores = model(images)
    classes = scores.shape[1]
    order = scores.scatter(1, labels[:, None], float("-inf")).argsort(dim=1, descending=True)
    targets = order[:, : min(TARGETS, classes - 1)]
    steps = max(1, budget // (2 * targets.shape[1] * JSMA_QUERIES))
    share = min(1.0, max(2 * (steps - 1), 1) / images[0].numel())
    estimator = classifier(model, images, tuple(images.shape[1:]), classes)
    best = images.clone()
    for theta in (1.0, -1.0):
        attack = load().SaliencyMapMethod(estimator, theta=theta, gamma=share, batch_size=len(images), verbose=False)
        # ART takes one backward pass of the whole batch for every class that is a target in it: one class at a time.
        for target in targets.unique().tolist():
            rows = (targets == target).any(1).nonzero()[:, 0]
            part = images[rows]
            wanted = torch.full((len(rows),), target).numpy()
            tried = torch.from_numpy(attack.generate(part.cpu().numpy(), wanted)).to(images)
            best[rows] = keep_best(model, part, labels[rows], best[rows], tried)
    return best


@seeded
def carlini_l0(model: nn.Module, images: Tensor, labels: Tensor, budget: int) -> Tensor:  # noqa: ARG001
    """Carlini and Wagner, L0: fix one value a round until the L2 attack fails on the rest.

    ART takes as many rounds as the second axis is long and needs four axes, so the values lie along it. Its warm start
    would keep fixed values changed, so each round starts at the original. There is no knob for the number of rounds:
    the budget is ignored.
    """
    count, values = len(images), images[0].numel()
    flat = _Reshaped(model, tuple(images.shape[1:]))
    shape = (values, 1, 1)
    attack = load().CarliniL0Method(
        classifier(flat, images, shape, count_classes(model, images)),
        learning_rate=CARLINI_RATE,
        binary_search_steps=1,
        max_iter=CARLINI_STEPS,
        initial_const=CARLINI_CONSTANT,
        warm_start=False,
        batch_size=count,
        verbose=False,
    )
    found = attack.generate(images.reshape(count, *shape).cpu().numpy(), labels.cpu().numpy())
    return torch.from_numpy(found).to(images).reshape(images.shape)


class _Reshaped(nn.Module):
    """The network on inputs of another shape."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x.reshape(-1, *self.shape))
        return scores
