"""Our attribution with captum's interface, to stand beside its methods."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l0tre.api.load import load
from l0tre.api.saliency import saliency
from l0tre.domain import Domain, make_domain
from l0tre.errors import ConfigError, require
from l0tre.model.network import Network
from l0tre.model.sources import Source

__all__ = ["L0Sensitivity"]


def _base() -> type:
    """The class of captum's methods that look at changed inputs."""
    base: type = require("captum.attr", "captum").PerturbationAttribution
    return base


class L0Sensitivity:
    """How far each pixel alone can lower the target's score, over all values that it can take.

    ``attribute`` takes what captum's methods take and returns attributions of the inputs' shape. Measured, not
    estimated; all channels of a pixel have the pixel's number.

    Attributes:
        forward_func: The network, as it was given.
        loaded: The same, once inputs told its shape.
    """

    def __new__(cls, *_: Any, **__: Any) -> "L0Sensitivity":
        """An instance that captum's own tools (``NoiseTunnel`` and the metrics) take for one of its methods."""
        base = _base()
        kind = cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__doc__": cls.__doc__})
        return object.__new__(kind)

    def __init__(self, forward_func: Source, *, low: float = 0.0, high: float = 1.0, device: str = "auto") -> None:
        """Take a network.

        Args:
            forward_func: A module, a function from a batch to scores, or anything that :func:`l0tre.load` takes.
            low: Smallest value of an input.
            high: Largest value of an input.
            device: Where to compute.
        """
        self.forward_func = forward_func
        self.low, self.high, self.device = low, high, device
        self.loaded: Network | None = forward_func if isinstance(forward_func, Network) else None

    def attribute(
        self,
        inputs: Tensor,
        target: int | Tensor | Sequence[int] | None = None,
        *,
        neuron: str | None = None,
        signed: bool = False,
        coarse: bool = False,
        together: int = 0,
        domain: Domain | None = None,
        perturbations_per_eval: int = 0,
    ) -> Tensor:
        """Attributions of a batch.

        Args:
            inputs: float32 ``[batch, *shape]``.
            target: The class of all, or one for each; default the network's decisions.
            neuron: See :func:`l0tre.saliency`, as all that follows.
            signed: Likewise.
            coarse: Likewise.
            together: Likewise.
            domain: Likewise; default all pixels, from ``low`` to ``high``.
            perturbations_per_eval: How many changed inputs are looked at together at the most; 0 for as many as
                memory allows.

        Returns:
            float32, in the inputs' shape and on their device.
        """
        if not isinstance(inputs, Tensor):
            raise ConfigError("several tensors as one input are not supported: give one tensor")
        shape = tuple(inputs.shape[1:])
        if self.loaded is None or self.loaded.input_shape != shape:
            self.loaded = load(self.forward_func, input_shape=shape, device=self._where())
        where = domain or make_domain(shape, low=self.low, high=self.high)
        return saliency(
            self.loaded,
            inputs.detach(),
            target,
            neuron=neuron,
            signed=signed,
            coarse=coarse,
            together=together,
            domain=where,
            memory_bytes=perturbations_per_eval * self.loaded.sample_bytes,
        )

    def _where(self) -> str:
        """The device of a module's parameters, unless the user chose one."""
        if self.device != "auto" or not isinstance(self.forward_func, nn.Module):
            return self.device
        return str(next(self.forward_func.parameters(), torch.empty(0)).device)

    def has_convergence_delta(self) -> bool:
        """Sums of attributions mean nothing here."""
        return False

    @property
    def multiplies_by_inputs(self) -> bool:
        """Attributions are changes of the score, not slopes."""
        return True
