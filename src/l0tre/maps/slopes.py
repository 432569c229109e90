"""What a change of a group will do, from what other changes of it and of its neighbours did.

A group that goes to a value moves the number about in proportion to how far it goes, and neighbours alike. So for every
group slopes are fitted: one for each of its values on the way up and one on the way down, by least squares over all
that was looked at nearby, in whatever colour. They are secants to the values that a group really takes; derivatives at
the image say next to nothing about a pixel that goes to the end of its range. Strides make neighbours of other phases
weaker or stronger, which is a factor for each phase.

Nothing of this is claimed: it says what to look at next, and fills a map that was stopped early.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from l0tre.maps.places import Layout, blurred

__all__ = ["Slopes"]

WIDEST = 4  # values of a group that have slopes of their own; of a wider one all together have
RIDGE = 0.1  # of the usual weight of a group, for the slopes that are known from farther away
STIFF = 0.05  # likewise for phases being alike
PERIOD = 2  # of phases, along rows and columns
NEXT = 1.0  # standard deviation in positions of how alike neighbours are beyond their slopes
ALONE = 0.5  # weight of no such likeness
ENTRIES = 2**24  # that are worked out at a time


class Slopes:
    """Predicts changes of a number from those that were looked at.

    Attributes:
        layout: Where groups are.
        image: float32 ``[groups, width]``, what groups are.
        grid: float32 ``[groups, points, width]``, what they can be.
        slopes: float32 ``[groups, features]``, those known from farthest away.
        gain: float32 ``[groups]``, the factor of each group's phase.
    """

    def __init__(self, layout: Layout, image: Tensor, grid: Tensor) -> None:
        """Get ready; everything is computed where the grid is."""
        self.image, self.grid = image, grid
        self.layout = Layout(layout.height, layout.width, layout.places.to(grid.device))
        row, column = self.layout.places // layout.width, self.layout.places % layout.width
        self.phase = row % PERIOD * PERIOD + column % PERIOD
        count = 2 * grid.shape[2] if grid.shape[2] <= WIDEST else 2
        self.slopes = torch.zeros(len(grid), count, device=grid.device)
        self.gain = torch.ones(len(grid), device=grid.device)

    def begin(self, looked: Tensor, width: float) -> None:
        """Fit from groups that lie far apart.

        Args:
            looked: float32 ``[groups, points]``, changes of the number; NaN where nothing is known.
            width: How far apart they are, in positions.
        """
        looked = looked.to(self.grid.device)
        square, product = self._sums(looked)
        even = torch.linalg.lstsq(square.sum(0).double().cpu(), product.sum(0).double().cpu()[:, None], driver="gelsd")
        self.slopes = even.solution[:, 0].to(self.slopes).expand_as(self.slopes)
        for _ in range(2):  # the second time with what is known of phases
            self.slopes = self._fitted(looked, self.slopes, [width])
            self._match(looked, self._changes(self.slopes))

    def predict(self, looked: Tensor, widths: Sequence[float]) -> Tensor:
        """What every group and value will do.

        Args:
            looked: See :meth:`begin`.
            widths: How far likeness reaches, in positions, the farthest first.

        Returns:
            float32 ``[groups, points]``, where ``looked`` is.
        """
        device, looked = looked.device, looked.to(self.grid.device)
        found = self._changes(self._fitted(looked, self.slopes, widths))
        self._match(looked, found)
        known = looked.isfinite()
        sheets = torch.stack([(looked - found).masked_fill(~known, 0.0).T, known.to(found).T], 1)
        rest, weight = self._near(sheets.flatten(0, 1), NEXT).view(len(sheets), 2, -1).unbind(1)
        return (found + (rest / (weight + ALONE)).T).to(device)

    def _features(self, rows: slice | Tensor) -> Tensor:
        """How far groups go up and down, ``[groups, points, features]``."""
        move = self.grid[rows] - self.image[rows, None]
        if move.shape[2] > WIDEST:
            return torch.stack([move.clamp(min=0).sum(2), move.clamp(max=0).sum(2)], 2)
        return torch.cat([move.clamp(min=0), move.clamp(max=0)], 2)

    def _sums(self, looked: Tensor) -> tuple[Tensor, Tensor]:
        """Of each group the products of its features with one another and with what was seen, over what is known."""
        count = self.slopes.shape[1]
        square = torch.zeros(len(looked), count, count, device=looked.device)
        product = torch.zeros(len(looked), count, device=looked.device)
        some = looked.isfinite().any(1).nonzero()[:, 0]
        for rows in some.split(max(1, ENTRIES // (looked.shape[1] * count))):
            seen = looked[rows]
            features = self._features(rows) * self.gain[rows, None, None]
            features = features.masked_fill(~seen.isfinite()[..., None], 0.0)
            square[rows] = features.transpose(1, 2) @ features
            product[rows] = (features.transpose(1, 2) @ seen.nan_to_num(0.0, 0.0, 0.0)[..., None])[..., 0]
        return square, product

    def _fitted(self, looked: Tensor, slopes: Tensor, widths: Sequence[float]) -> Tensor:
        """Slopes of every group: those of its neighbours, as far as these tell, else those given."""
        square, product = self._sums(looked)
        count, groups = slopes.shape[1], max(1, int(looked.isfinite().any(1).sum()))
        weight = RIDGE * float(square.diagonal(dim1=1, dim2=2).sum()) / groups / count
        ridge = max(weight, 1e-12) * torch.eye(count, device=slopes.device)
        first, second = torch.triu_indices(count, count, device=slopes.device)
        sheets = torch.cat([square[:, first, second].T, product.T])
        for width in widths:
            near = self._near(sheets, width)
            whole = torch.empty(len(slopes), count, count, device=slopes.device)
            whole[:, first, second] = whole[:, second, first] = near[: len(first)].T
            right = near[len(first) :].T + slopes @ ridge
            slopes = torch.linalg.solve(whole + ridge, right)
        return slopes

    def _changes(self, slopes: Tensor) -> Tensor:
        """What slopes say of every group and value, ``[groups, points]``."""
        step = max(1, ENTRIES // (self.grid.shape[1] * slopes.shape[1]))
        parts = [
            (self._features(slice(first, first + step)) @ slopes[first : first + step, :, None])[..., 0]
            for first in range(0, len(slopes), step)
        ]
        return torch.cat(parts) * self.gain[:, None]

    def _match(self, looked: Tensor, found: Tensor) -> None:
        """Fit the factor of each phase, and put it into what was found."""
        known = looked.isfinite()
        plain = found / self.gain[:, None]
        seen, said = looked.masked_fill(~known, 0.0), plain.masked_fill(~known, 0.0)
        both, own = (
            torch.zeros(PERIOD**2, device=found.device).index_add_(0, self.phase, part.sum(1))
            for part in (seen * said, said * said)
        )
        spare = STIFF * own.mean() + 1e-30
        self.gain = ((both + spare) / (own + spare)).clamp(0.1, 10.0)[self.phase]
        found.copy_(plain * self.gain[:, None])

    def _near(self, sheets: Tensor, width: float) -> Tensor:
        """Sums over neighbours under a bell curve, of numbers ``[n, groups]``."""
        layout = self.layout
        spread = torch.zeros(len(sheets), layout.height * layout.width, device=sheets.device)
        spread.index_add_(1, layout.places, sheets)
        return blurred(spread.view(-1, 1, layout.height, layout.width), width).flatten(1)[:, layout.places]
