"""All methods under one budget: it goes, image by image, to the method that has removed most groups for its passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l0tre.attacks.auto import METHODS
from l0tre.attacks.greedy import LEVELS
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask

__all__ = ["Learner", "Turn", "portfolio"]

PARTS = 5  # a turn has this part of what an image has left
LEAST = 20  # passes for each image below which it does not pay to share out what is left
TRIAL = 200  # most passes of a method's first turn on an image, after the first turn of all
SHORTEST = 100  # passes of a turn, if there are as many
FEW = 300  # passes of the local search's first turn, if there are as many
OPENING = 0.3  # share of the budget of the local search's first turn, in which it looks at every near class
MOST_SHARED = 2  # budgets that an image may have when others leave theirs: few images at a time use a machine badly
LAST_PART = 0.25  # of what an image has left is for values between the ends, where these are all that is left to try
WEIGHT = 400.0  # passes for which what a method did for all images counts where it has done little for one
FORGET = 0.8  # what earlier turns count for after another one
STEP = 0.1  # a typical success removes such a share of the groups: how far a rate may be off

# Shares of the groups that a method is believed to remove in 1,000 passes before anything is known about it.
FIRST_RATES = {"local": 0.15, "rank": 0.1, "exact": 0.3, "saliency": 0.05, "values": 0.05, "search": 0.02}

# Runs some methods for some images: a name, and the passes at which each image stops; int64 ``[images]``.
Turn = Callable[[str, Tensor], None]


@dataclass(frozen=True)
class Learner:
    """What each method did for each image, earlier turns with smaller weights; all ``[methods, images]``.

    Attributes:
        names: The methods.
        removed: Sum of the shares of changed groups that its turns removed.
        passes: What they took.
        idle: Methods that found nothing to do; they rest until the image's input is another one.
        settled: bool ``[images]``, all sets of one group less were tried, so nothing smaller is at the ends of ranges.
        groups: How many there are; a size above that stands for no input yet, of which nothing is settled.
    """

    names: tuple[str, ...]
    removed: Tensor
    passes: Tensor
    idle: Tensor
    settled: Tensor
    groups: int

    @property
    def resting(self) -> Tensor:
        """Methods that have nothing to do now, or could find nothing: those that try the ends of ranges only."""
        ends = [not METHODS[name].between for name in self.names]
        return self.idle | (torch.tensor(ends, device=self.idle.device)[:, None] & self.settled)

    def choose(self, generator: torch.Generator) -> Tensor:
        """A method for each image: that with the best rate, give or take what is not known about it.

        Returns:
            int64 ``[images]``; -1 where all methods are idle.
        """
        first = torch.tensor([FIRST_RATES[name] / 1000 for name in self.names], device=self.passes.device)
        every = (self.removed.sum(1) + WEIGHT * first) / (self.passes.sum(1) + WEIGHT)
        known = self.passes + WEIGHT
        rate = (self.removed + WEIGHT * every[:, None]) / known
        doubt = (rate * STEP / known).sqrt()
        noise = torch.randn(rate.shape, generator=generator, device=rate.device)
        score = (rate + doubt * noise).masked_fill(self.resting, float("-inf"))
        best, place = score.max(0)
        return torch.where(torch.isfinite(best), place, -1)

    def learn(self, method: int, before: Tensor, after: Tensor, passes: Tensor) -> None:
        """Take a turn into account.

        Args:
            method: Its place.
            before: int64 ``[images]``, changed groups before it.
            after: int64 ``[images]``, and after it.
            passes: int64 ``[images]``, what it took; images without a turn are marked by -1.
        """
        played = passes >= 0
        share = (before - after).double() / before.double().clamp(min=1)
        self.removed[method] += torch.where(played, share + (FORGET - 1) * self.removed[method], 0).float()
        self.passes[method] += torch.where(played, passes + (FORGET - 1) * self.passes[method], 0).float()
        better = after < before
        self.idle[:, better] = False
        self.idle[method] |= (passes == 0) & ~better
        if self.names[method] == "exact":
            tried = (passes > 0) & (before <= max(LEVELS) + 1)
            self.settled[tried & (before <= self.groups)] = True
            self.idle[method] |= tried & ~better
        self.settled[better] = False


def make_learner(names: Sequence[str], images: int, groups: int, device: torch.device) -> Learner:
    """Nothing is known yet."""
    nothing = torch.zeros(len(names), images, device=device)
    settled = torch.zeros_like(nothing[0]).bool()
    return Learner(tuple(names), nothing, nothing.clone(), nothing.bool(), settled, groups)


def portfolio(
    meter: Meter,
    task: AttackTask,
    names: Sequence[str],
    total: int,
    sizes: Callable[[], Tensor],
    turn: Turn,
    generator: torch.Generator,
) -> None:
    """Spend a budget on some methods.

    Args:
        meter: Counts what they take.
        task: What is attacked.
        names: The methods.
        total: Passes of all images together. Each may have its share; what is left of the shares of images that are
            finished, or that no method can do anything for, goes to the others.
        sizes: Gives the changed groups of the best inputs, int64 ``[images]``.
        turn: Runs a method.
        generator: For chance.
    """
    images = len(task.images)
    limit = torch.full_like(meter.spent, total // max(1, images))
    learned = [name for name in names if name in FIRST_RATES]
    learner = make_learner(learned, images, task.domain.groups, meter.spent.device)
    if "local" in names and not meter.halted():
        share = meter.spent + (OPENING * (limit - meter.spent)).long().clamp(min=FEW)
        _play(meter, learner, learned.index("local"), torch.minimum(share, limit), sizes, turn)
    most = MOST_SHARED * (total // max(1, images))
    before = -1  # passes that were left when they were shared out
    while not meter.halted():
        open_ = (sizes() > task.enough) & ~learner.resting.all(0)
        if not bool((open_ & (meter.spent < limit)).any()):
            # What finished images leave is for the others.
            open_ = (sizes() > task.enough) & ~learner.settled
            open_ &= meter.spent + LEAST <= most
            rest, count = total - int(meter.spent.sum()), int(open_.sum())
            if not count or rest < count * LEAST or rest == before:
                return
            before = rest
            limit = torch.where(open_, (meter.spent + rest // count).clamp(max=most), meter.spent)
            learner.idle.zero_()
        left = limit - meter.spent
        part = meter.spent + torch.minimum(left, (left // PARTS).clamp(min=SHORTEST))
        settled = learner.settled.clone()
        if "exact" in learned:
            # What settles an image comes first where it costs no more than a turn.
            small = open_ & ~settled & (sizes() <= min(max(LEVELS) + 1, task.domain.groups))
            if bool(small.any()):
                end = torch.where(small, part, meter.spent)
                _play(meter, learner, learned.index("exact"), end, sizes, turn, whole=False)
            open_ &= ~learner.resting.all(0) & (sizes() > task.enough)
        chosen = learner.choose(generator)
        if "search" in learned:
            # Where nothing is known, as if gradients misled, chance has every other turn.
            unknown = (sizes() > task.domain.groups) & ~learner.resting[learned.index("search")]
            unknown &= torch.rand(images, generator=generator, device=left.device) < 0.5
            chosen = chosen.masked_fill(unknown, learned.index("search"))
        chosen = chosen.masked_fill(~open_ | (left <= 0), -1)
        for place, name in enumerate(learned):
            own = chosen == place
            if bool(own.any()) and not meter.halted():
                # A method that is new to an image begins with a little, and may have more the more it had.
                trial = (2 * learner.passes[place].long()).clamp(min=TRIAL)
                end = torch.minimum(part, meter.spent + trial) if METHODS[name].divisible else limit
                _play(meter, learner, place, torch.where(own, end, meter.spent), sizes, turn)
        left = (LAST_PART * (limit - meter.spent)).long()
        limit = torch.where(learner.settled & ~settled, meter.spent + left, limit)


def _play(
    meter: Meter,
    learner: Learner,
    method: int,
    limit: Tensor,
    sizes: Callable[[], Tensor],
    turn: Turn,
    *,
    whole: bool = True,
) -> None:
    """One turn; a method that does nothing with a limit that is not all an image has is not found to be idle."""
    before, spent = sizes(), meter.spent
    turn(learner.names[method], limit)
    used = meter.spent - spent
    learner.learn(method, before, sizes(), torch.where((limit > spent) & (whole | (used > 0)), used, -1))
