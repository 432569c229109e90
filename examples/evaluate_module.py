"""Train a small network on 8 x 8 digits and bound how many pixels must change before its decision can change.

Run: ``python examples/evaluate_module.py`` (needs the extra ``data``, works offline).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre

HELD_BACK = 10  # digits that are not trained on


def train(images: Tensor, labels: Tensor) -> nn.Module:
    """A network of two dense layers, trained on ``[images, 1, 8, 8]`` in [0, 1] with some pixels replaced at random.

    Without the replaced pixels it learns as well, but a single pixel changes most decisions.
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(600):
        noisy = torch.where(torch.rand_like(images) < 0.1, torch.rand_like(images).round(), images)
        optimiser.zero_grad()
        F.cross_entropy(network(noisy), labels).backward()
        optimiser.step()
    return network


def main() -> l0tre.Snapshot:
    """Train, evaluate, print the bounds and one adversarial input."""
    digits = l0tre.load_data("digits")
    assert digits.labels is not None
    network = train(digits.images[HELD_BACK:], digits.labels[HELD_BACK:])
    images, labels = digits.images[:HELD_BACK], digits.labels[:HELD_BACK]
    result = l0tre.evaluate(network, images, labels, max_t=2, epsilon=0.25)

    print(f"{len(result)} digits, {len(result.excluded)} left out because they are misclassified")
    for bounds in result:
        print(f"digit {bounds.index} (a {bounds.label}): safe up to {bounds.lower}, changed by {bounds.upper} pixels")
    print(f"mean: lower {result.lower:.2f}, upper {result.upper:.2f}; {result.converged} converged")

    closest = min(result, key=lambda bounds: bounds.upper)
    if closest.witness is not None:
        print(f"\ndigit {closest.index} becomes a {closest.witness.label} when pixels {closest.witness.groups} change:")
        changed = closest.witness.apply(images[closest.index])
        for row in changed[0]:
            print(" ".join(f"{value:4.2f}" for value in row.tolist()))
    return result


if __name__ == "__main__":
    main()
