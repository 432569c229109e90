"""Our attack as one of ART: ``L0TREAttack(classifier).generate(x, y)``."""

from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor

from l0tre.adapters.options import AttackOptions, checked
from l0tre.api.attack import attack_details
from l0tre.api.load import load
from l0tre.errors import ConfigError, require
from l0tre.model.network import Network

__all__ = ["L0TREAttack"]

attacks = require("art.attacks", "art")
estimators = require("art.estimators", "art")
classification = require("art.estimators.classification", "art")
preprocessing = require("art.preprocessing.standardisation_mean_std", "art")
utilities = require("art.utils", "art")


class L0TREAttack(attacks.EvasionAttack):  # type: ignore[misc, name-defined]
    """Change as few pixels (or features) as possible until the decision changes.

    A ``PyTorchClassifier`` without preprocessing is attacked by its gradients, any other classifier by its scores.
    """

    attack_params: ClassVar[list[str]] = [*attacks.EvasionAttack.attack_params, "targeted", "options"]
    _estimator_requirements = (estimators.BaseEstimator, classification.ClassifierMixin)

    def __init__(self, classifier: Any, *, targeted: bool = False, **options: Unpack[AttackOptions]) -> None:
        """Set the attack up.

        Args:
            classifier: Any classifier of ART; its ``clip_values`` are the domain.
            targeted: Whether labels are wanted decisions instead of those to leave.
            options: Those of :func:`l0tre.attack_details`: ``method``, ``unit``, ``budget``, ``seed``, ...

        Raises:
            TypeError: If an option is not known.
        """
        super().__init__(estimator=classifier)
        self._targeted = targeted
        self.options = checked(options)

    def generate(self, x: np.ndarray, y: np.ndarray | None = None, **kwargs: Any) -> np.ndarray:
        """Attack a batch.

        Args:
            x: ``[n, *shape]``.
            y: Labels as numbers ``[n]`` or one-hot ``[n, classes]``; default the classifier's own decisions.
            kwargs: More options, for this call.

        Returns:
            float32 ``[n, *shape]``: adversarial inputs, the original where none was found.

        Raises:
            ConfigError: If target classes or the range of the values are missing.
            TypeError: If an option is not known.
        """
        if y is None and self.targeted:
            raise ConfigError("a targeted attack needs target classes: give y")
        labels = None
        if y is not None:
            classes = self.estimator.nb_classes
            numbers = utilities.check_and_transform_label_format(y, nb_classes=classes, return_one_hot=False)
            labels = torch.from_numpy(np.asarray(numbers).reshape(-1).astype(np.int64))
        options = checked({**self.options, **kwargs})
        if "domain" not in options:
            options = checked({**self._range(), **options})
        images = torch.from_numpy(np.asarray(x, dtype=np.float32))
        network = _network(self.estimator, tuple(images.shape[1:]))
        found: np.ndarray = attack_details(
            network, images, labels, targeted=self.targeted, **options
        ).adversarial.numpy()
        return found

    def _range(self) -> dict[str, Any]:
        clip = self.estimator.clip_values
        if clip is None and not {"low", "high"} <= self.options.keys():
            raise ConfigError("the classifier has no clip_values: give them, or low= and high= to the attack")
        return {} if clip is None else {"low": np.asarray(clip[0]), "high": np.asarray(clip[1])}


def _network(classifier: Any, shape: tuple[int, ...]) -> Network:
    if isinstance(classifier, classification.PyTorchClassifier) and _is_plain(classifier):
        return load(classifier.model, input_shape=shape, device=str(classifier.device))

    def scores(x: Tensor) -> np.ndarray:
        result: np.ndarray = classifier.predict(x.detach().numpy())
        return result

    return load(scores, input_shape=shape)


def _is_plain(classifier: Any) -> bool:
    """Whether ART hands inputs to the model as they are: its default is a standardisation by mean 0 and deviation 1."""
    return all(
        isinstance(step, preprocessing.StandardisationMeanStdPyTorch)
        and bool(np.all(np.asarray(step.mean) == 0) and np.all(np.asarray(step.std) == 1))
        for step in classifier.preprocessing_operations
    )
