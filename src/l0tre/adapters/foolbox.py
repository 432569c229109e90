"""Our attack as one of foolbox: ``L0TREAttack()(model, images, labels, epsilons=None)``."""

from typing import Any, Unpack

import torch
from torch import Tensor

from l0tre.adapters.options import AttackOptions, checked
from l0tre.api.attack import attack_details
from l0tre.errors import ConfigError, require
from l0tre.model.footprint import sample_bytes
from l0tre.model.network import Network

__all__ = ["L0TREAttack"]

foolbox = require("foolbox", "foolbox")
eagerpy = require("eagerpy", "foolbox")


class L0TREAttack(foolbox.attacks.base.MinimizationAttack):  # type: ignore[misc, name-defined]
    """Change as few pixels (or features) as possible until the decision changes.

    Foolbox cannot clip to an L0 distance: call it with ``epsilons=None``, or with distances that it keeps below.
    """

    distance = foolbox.distances.l0

    def __init__(self, **options: Unpack[AttackOptions]) -> None:
        """Set the attack up.

        Args:
            options: Those of :func:`l0tre.attack_details`: ``method``, ``unit``, ``budget``, ``seed``, ...

        Raises:
            TypeError: If an option is not known.
        """
        self.options = checked(options)

    def run(self, model: Any, inputs: Any, criterion: Any, *, early_stop: float | None = None, **kwargs: Any) -> Any:
        """Attack a batch.

        Args:
            model: A ``foolbox.PyTorchModel``; its bounds are the domain.
            inputs: The batch, a torch tensor or eagerpy's view of one.
            criterion: Labels, ``Misclassification`` or ``TargetedMisclassification``.
            early_stop: Foolbox's; the attack has none and looks for the fewest changes anyway.
            kwargs: None are known.

        Returns:
            Adversarial inputs like ``inputs``, the original where none was found.

        Raises:
            ConfigError: If the model is not one of PyTorch, or the criterion another one.
        """
        del early_stop
        foolbox.attacks.base.raise_if_kwargs(kwargs)
        batch, restore = eagerpy.astensor_(inputs)
        images = batch.raw
        if not isinstance(images, Tensor):
            raise ConfigError(f"l0tre attacks PyTorch models, this one takes {type(images).__name__}: use PyTorchModel")
        goal = foolbox.attacks.base.get_criterion(criterion)
        targeted = isinstance(goal, foolbox.criteria.TargetedMisclassification)
        if not targeted and not isinstance(goal, foolbox.criteria.Misclassification):
            raise ConfigError(f"the criterion {goal!r} is unknown: give labels, or target classes")
        labels = (goal.target_classes if targeted else goal.labels).raw
        options = self.options
        if "domain" not in options:
            options = checked({"low": float(model.bounds.lower), "high": float(model.bounds.upper), **options})
        details = attack_details(_network(model, images), images.cpu(), labels.cpu(), targeted=targeted, **options)
        return restore(eagerpy.astensor(details.adversarial.to(images)))


def _network(model: Any, images: Tensor) -> Network:
    """The model as it is, normalisation included, on the device of the images."""
    device, shape = images.device, tuple(images.shape[1:])

    def forward(x: Tensor) -> Tensor:
        scores: Tensor = model(x)
        return scores.float()

    def reference(x: Tensor) -> Tensor:
        return forward(x.to(device)).cpu()

    with torch.no_grad():
        classes = forward(images[:1]).shape[1]
    size = sample_bytes(forward, shape, device)
    return Network(
        forward, reference, shape, classes, device, None, "foolbox", note="foolbox hides it", sample_bytes=size
    )
