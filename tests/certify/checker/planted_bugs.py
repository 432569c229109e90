"""Mistakes for each rule of the prover, which make it claim what is not true: are the certificates refused?

Each is put in by replacing one function of the prover for a while.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import l0tre
from l0tre.certify.boxes import (
    affine_forms,
    bounders,
    box_bounds,
    box_search,
    disjoint_pairs,
    first_pass,
    form_bounds,
    overlapping_pairs,
    window_forms,
)
from l0tre.certify.cells import cell_search
from l0tre.certify.regions.nodes import BoxNodes
from l0tre.certify.relax import bounds as relax_bounds
from l0tre.certify.relax.interval import Interval
from l0tre.certify.relax.relaxation import Relaxation
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.model.network import Network
from l0tre.tuning import Tuning

__all__ = ["BUGS", "Bug", "claimed"]

Change = Callable[..., Any]
WINDOWS = Tuning(hopeless=1e9, meeting_share=1.0)
FORMS = Tuning(hopeless=1e9, meeting_share=0.0)
CELLS = Tuning(box_sets=0)


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        places: What is replaced: module, name, and what takes the place of the function, from that function.
        t: Groups that must change for it to matter.
        tuning: The engine that it is in.
        hidden: Whether the network needs dense layers behind its windows.
        near: Whether it is about pairs of near pixels or of far ones; ``None`` for either.
    """

    places: tuple[tuple[Any, str, Callable[[Change], Any]], ...]
    t: int = 1
    tuning: Tuning = WINDOWS
    hidden: bool = False
    near: bool | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The prover with the mistake."""
        patches = [patch.object(owner, name, change(getattr(owner, name))) for owner, name, change in self.places]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


def after(found: Callable[..., Any]) -> Callable[[Change], Change]:
    """A function whose result is changed: ``found(result, *arguments)``."""

    def change(original: Change) -> Change:
        @wraps(original)
        def mistaken(*args: Any, **options: Any) -> Any:
            return found(original(*args, **options), *args)

        return mistaken

    return change


def instead(replacement: Change) -> Callable[[Change], Change]:
    """Another function."""
    return lambda _: replacement


def narrower(cleared: Tensor, *_: Any) -> Tensor:
    """Windows whose last column counts as outside of the map."""
    result = cleared.clone()
    if result.shape[-1] > 1:
        result[..., -1] = 0.0
    return result


def without_gaps(lines: Relaxation, *_: Any) -> Relaxation:
    """Lines that go through the image's own values, above and below."""
    return replace(lines, maps=lines.maps * torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)[:, None, None])


def steeper(lines: Relaxation, *_: Any) -> Relaxation:
    """Slopes of the lines above turned into those of the lines below, and the other way round."""
    return replace(lines, maps=lines.maps[[1, 0, 2, 3]])


def nearer(close: Tensor, *_: Any) -> Tensor:
    """No pair of pixels counts as near."""
    return close & False if close.ndim == 1 else close & torch.eye(close.shape[-1], dtype=torch.bool)


def no_interactions(found: Any, *_: Any) -> Any:
    """Near pairs that do nothing together."""
    return ((which, 0 * sizes) for which, sizes in found)


def first_parts(table: Interval, leaves: Interval, level: int, count: int) -> Interval:  # noqa: ARG001
    """Ranges of the first fine part of each coarse one instead of the hull."""
    low, high = (part.view(-1, 2**level * count, part.shape[-1]) for part in leaves)
    return low[0], high[0]


def no_errors(found: Any, *_: Any) -> Any:
    """Forms that enclose nothing but their own lines."""
    return {place: replace(forms, error=0 * forms.error) for place, forms in found.items()}


def all_rivals(losses: Tensor, *_: Any) -> Tensor:
    """The loss against the rival that is furthest."""
    return losses.amax(1, keepdim=True).expand_as(losses)


def always(found: Tensor, *_: Any) -> Tensor:
    """Yes to every question."""
    return found | True


def first_half(nodes: BoxNodes, *_: Any) -> BoxNodes:
    """Upper halves of boxes that lose nearly all of their values."""
    if not len(nodes):
        return nodes
    lower, upper = nodes.pick(slice(0, len(nodes) // 2)), nodes.pick(slice(len(nodes) // 2, None))
    thin = upper.low + (upper.high - upper.low) * 2.0**-8
    high = torch.where(upper.low > lower.low, thin, upper.high)
    return replace(nodes, high=torch.cat([lower.high, high]))


def no_rounding(errors: Tensor, *_: Any) -> Tensor:
    """No rounding term."""
    return torch.zeros_like(errors)


def one_rival(original: Change) -> Change:  # noqa: ARG001
    """Proved if the first rival is beaten."""
    return lambda bounds, *_: (bounds[:, :1] > 0).all(1)


WINDOW_LINES = (affine_forms, "relax")
BUGS: Mapping[str, Bug] = {
    "windows too small": Bug(((window_forms.WindowSite, "clear", after(narrower)),)),
    "lines without gaps": Bug(((*WINDOW_LINES, after(without_gaps)),)),
    "wrong slopes": Bug(((*WINDOW_LINES, after(steeper)),)),
    "coefficients forgotten": Bug(((box_bounds, "least", instead(lambda lower: lower[..., 0])),)),
    "one rival only": Bug(((box_search, "proved", one_rival),)),
    "parts of boxes lost": Bug(((box_search, "split_boxes", after(first_half)),)),
    "near pairs added up": Bug(
        ((first_pass, "can_interact", after(nearer)), (box_bounds, "can_interact", after(nearer))), t=2, near=True
    ),
    "second pixel forgotten in sums": Bug(
        ((first_pass, "_add_two", instead(lambda singles, sets: singles[sets[:, 0]])),), t=2, near=False
    ),
    "sums of the least losses, not all rivals": Bug(
        ((first_pass, "_losses", after(all_rivals)),),
        t=2,
        near=False,
    ),
    "interactions forgotten": Bug(
        ((overlapping_pairs, "interaction_sizes", after(no_interactions)),), t=2, near=True, hidden=True
    ),
    "hulls of the first part": Bug(((disjoint_pairs, "_hull", after(first_parts)),), t=2, near=False, hidden=True),
    "pairs over some parts of ranges": Bug(
        ((overlapping_pairs, "children", lambda f: lambda open_, level: f(open_, level)[: len(open_)]),),
        t=2,
        near=True,
        hidden=True,
    ),
    "lines of forms without errors": Bug(
        (
            (
                form_bounds,
                "carry",
                after(no_errors),
            ),
        ),
        tuning=FORMS,
    ),
    "forms added up too soon": Bug(((form_bounds, "apart", after(always)),), t=2, near=True, tuning=FORMS),
    "forms of one rival only": Bug(((box_search, "proved", one_rival),), tuning=FORMS),
    "cells: lines without gaps": Bug(((relax_bounds, "relax", after(without_gaps)),), tuning=CELLS),
    "cells: wrong slopes": Bug(((relax_bounds, "relax", after(steeper)),), tuning=CELLS),
    "cells: all proved": Bug(((relax_bounds, "is_proved", after(always)),), tuning=CELLS),
    "cells: boxes lost": Bug(((cell_search, "split_boxes", after(first_half)),), tuning=CELLS),
}
ROUNDING: Mapping[str, Bug] = {
    "no rounding term": Bug(
        (
            (bounders, "margin_errors", after(no_rounding)),
            (first_pass, "margin_errors", after(no_rounding)),
        )
    ),
}


def muted(network: Network, label: int) -> Network:
    """The network with a source that never confirms a witness, so that none ends a proof before the mistake acts."""

    def reference(x: Tensor) -> Tensor:
        scores = torch.zeros(len(x), network.classes)
        scores[:, label] = 1.0
        return scores

    return replace(network, reference=reference)


def claimed(
    bug: Bug, network: Network, image: Tensor, label: int, domain: Domain, seconds: float
) -> tuple[bool, CertificateError | None]:
    """Prove with a mistake what is not true, and check it.

    Returns:
        Whether it was claimed to be safe; why the certificate was refused, ``None`` if it was not.
    """
    quiet = muted(network, label)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "claim.l0cert"
        with bug.planted():
            verdict = l0tre.verify(
                quiet,
                image,
                label,
                radius=bug.t,
                domain=domain,
                certificate=path,
                time_budget=seconds,
                guarantee="certified",
                tuning=bug.tuning,
            )
        if verdict.answer != "safe":
            return False, None
        try:
            l0tre.check(path, quiet, image, domain)
        except CertificateError as error:
            return True, error
    return True, None
