"""Runs that are made up, for pages: their bounds are known and cost no search."""

import torch
from torch import Tensor

from l0tre.domain import make_domain
from l0tre.evaluation.results import Excluded, HistoryPoint, ImageBounds, Snapshot, make_witness
from l0tre.report import PageSource
from l0tre.report.inputs import Details
from l0tre.store import Inputs

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def made_run(count: int, *, hostile: bool = False, shape: tuple[int, ...] = (1, 6, 5)) -> PageSource:
    """A run on pictures: every third image has no witness, every second one is exact."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 8, (count, *shape), generator=generator) / 7
    images = coarse * (torch.rand(count, *shape, generator=generator) < 0.3)
    bounds = tuple(_bounds(number, image) for number, image in enumerate(images))
    classes = ["zero", HOSTILE if hostile else "one", "two"]
    config = {
        "model": {"name": "models/net.onnx"},
        "data": {"name": HOSTILE if hostile else "pictures", "labelled": True},
        "domain": {"unit": "pixel"},
        "settings": {"max_t": 2, "epsilon": 0.25, "grid": "uniform", "colours": "grid", "memory_bytes": 0},
        "names": {"classes": classes, "inputs": {str(number): f"file-{number}.png" for number in range(count)}},
        "versions": {"torch": "2"},
        "command": "l0tre evaluate net.onnx pictures",
    }
    history = tuple(HistoryPoint(float(s), 1 + s // 3, s / 4, 30 - s) for s in range(6))
    excluded = (Excluded(count, 1, 2),)
    snapshot = Snapshot(bounds, excluded, 6.0, 2, "pixel", True, 1.0, history, config, "7-abc")
    domain = make_domain(shape)
    inputs = Inputs(torch.cat([images, images[:1]]), None, tuple(range(count + 1)), domain)
    timelines = {number: [(0.0, 0, 31), (1.0, 1, 31), (2.5, bounds[number].lower, 31)] for number in range(count)}
    scores = {number: (torch.tensor([2.0, 1.0, 0.5]), torch.tensor([1.0, 1.5, 0.25])) for number in range(count)}
    return PageSource(snapshot, inputs, (snapshot,), Details(timelines, scores))


def _bounds(number: int, image: Tensor) -> ImageBounds:
    lower = number % 4
    if number % 3 == 0:
        return ImageBounds(number, number % 3, 30, lower, 31, "certified", level=1, seconds=0.5, queries=10)
    distance = lower + 1 + number % 2
    changed = image.clone().flatten()
    changed[:distance] = 1.0 - changed[:distance].round() + 0.0
    witness = make_witness(image, changed.reshape(image.shape), tuple(range(distance)), (number + 1) % 3, -0.5, 1)
    return ImageBounds(number, number % 3, 30, lower, distance, "certified", witness, 1, 0, 0.25, 20, True)
