"""How the cost of a level grows with pixels, t, grid points and images: ``python -m benchmarks.growth``."""

import argparse
import time

import torch
from torch import nn

import l0tre
from l0tre.domain import make_domain
from l0tre.exhaustive.grid_scan import make_level
from l0tre.exhaustive.scanner import choose_engine, make_scanner
from l0tre.grid import make_grid
from l0tre.memory import Batcher, default_budget
from l0tre.objective import AllRivals


def network_of(side: int) -> nn.Module:
    """The layers of sDNN on a square image of any side."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * (side + 3) ** 2, 10))


def seconds(side: int, t: int, epsilon: float, count: int, device: str) -> float:
    """Seconds for the whole level, all images together."""
    shape = (1, side, side)
    network = l0tre.load(network_of(side), input_shape=shape, device=device)
    domain = make_domain(shape)
    grid = make_grid(domain, epsilon).to(network.device)
    level = make_level(domain.to(network.device), grid, t)
    budget = default_budget(network.device)
    engine = choose_engine(network, level.domain, grid)
    scanner, most, width = make_scanner(engine, level, Batcher(network, budget), budget)
    images = torch.rand(count, side * side, generator=torch.Generator().manual_seed(0)).to(network.device)
    labels = network.scores(images.reshape(-1, *shape)).argmax(1)
    spent = 0.0
    for repeat in range(2):  # the first round works out what all images share
        began = time.monotonic()
        for first in range(0, count, most):
            scan = scanner.prepare(images[first : first + most], AllRivals(labels[first : first + most]))
            step = max(1, width // len(images[first : first + most]))
            for start in range(0, level.sets, step):
                float(scan(start, min(start + step, level.sets)).margin.min())
        spent = time.monotonic() - began
        if repeat == 0 and spent > 20:
            break
    return spent


def main() -> None:
    """Vary one thing at a time around 14x14, t = 2, epsilon 0.25, one image."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--device", default="auto")
    device = parser.parse_args().device
    for t in (1, 2):
        print(
            f"pixels, t = {t}: " + ", ".join(f"{n}x{n} {seconds(n, t, 0.25, 1, device):.3g} s" for n in (7, 14, 20, 28))
        )
    print("t, 14x14: " + ", ".join(f"{t}: {seconds(14, t, 0.25, 1, device):.3g} s" for t in (1, 2, 3)))
    for t in (1, 2):
        cells = (f"{round(1 / e) + 1}: {seconds(14, t, e, 1, device):.3g} s" for e in (1.0, 0.5, 0.25, 0.125))
        print(f"values of a pixel, 14x14, t = {t}: " + ", ".join(cells))
    for t in (1, 2):
        cells = (f"{count}: {seconds(14, t, 0.25, count, device):.3g} s" for count in (1, 10, 100 if t == 1 else 40))
        print(f"images, 14x14, t = {t}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
