"""What a search by boxes asks about the images under proof, and the two ways to answer: by windows, and by forms."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from l0tre.certify.boxes.box_bounds import lower_bounds
from l0tre.certify.boxes.first_pass import disjoint_by_ranges, first_pass, joined, split_pairs
from l0tre.certify.boxes.form_bounds import FormInstance, form_bounds
from l0tre.certify.boxes.margin_errors import margin_errors, proved
from l0tre.certify.boxes.range_parts import FirstLook, full_boxes, halved
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import BoxNodes, join
from l0tre.certify.relax.instance import Instance

__all__ = ["Bounder", "FormBounder", "WindowBounder"]

SAMPLE = 256  # sets that tell how wide boxes can be to begin with
WORTH = 0.25  # of these must be proved: halving every value's range makes several boxes of each
MOST = 2**22  # boxes of an image to begin with


class Bounder(Protocol):
    """Images ready to be bounded over boxes."""

    @property
    def instance(self) -> Instance:
        """The images."""

    @property
    def pace(self) -> dict[int, float]:
        """Seconds that the last first pass of each level took for an image; kept for all images of a network."""

    def fits(self, t: int) -> int:
        """How many boxes of ``t`` groups the memory budget has room for."""

    def first_pass(self, images: Tensor, t: int) -> FirstLook:
        """What is proved of all sets of ``t`` groups of some images, int64 ``[images]``, and all else as boxes."""

    def bound(self, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
        """Lower bounds of the margins ``[nodes, rivals]``, and the coefficients of linear ones by each value's ``u``.

        What rounding can cause is taken off.

        Coefficients are ``[nodes, rivals, t * width]``, ``u`` from -1 to 1.
        """

    def smaller(self) -> "Bounder":
        """The same with half the memory."""


@dataclass(frozen=True)
class WindowBounder:
    """By windows, where changes stay local up to a dense layer.

    Attributes:
        windowed: Network and images.
    """

    windowed: Windowed

    @property
    def instance(self) -> Instance:
        """See :class:`Bounder`."""
        return self.windowed.instance

    @property
    def pace(self) -> dict[int, float]:
        """See :class:`Bounder`."""
        return self.windowed.local.pace

    def fits(self, t: int) -> int:
        """See :class:`Bounder`."""
        per_node = 8 * 8 * self.windowed.weights.shape[-1] * (1 + t * self.instance.members.shape[1])
        return max(1, self.windowed.budget // per_node)

    def first_pass(self, images: Tensor, t: int) -> FirstLook:
        """See :class:`Bounder`."""
        return first_pass(self.windowed, images, t)

    def bound(self, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
        """See :class:`Bounder`."""
        bounds, forms = lower_bounds(self.windowed, nodes)
        return bounds - margin_errors(self.instance, nodes.image, nodes.cells.shape[1]), forms[..., 1:]

    def smaller(self) -> "WindowBounder":
        """See :class:`Bounder`."""
        return WindowBounder(replace(self.windowed, budget=max(1, self.windowed.budget // 2)))


@dataclass(frozen=True)
class FormBounder:
    """By forward forms, on any graph.

    Attributes:
        forms: Network and images.
        windowed: The same ready for windows, where a dense layer follows them: for pairs that never meet before it.
    """

    forms: FormInstance
    windowed: Windowed | None = None

    @property
    def instance(self) -> Instance:
        """See :class:`Bounder`."""
        return self.forms.instance

    @property
    def pace(self) -> dict[int, float]:
        """See :class:`Bounder`."""
        return self.forms.forward.pace

    def fits(self, t: int) -> int:
        """See :class:`Bounder`."""
        # What is carried is cut into parts by itself: here only what is kept of each box counts.
        values = t * self.instance.members.shape[1]
        per_node = 8 * (4 * values + self.instance.rows.shape[1] * (3 + 2 * values))
        return max(1, self.forms.budget // per_node)

    def first_pass(self, images: Tensor, t: int) -> FirstLook:
        """See :class:`Bounder`."""
        tree = self.instance.tree
        cells = (tree.order >= 0).nonzero()[:, 0] + tree.slots
        sets = torch.combinations(torch.arange(len(cells), device=cells.device), t)
        if t == 2 and self.windowed is not None and not self.windowed.local.flat:
            close, apart = split_pairs(self.windowed, cells, sets)
            found = disjoint_by_ranges(self.windowed, images, cells, apart)
            return joined([self._boxes(images, cells[close], t), *found], [images, *images[:, None]], images)
        return self._boxes(images, cells[sets], t)

    def _boxes(self, images: Tensor, sets: Tensor, t: int) -> FirstLook:
        """Sets of groups as boxes, none of them proved."""
        left, bounded = [], []
        for image in images.tolist():
            whole = full_boxes(self.instance, image, sets)
            times, tried = self._halvings(whole, t)
            left.append(halved(whole, times))
            bounded.append(tried)
        return FirstLook([Fraction(0)] * len(images), join(left), bounded)

    def bound(self, nodes: BoxNodes) -> tuple[Tensor, Tensor]:
        """See :class:`Bounder`."""
        return form_bounds(self.forms, nodes)

    def smaller(self) -> "FormBounder":
        """See :class:`Bounder`."""
        forms = replace(self.forms, budget=max(1, self.forms.budget // 2))
        windowed = self.windowed
        return FormBounder(forms, None if windowed is None else replace(windowed, budget=max(1, windowed.budget // 2)))

    def _halvings(self, whole: BoxNodes, t: int) -> tuple[int, int]:
        """How often boxes are halved before they are worth to be bounded, from a sample; and how many were bounded."""
        if t == 1 or len(whole) <= SAMPLE:  # few enough to be bounded in any case
            return 0, 0
        step = len(whole) // SAMPLE
        sample, values, tried = whole.pick(slice(step // 2, None, step)), t * whole.low.shape[2], 0
        times = 0
        while times + values <= 2 * values and len(whole) * 2 ** (times + values) <= MOST:
            parts = halved(sample, times)
            tried += len(parts)
            safe = proved(self.bound(parts)[0])
            if float(safe.double().mean()) >= WORTH:
                break
            times += values
        return times, tried
