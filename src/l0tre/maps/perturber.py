"""What changes of single groups do to the observed number, any groups to any of their values."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from l0tre.admission import admit
from l0tre.domain import Domain
from l0tre.errors import ModelError
from l0tre.halting import felt
from l0tre.locality.differences import FLOAT32, HALF
from l0tre.locality.group_changes import GroupChanges
from l0tre.maps.observed import Observed
from l0tre.memory import Portions
from l0tre.rules import Free
from l0tre.tuning import DEFAULT_TUNING, Tuning

__all__ = ["Perturber"]


class Perturber:
    """Changes single groups of one image and looks what becomes of the observed number.

    Attributes:
        observed: The number.
        domain: The groups, on the network's device.
        grid: float32 ``[groups, points, width]``, the values that each group takes, likewise.
        image: float32 ``[values]``, likewise.
        base: The number for the unchanged image.
        pulse: Called before every batch; may raise ``Halted``.
        evaluations: Forward passes in float32 so far, whole or in part.
        ranked: Likewise in half precision.
    """

    def __init__(
        self,
        observed: Observed,
        domain: Domain,
        grid: Tensor,
        image: Tensor,
        budget: int,
        *,
        pulse: Callable[[], None] = lambda: None,
        tuning: Tuning = DEFAULT_TUNING,
        halves: bool = True,
    ) -> None:
        """Get ready for one image.

        Args:
            observed: The number.
            domain: The groups.
            grid: float32 ``[groups, points, width]``.
            image: float32 ``input_shape``.
            budget: Bytes that a batch may take.
            pulse: Called before every batch; may raise ``Halted``.
            tuning: How large batches are.
            halves: Whether half precision may be used, where the device is fast at it.

        Raises:
            ModelError: If the number of the unchanged image is not finite.
        """
        device = observed.network.device
        self.observed, self.domain, self.grid = observed, domain.to(device), grid.to(device)
        self.image = image.to(device).flatten()
        self.pulse, self.budget, self.tuning = pulse, budget, tuning
        self.device, self.portions = device, Portions(budget, tuning, device)
        self.evaluations = self.ranked = 0
        self.base = float(observed.number(image.to(device)[None])[0])
        if not math.isfinite(self.base):
            raise ModelError(f"the {observed.words} is {self.base} for the input itself: check the model")
        self.exact: GroupChanges | None = None
        self.fast: GroupChanges | None = None
        # Lists of values and directions need the whole input to be looked at.
        if observed.graph is not None and isinstance(domain.rules, Free):
            around = (observed.graph, self.domain, self.grid, image.to(device), self.portions)
            self.exact = GroupChanges(*around, FLOAT32, self._pulse)
            if halves and device.type == "cuda":
                self.fast = GroupChanges(*around, HALF, self._pulse)

    def _pulse(self) -> None:
        self.pulse()

    def around(self, image: Tensor) -> "Perturber":
        """The same of another image, float32 ``[values]`` on the network's device; its evaluations go on from these."""
        other = Perturber(
            self.observed, self.domain, self.grid, image.reshape(self.domain.shape), self.budget, pulse=self.pulse,
            tuning=self.tuning, halves=False,
        )  # fmt: skip
        other.evaluations = self.evaluations
        return other

    @property
    def corners(self) -> Tensor | None:
        """Where groups are on the map, see ``GroupChanges``; ``None`` if that is of no use."""
        return None if self.exact is None else self.exact.corners

    @property
    def halves(self) -> bool:
        """Whether half precision can be asked for."""
        return self.fast is not None

    def changes(self, groups: Tensor, points: Tensor, *, half: bool = False) -> Tensor:
        """The observed number less that of the unchanged image.

        Args:
            groups: int64 ``[rows]`` on the CPU.
            points: int64 ``[rows]`` on the CPU: which of its values each group takes.
            half: In half precision, to rank with; its numbers can be infinite or NaN.

        Returns:
            float32 ``[rows]`` on the CPU.

        Raises:
            Halted: If the pulse does.
            ModelError: If the network gives NaN or infinity, in float32.
        """
        if half:
            self.ranked += len(groups)
        else:
            self.evaluations += len(groups)
        changes = self.fast if half else self.exact
        with felt(self.pulse):
            found = self._whole(groups, points) if changes is None else changes.outputs(groups, points)[:, 0]
        if not half and not bool(torch.isfinite(found).all()):
            raise ModelError(
                f"the {self.observed.words} is NaN or infinite for an input with one changed {self.domain.unit}: "
                "check the model"
            )
        return found.cpu()

    def _whole(self, groups: Tensor, points: Tensor) -> Tensor:
        """All rows by whole forward passes, float32 ``[rows]``."""
        found = torch.empty(len(groups), device=self.device)

        def do(start: int, stop: int, _: int) -> None:
            self.pulse()
            some = slice(start, stop)
            found[some] = self.observed.number(self.inputs(groups[some], points[some])) - self.base

        self.portions.work_off(len(groups), self.observed.network.sample_bytes, do)
        return found

    def inputs(self, groups: Tensor, points: Tensor) -> Tensor:
        """Whole changed inputs ``[rows, *shape]``; with several groups a row, ``[rows, t]`` each, all of them."""
        groups, points = groups.to(self.device), points.to(self.device)
        own = self.image.expand(len(groups), -1)
        members, values = self.domain.members[groups].flatten(1), self.grid[groups, points].flatten(1)
        return admit(self.domain, own, own.scatter(1, members, values)).reshape(-1, *self.domain.shape)

    def together(self, groups: Tensor, points: Tensor) -> Tensor:
        """As :meth:`changes`, for sets of groups: int64 ``[rows, t]`` each."""
        self.evaluations += len(groups)
        return self._whole(groups, points).cpu()
