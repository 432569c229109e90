"""Cases of small networks with windows: images, boxes of their pixels with the true margins inside, verdicts."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor, nn

from l0tre.certify.boxes.bounders import FormBounder, WindowBounder
from l0tre.certify.boxes.box_bounds import box_items
from l0tre.certify.boxes.box_search import BoxSearch
from l0tre.certify.boxes.pair_forms import PixelForms, make_singles
from l0tre.certify.boxes.windowed import Windowed
from l0tre.certify.cells.cell_search import CellSearch
from l0tre.certify.prover import Prover, make_prover
from l0tre.certify.regions.nodes import BoxNodes, join, shares
from l0tre.domain import Domain, make_domain
from l0tre.memory import Batcher
from l0tre.model.graph import Graph, run
from l0tre.objective import AllRivals
from l0tre.tuning import DEFAULT_TUNING, Tuning
from tests.certify.boxes.recipes import Recipe, build
from tests.certify.proving import as_network, layer_values, settled
from tests.certify.random_networks import Case


@cache
def make_case(
    recipe: Recipe, seed: int, firmness: float | None = None, *, unit: bool = False, classes: int = 3
) -> Case:
    """A network with an image and a domain; ``firmness`` says how far the decision there is from changing.

    Domains go through three kinds by the seed: the unit box; a range of its own for each value; some values, so some
    channels of some pixels, masked. ``unit`` asks for the first.
    """
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(1000 + seed)

    def uniform() -> Tensor:
        return torch.rand(recipe.shape, generator=generator)

    kind = 0 if unit else seed % 3
    low = uniform() * 0.6 - 0.4 if kind == 1 else torch.zeros(recipe.shape)
    high = low + 0.4 + uniform() if kind == 1 else torch.ones(recipe.shape)
    mask = uniform() < 0.8 if kind == 2 else torch.ones(recipe.shape, dtype=torch.bool)
    domain = make_domain(recipe.shape, low=low, high=high, mask=mask)
    share = torch.where(uniform() < draw.choice([0.0, 0.3, 1.0]), uniform().round(), uniform())
    image = torch.minimum(torch.maximum(low + share * (high - low), low), high)
    graph = build(recipe, seed, classes)
    network = as_network(graph)
    label = int(network.scores(image[None]).argmax())
    case = Case(nn.Identity(), graph, network, image, label, domain, "windows")
    if firmness is None:
        return case
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return settled(case, graph, image, domain, firmness)


def prover_of(case: Case, memory: int = 2**24, tuning: Tuning = DEFAULT_TUNING) -> Prover:
    return make_prover(case.network, case.domain, Batcher(case.network, 2**26), memory, tuning)


def cluster_search(
    case: Case,
    t: int,
    images: Tensor | None = None,
    labels: Sequence[int] = (),
    *,
    memory: int = 2**24,
    pulse: Callable[[], None] = lambda: None,
    tuning: Tuning = DEFAULT_TUNING,
) -> BoxSearch:
    """The search by clusters, all of its images (default: the case's) before it."""
    if images is None:
        images, labels = case.image[None], [case.label]
    none = [None] * len(images)
    chosen = torch.tensor(list(labels))
    tuning = replace(tuning, meeting_share=1.0)  # by windows, however many pixels of these small inputs meet
    return prover_of(case, memory, tuning).search_boxes(t, images.flatten(1), AllRivals(chosen), none, pulse=pulse)


def windows_of(search: BoxSearch) -> Windowed:
    """What a search bounds with in windows."""
    bounder = search.bounder
    windowed = bounder.windowed if isinstance(bounder, WindowBounder | FormBounder) else None
    assert windowed is not None
    return windowed


def several(case: Case, count: int, seed: int = 0) -> tuple[Tensor, list[int]]:
    """Other images of the domain, labelled by turns with all classes."""
    low, high = (end.reshape(case.image.shape) for end in (case.domain.low, case.domain.high))
    share = torch.rand(count, *case.image.shape, generator=torch.Generator().manual_seed(seed))
    images = torch.minimum(torch.maximum(low + share * (high - low), low), high)
    return torch.cat([case.image[None], images[1:]]), [(case.label + k) % case.network.classes for k in range(count)]


def windowed_of(
    case: Case, t: int, images: int = 2, *, memory: int = 2**24, tuning: Tuning = DEFAULT_TUNING
) -> Windowed:
    """Network and some images, ready for bounds."""
    return windows_of(cluster_search(case, t, *several(case, images), memory=memory, tuning=tuning))


def pixel_sets(windowed: Windowed, t: int, draw: random.Random, most: int) -> list[tuple[int, ...]]:
    """Sets of pixels that may change: neighbours, at the distance of the sight or one less in every direction, far.

    They begin in corners, on edges and inside.
    """
    local, slots = windowed.local, windowed.instance.slot_of_pixel
    assert slots is not None
    _, height, width = local.plan.graph.input_shape
    steps = [sorted({0, 1, size - 1, size, size + 1, -1, 1 - size, -size}) for size in local.sight]
    offsets = [*itertools.product(*steps), (height - 1, 0), (0, width - 1), (height - 1, width - 1), (height // 2, 1)]
    anchors = [(0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1), (0, width // 2), (height // 2, 0)]
    anchors += [(draw.randrange(height), draw.randrange(width)) for _ in range(20)]
    found: set[tuple[int, ...]] = set()
    for _ in range(60 * most):
        places = [draw.choice(anchors)]
        while len(places) < t:
            (y, x), (down, right) = draw.choice(places), draw.choice(offsets)
            places.append((y + down, x + right))
        inside = all(0 <= y < height and 0 <= x < width for y, x in places)
        pixels = tuple(y * width + x for y, x in places)
        if inside and len(set(pixels)) == t and all(int(slots[pixel]) >= 0 for pixel in pixels):
            found.add(pixels)
        if len(found) == most:
            break
    return sorted(found)


def nodes_of(windowed: Windowed, sets: Sequence[Sequence[int]], image: Tensor, share: Tensor) -> BoxNodes:
    """Boxes of sets of pixels; ``share`` float64 ``[2, sets, t, width]`` places their ends in the ranges, 0 to 1."""
    instance = windowed.instance
    assert instance.slot_of_pixel is not None
    slots = instance.slot_of_pixel[torch.tensor([list(pixels) for pixels in sets])]
    members = instance.members[slots]
    own, down, up = (
        torch.nn.functional.pad(part, (0, 1))[image[:, None, None], members]
        for part in (instance.images, instance.down, instance.up)
    )
    low, high = (own + down + end * (up - down) for end in share.sort(0).values)
    return BoxNodes(image, slots + instance.tree.slots, low, high, torch.zeros_like(image))


def random_boxes(
    windowed: Windowed, sets: Sequence[Sequence[int]], generator: torch.Generator, width: float | None = None
) -> BoxNodes:
    """Boxes of random images: whole ranges, parts of them, at their ends; or of a given width, relative to ranges."""
    image = torch.randint(len(windowed.instance.images), (len(sets),), generator=generator)
    shape = (2, len(sets), len(sets[0]), windowed.instance.members.shape[1])
    share = (torch.rand(shape, generator=generator, dtype=torch.float64) * 1.6 - 0.3).clamp(0, 1)
    if width is not None:
        share = share[0] * (1 - width) + torch.tensor([0.0, width], dtype=torch.float64).view(2, 1, 1, 1)
    else:
        share[0, ::5], share[1, ::5] = 0.0, 1.0
    return nodes_of(windowed, sets, image, share)


def directions(variables: int, generator: torch.Generator, most: int = 32) -> Tensor:
    """Values of ``u``: corners (all if there is room) and random ones inside, float64 ``[points, variables]``."""
    if 2**variables <= most:
        corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=variables)), dtype=torch.float64)
    else:
        corners = torch.randint(0, 2, (most, variables), generator=generator).double() * 2 - 1
    inside = torch.rand(12, variables, generator=generator, dtype=torch.float64) * 2 - 1
    return torch.cat([corners, inside, torch.zeros(1, variables, dtype=torch.float64)])


def inputs_at(windowed: Windowed, nodes: BoxNodes, u: Tensor) -> Tensor:
    """The inputs of boxes at ``u`` ``[points, variables]``, float64 ``[nodes, points, values]``."""
    instance = windowed.instance
    members = instance.members[nodes.cells - instance.tree.slots].flatten(1)
    middle, half = (nodes.low + nodes.high).flatten(1) / 2, (nodes.high - nodes.low).flatten(1) / 2
    values = middle[:, None] + u * half[:, None]
    x = torch.nn.functional.pad(instance.images[nodes.image], (0, 1))[:, None].repeat(1, len(u), 1)
    return x.scatter(2, members[:, None].expand(-1, len(u), -1), values)[..., :-1]


def margins_at(case: Case, windowed: Windowed, nodes: BoxNodes, u: Tensor) -> Tensor:
    """The true margins of boxes at ``u``, float64 ``[nodes, points, classes - 1]``."""
    assert case.network.exact is not None
    x = inputs_at(windowed, nodes, u)
    with torch.inference_mode():
        scores = run(case.network.exact, x.reshape(-1, *case.image.shape)).view(*x.shape[:2], -1)
    labels = windowed.instance.specification.labels[nodes.image].tolist()
    rows = []
    for own, label in zip(scores, labels, strict=True):
        others = [number for number in range(scores.shape[2]) if number != label]
        rows.append(own[:, [label]] - own[:, others])
    return torch.stack(rows)


def features_at(windowed: Windowed, nodes: BoxNodes, u: Tensor) -> Tensor:
    """True differences of what carried items are about, ``[nodes, points, features]``."""
    local, instance = windowed.local, windowed.instance
    graph = Graph(local.plan.graph.operations[: local.plan.tail])
    x = inputs_at(windowed, nodes, u)
    found = layer_values(graph, x.flatten(0, 1))[-1].view(*x.shape[:2], -1)
    change = found - layer_values(graph, instance.images)[-1][nodes.image][:, None]
    if not local.flat:
        return change
    labels = instance.specification.labels[nodes.image].tolist()
    classes = range(change.shape[2])
    others = torch.tensor([[number for number in classes if number != label] for label in labels])
    own = torch.tensor(labels)[:, None, None].expand(-1, len(u), 1)
    return change.gather(2, own) - change.gather(2, others[:, None].expand(-1, len(u), -1))


def values_of(forms: Tensor, u: Tensor) -> Tensor:
    """AffineForms ``[nodes, 1 + variables, ...]`` at ``u`` ``[points, variables]``, ``[nodes, points, ...]``."""
    full = torch.cat([torch.ones(len(u), 1, dtype=u.dtype), u], 1)
    return torch.einsum("pv,nv...->np...", full, forms)


def all_cells(windowed: Windowed) -> Tensor:
    """The leaves of all pixels that may change."""
    tree = windowed.instance.tree
    return (tree.order >= 0).nonzero()[:, 0] + tree.slots


def free_domain(shape: tuple[int, ...], pixels: Sequence[int]) -> Domain:
    """The unit box, only some pixels free."""
    mask = torch.zeros(shape[1] * shape[2], dtype=torch.bool)
    mask[list(pixels)] = True
    return make_domain(shape, mask=mask.view(shape[1:]))


def every_set(windowed: Windowed, t: int) -> list[tuple[int, ...]]:
    """All sets of pixels that may change."""
    slots = windowed.instance.slot_of_pixel
    assert slots is not None
    return list(itertools.combinations((slots >= 0).nonzero()[:, 0].tolist(), t))


def whole_boxes(windowed: Windowed, sets: Sequence[Sequence[int]], image: int = 0) -> BoxNodes:
    """The whole ranges of sets of pixels."""
    share = torch.zeros(2, len(sets), len(sets[0]), windowed.instance.members.shape[1], dtype=torch.float64)
    share[1] = 1.0
    return nodes_of(windowed, sets, torch.full((len(sets),), image), share)


@cache
def balanced(recipe: Recipe, seed: int, t: int, share: float, *, by: float = -1e-4, unit: bool = False) -> Case:
    """A case in which about a share of all sets of ``t`` pixels changes the decision; the rest mostly just does not.

    ``by`` is the smallest margin found (at corners and some points) of the set at that share: with a share of 0 and a
    small number above zero the decision is just safe, or close to it.
    """
    case = make_case(recipe, seed, unit=unit)
    windowed = windowed_of(case, t, 1)
    nodes = whole_boxes(windowed, every_set(windowed, t))
    u = directions(t * case.domain.members.shape[1], torch.Generator().manual_seed(seed))
    least = margins_at(case, windowed, nodes, u).amin((1, 2)).sort().values
    shift = by - float(least[int(share * len(least))])
    last = case.graph.operations[-1]
    bias = last.tensors["bias"].clone()
    bias[case.label] += shift
    graph = Graph((*case.graph.operations[:-1], replace(last, tensors={**last.tensors, "bias": bias})))
    return replace(case, graph=graph, network=as_network(graph))


@dataclass(frozen=True)
class Verdict:
    """What a search came to.

    Attributes:
        answer: ``safe``, ``unsafe``, ``tie``, or ``open`` if it was stopped or lost something.
        proved: How many sets were proved.
        witness: The changed input, if unsafe.
    """

    answer: str
    proved: Fraction
    witness: Tensor | None = None


def decide(search: BoxSearch | CellSearch, steps: int = 400, before: Fraction = Fraction(0), row: int = 0) -> Verdict:
    """Take steps until one image is decided."""
    proved = before
    for _ in range(steps):
        if not search.open():
            break
        step = search.step()
        proved += step.shares.get(row, Fraction(0))
        if row in step.candidates:
            return Verdict("unsafe", proved, step.candidates[row])
        if row in step.ties:
            return Verdict("tie", proved)
    return Verdict("safe" if proved == search.total else "open", proved)


def share_left(search: BoxSearch, row: int = 0) -> Fraction:
    """How many sets the open nodes of an image stand for."""
    return sum((shares(search.instance.tree, part).get(0, Fraction(0)) for part in search.left(row)), Fraction(0))


def singles_of(windowed: Windowed, images: Tensor) -> tuple[PixelForms, dict[int, int]]:
    """All pixels alone, and the number of each."""
    slots = windowed.instance.slot_of_pixel
    assert slots is not None
    pixels = (slots >= 0).nonzero()[:, 0].tolist()
    nodes = join([whole_boxes(windowed, [(pixel,) for pixel in pixels], image) for image in images.tolist()])
    return make_singles(windowed, images, box_items(windowed, nodes)), {pixel: row for row, pixel in enumerate(pixels)}
