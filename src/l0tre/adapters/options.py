"""What other libraries' users can say to our attack when they make it."""

from collections.abc import Callable, Mapping
from typing import TypedDict, cast

import numpy as np
from torch import Tensor

from l0tre.attacks.drive import Progress
from l0tre.defaults import Method, Rounding
from l0tre.domain import Domain, Groups, Range

__all__ = ["AttackOptions", "checked"]


class AttackOptions(TypedDict, total=False):
    """Options of :func:`l0tre.attack_details` but for the inputs' own; each as described there."""

    method: Method
    unit: Groups | np.ndarray | Tensor
    mask: np.ndarray | Tensor | None
    low: Range
    high: Range
    domain: Domain | None
    rounding: Rounding
    budget: int
    time_budget: float | None
    seed: int
    memory_bytes: int
    progress: Progress | None
    stop: Callable[[], bool]


def checked(options: Mapping[str, object]) -> AttackOptions:
    """The same options, if all of them are known.

    Raises:
        TypeError: Naming one that is not, as Python does for any function.
    """
    known = AttackOptions.__annotations__
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise TypeError(f"the attack has no option {unknown!r}; it has {', '.join(known)}")
    return cast(AttackOptions, dict(options))
