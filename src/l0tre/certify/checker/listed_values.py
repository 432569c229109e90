"""Domains with lists: every choice of listed values is a changed input, around which the other groups are free.

At most ``t`` groups change. Say ``k`` of them have lists: then the input with their new values is one of finitely many,
and at most ``t - k`` other groups change from there, anywhere in their ranges. A value that may only rise (fall) has
the range above (below) the image's own. Whole numbers without a list are taken as all real numbers between them, which
is more than needed.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from l0tre.certify.checker.certificate import SetCertificate
from l0tre.certify.checker.forward import make_forward, with_margins
from l0tre.certify.checker.listed import MOST_SETS, Tally, check_sets
from l0tre.certify.checker.margins import make_bounder
from l0tre.domain import Domain
from l0tre.errors import CertificateError
from l0tre.model.graph import Graph, run
from l0tre.rules import FREE, Rules

__all__ = ["check_listed_values"]

TOGETHER = 2**12  # changed inputs that are run through the network at a time


@dataclass(frozen=True)
class _Choices:
    """What may change.

    Attributes:
        places: For each group with a list the positions of its values.
        vectors: For each the other vectors that it may take, float32 ``[vectors, width]``.
        rest: The other groups, free in what directions leave of their ranges; none if all groups have lists.
    """

    places: tuple[Tensor, ...]
    vectors: tuple[Tensor, ...]
    rest: Domain | None

    def sets(self, t: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Sets of groups with lists that change, how many others may, and how many changed inputs the lists give."""
        others = 0 if self.rest is None else self.rest.groups
        for size in range(min(t, len(self.places)) + 1):
            for chosen in itertools.combinations(range(len(self.places)), size):
                yield chosen, min(t - size, others), math.prod(len(self.vectors[place]) for place in chosen)


def _choices(domain: Domain, rules: Rules, image: Tensor) -> _Choices:
    places, vectors = [], []
    for group in range(domain.groups):
        count = int(rules.counts[group])
        if count:
            members = domain.members[group]
            given = rules.vectors[group, :count]
            rises = given.double() - image[members].double()
            allowed = (rises * rules.direction[members] >= 0).all(1) & (rises != 0).any(1)
            places.append(members)
            vectors.append(given[allowed])
    others = rules.counts == 0
    rest = None
    if bool(others.any()):
        low = torch.where(rules.direction > 0, image, domain.low)
        high = torch.where(rules.direction < 0, image, domain.high)
        members, sizes, ids = (x[others] for x in (domain.members, domain.sizes, domain.ids))
        rest = replace(domain, members=members, sizes=sizes, ids=ids, low=low, high=high, rules=FREE)
    return _Choices(tuple(places), tuple(vectors), rest)


def check_listed_values(
    certificate: SetCertificate,
    graph: Graph,
    image: Tensor,
    domain: Domain,
    device: torch.device,
    memory: int,
    progress: Callable[[int, int], None],
) -> tuple[Tally, int]:
    """Establish that every set of a level keeps the decision in a domain with rules; it is all done anew.

    Args:
        certificate: What to check; it names no trees.
        graph: The network in float64.
        image: float32, of the domain's shape.
        domain: What may change.
        device: Where to compute.
        memory: Bytes that one step may take, approximately.
        progress: Called with the parts done and the parts in all.

    Returns:
        What was found, and how many parts there were.

    Raises:
        CertificateError: If a part is not proved.
    """
    assert isinstance(domain.rules, Rules)
    if len(certificate.sets) or len(certificate.depths):
        raise CertificateError("the certificate has trees: those of domains with rules have none")
    flat = image.float().flatten().cpu()
    choices, margins = _choices(domain, domain.rules, flat), with_margins(graph, certificate.label)
    others = 0 if choices.rest is None else choices.rest.groups
    total = sum(math.comb(others, free) * count for _, free, count in choices.sets(certificate.radius))
    if total > MOST_SETS:
        raise CertificateError(f"the certificate is about {total} sets one by one: at most {MOST_SETS} are checked so")
    box = replace(domain, rules=FREE)
    whole = make_bounder(margins, image.float(), box, torch.arange(box.groups), device, memory)
    empty = replace(certificate, sets=np.zeros(0, np.int64), depths=np.zeros(0, np.uint8))
    tally, done = Tally(), 0
    for chosen, free, _ in choices.sets(certificate.radius):
        for inputs in _inputs(choices, chosen, flat):
            if not free:
                points = inputs.to(device).double().view(-1, *image.shape)
                tally.add(_safe(run(Graph(whole.layers.operations), points) - whole.slack[-1], chosen))
                done += len(inputs)
            for changed in inputs if free else ():
                assert choices.rest is not None
                order = torch.arange(others)
                bounder = make_bounder(margins, changed.view(image.shape), choices.rest, order, device, memory)
                forward = make_forward(bounder)
                _safe(forward.own_least[None], chosen)
                part = check_sets(replace(empty, radius=free), forward, others, lambda *_: None)
                tally.margin, tally.splits = min(tally.margin, part.margin), tally.splits + part.splits
                done += math.comb(others, free)
            progress(done, total)
    return tally, total


def _inputs(choices: _Choices, chosen: tuple[int, ...], image: Tensor) -> Iterator[Tensor]:
    """All inputs in which some groups take other vectors of their lists, float32 ``[inputs, values]``."""
    every = itertools.product(*(range(len(choices.vectors[place])) for place in chosen))
    while batch := list(itertools.islice(every, TOGETHER)):
        inputs = image.repeat(len(batch), 1)
        for column, place in enumerate(chosen):
            inputs[:, choices.places[place]] = choices.vectors[place][[row[column] for row in batch]]
        yield inputs


def _safe(margins: Tensor, chosen: tuple[int, ...]) -> Tensor:
    """The least margins of inputs, all of which must be above 0."""
    least = margins.amin(1)
    if not bool((least > 0).all()):
        what = f"{len(chosen)} groups with listed values are not safe"
        raise CertificateError(f"{what}: the margin may be as small as {float(least.min()):.6g}")
    return least
