"""Prove that no two pixels change the decision for a digit, keep the proof in a file, and check it again.

Run: ``python examples/certify.py`` (needs the extra ``data``, works offline).
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre

HELD_BACK = 10  # digits that are not trained on
RADIUS = 2


def train(images: Tensor, labels: Tensor) -> nn.Module:
    """A small convolutional network, trained on ``[images, 1, 8, 8]`` in [0, 1] with some pixels replaced at random."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(100):
        noisy = torch.where(torch.rand_like(images) < 0.1, torch.rand_like(images).round(), images)
        optimiser.zero_grad()
        F.cross_entropy(network(noisy), labels).backward()
        optimiser.step()
    return network


def main() -> tuple[l0tre.Verdict, l0tre.CheckResult]:
    """Train, prove, write the certificate and check it."""
    digits = l0tre.load_data("digits")
    assert digits.labels is not None
    module = train(digits.images[HELD_BACK:], digits.labels[HELD_BACK:])
    network = l0tre.load(module, input_shape=(1, 8, 8))  # once, for the proof and the check
    image, label = digits.images[0], int(digits.labels[0])

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digit.l0cert"
        verdict = l0tre.verify(network, image, label, radius=RADIUS, certificate=file)
        print(f"{verdict.answer} for {RADIUS} pixels (guarantee: {verdict.guarantee})")
        print(f"holds for: {verdict.arithmetic}")
        size = file.stat().st_size
        # The checker is other code than the prover's; network, image and domain must be those of the proof.
        result = l0tre.check(file, network, image)

    print(f"certificate of {size:,} bytes: {result.nodes:,} parts cover every set of {RADIUS} pixels")
    print(f"checked: class {result.label} stays, by a margin of at least {result.margin:.3g}")
    return verdict, result


if __name__ == "__main__":
    main()
