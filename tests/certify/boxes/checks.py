"""Checks of a first look at a level: nothing is counted twice or lost, and what is proved is safe."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from l0tre.certify.boxes.range_parts import FirstLook, full_boxes
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.regions.nodes import BoxNodes, shares
from tests.certify.boxes.cases import cluster_search, directions, inputs_at, margins_at, several, windows_of
from tests.certify.oracle import exact_minimum
from tests.certify.random_networks import Case


def check_counts(windowed: Windowed, found: FirstLook, total: int, images: Sequence[int]) -> None:
    """Each of ``total`` sets is proved or left exactly once: the boxes of a set are different cells of one grid."""
    tree = windowed.instance.tree
    left = shares(tree, found.left) if len(found.left) else {}
    assert set(left) <= set(images)
    assert all(isinstance(proved, Fraction) for proved in found.proved)
    for image, proved in zip(images, found.proved, strict=True):
        assert proved + left.get(image, Fraction(0)) == total
    cells, order = found.left.cells.sort(1)
    assert bool((cells[:, 1:] > cells[:, :-1]).all())
    index = order[:, :, None].expand_as(found.left.low)
    ends = [part.gather(1, index).flatten(1) for part in (found.left.low, found.left.high)]
    rows = torch.cat([found.left.image[:, None], cells, *ends], 1)
    assert len(rows.unique(dim=0)) == len(rows)
    for image in found.left.image.unique().tolist():
        own = (found.left.image == image).nonzero()[:, 0]
        whole = full_boxes(windowed.instance, image, found.left.cells[own])
        used = (whole.high > whole.low).flatten(1)
        extent = (found.left.high[own] - found.left.low[own]).flatten(1) / (whole.high - whole.low).flatten(1)
        volume = torch.where(used, extent, 1.0).prod(1)
        assert torch.allclose(volume, 0.5 ** found.left.depth[own].double(), rtol=1e-9, atol=0)
        assert bool(((found.left.low[own] >= whole.low) & (found.left.high[own] <= whole.high)).all())


def covers(windowed: Windowed, left: BoxNodes, boxes: BoxNodes, row: int, points: Tensor) -> Tensor:
    """Which inputs ``[points, values]`` of a set lie in boxes that are left, bool ``[points]``."""
    same = (left.cells.sort(1).values == boxes.cells[row].sort().values).all(1) & (left.image == boxes.image[row])
    inside = torch.zeros(len(points), dtype=torch.bool)
    padded = torch.nn.functional.pad(points, (0, 1))
    for own in same.nonzero()[:, 0].tolist():
        values = padded[:, windowed.instance.members[left.cells[own] - windowed.instance.tree.slots].flatten()]
        low, high = left.low[own].flatten() - 1e-12, left.high[own].flatten() + 1e-12
        inside |= ((values >= low) & (values <= high)).all(1)
    return inside


def check_safe(case: Case, windowed: Windowed, found: FirstLook, boxes: BoxNodes) -> tuple[int, int]:
    """Every input that changes the decision is left; returns how many sets have one, and how many are not left.

    Args:
        case: The network.
        windowed: The same with images.
        found: Of these or other images too.
        boxes: The whole ranges of all sets that were looked at, of one image.
    """
    variables = boxes.cells.shape[1] * case.domain.members.shape[1]
    u = directions(variables, torch.Generator().manual_seed(boxes.cells.shape[1]))
    if variables <= 3:
        u = torch.cat([u, torch.tensor(list(itertools.product((-0.75, -0.3, 0.2, 0.6), repeat=variables))).double()])
    truth = margins_at(case, windowed, boxes, u).amin(2)
    unsafe = (truth <= 0).any(1).nonzero()[:, 0].tolist()
    kept = {tuple(sorted(cells)) for cells in found.left.cells[found.left.image == boxes.image[0]].tolist()}
    for row in unsafe:
        x = inputs_at(windowed, boxes.pick(torch.tensor([row])), u)[0][truth[row] <= 0]
        assert tuple(sorted(boxes.cells[row].tolist())) in kept
        if found.left.depth is not None and bool(found.left.depth.any()):
            assert bool(covers(windowed, found.left, boxes, row, x).all())
    return len(unsafe), len(boxes) - len(kept)


def check_oracle(case: Case, windowed: Windowed, found: FirstLook, boxes: BoxNodes, most: int) -> None:
    """The sets that are nowhere left and come closest to a change, by an exact program: they are safe."""
    kept = {tuple(sorted(cells)) for cells in found.left.cells[found.left.image == boxes.image[0]].tolist()}
    gone = [row for row, cells in enumerate(boxes.cells.tolist()) if tuple(sorted(cells)) not in kept]
    if not gone or any(operation.kind in ("sigmoid", "tanh") for operation in case.graph.operations):
        return
    boxes = boxes.pick(torch.tensor(gone))
    u = directions(boxes.cells.shape[1] * case.domain.members.shape[1], torch.Generator().manual_seed(0))
    closest = margins_at(case, windowed, boxes, u).amin((1, 2)).argsort()[:most]
    image, label = case.image, case.label
    assert torch.equal(windowed.instance.images[boxes.image[0]].float(), image.flatten())
    for cells in boxes.cells[closest]:
        groups = windowed.instance.tree.order[cells - windowed.instance.tree.slots].tolist()
        assert exact_minimum(case.graph, image, label, case.domain, groups)[0] > 0


def windowed_with_labels(case: Case, images: int, memory: int = 2**24, t: int = 2) -> Windowed:
    """The case's image, and others with the network's own decisions."""
    chosen, _ = several(case, images)
    labels = case.network.scores(chosen).argmax(1).tolist()
    return windows_of(cluster_search(case, t, chosen, [case.label, *labels[1:]], memory=memory))
