"""The round-off of inputs with one changed group, from how far inner values were seen to move.

The largest values of whole layers, as in ``rounding.Peaks``, say little about a deep network: where any neuron may be
as large as the largest one, none is off, and errors grow through all of them. What a single group adds to a neuron is
small in most layers, so that a neuron that is far below zero for the image stays there. How far values move is kept for
each channel: of all positions together, as every group should move every position of a channel alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from l0tre.model.rounding import Error, RoundOff

__all__ = ["ChangeError"]

# So many times the largest move of a channel is allowed for, and so much of the largest one of all channels, so that
# moves later on seldom ask for more.
SPARE, SHARE = 2.0, 0.125


class ChangeError:
    """Errors of one network around some images.

    Attributes:
        rounding: The round-off around them.
        seen: By number of an operation that is not linear and which of its inputs, how far each channel was moved.
    """

    def __init__(self, rounding: RoundOff) -> None:
        self.rounding = rounding
        self.seen: dict[tuple[int, int], Tensor] = {}
        self._allowed: dict[tuple[int, int], Tensor] = {}
        self._error: Error | None = None

    def see(self, number: int, slot: int, change: Tensor, *, gate: bool, whole: Sequence[int] = ()) -> None:
        """Look at changes of what an operation reads, ``[rows, C, height, width]`` or ``[rows, ...]``.

        Args:
            number: See ``rounding.bends``.
            slot: Which of its inputs.
            change: The new values less the image's own. If they are not arranged as in the source, where imported
                operations were merged, all of them count for each.
            gate: Whether only growth counts (see ``rounding.gates``).
            whole: Shape of one sample's values, of which the change may be a window; default that of the change.
        """
        own = tuple(self.rounding.own[number][slot].shape[1:])
        same = own == tuple(whole or change.shape[1:])
        over: tuple[int, ...] = tuple(range(change.ndim))
        shape: tuple[int, ...] = ()
        if same and change.ndim == 4:
            over, shape = (0, 2, 3), (-1, 1, 1)
        elif same:
            over, shape = (0,), own
        most = change.amax(over)
        most = (most.clamp(min=0) if gate else torch.maximum(most, -change.amin(over))).reshape(shape)
        before = self.seen.get((number, slot))
        self.seen[number, slot] = most if before is None else torch.maximum(before, most)

    def error(self) -> Error:
        """What float32 can do to a score of any input that was looked at."""
        if self._error is None or not all(bool((most <= self._allowed[key]).all()) for key, most in self.seen.items()):
            self._allowed = {
                key: SPARE * torch.maximum(most, SHARE * most.amax()).double() for key, most in self.seen.items()
            }
            self._error = self.rounding.error_after(self._allowed)
        return self._error
