"""Change as few pixels of five digits as possible so that the bundled network decides otherwise.

Run: ``python examples/attack.py`` (needs the extras ``data`` and ``zoo``, works offline).
"""

import torch

import l0tre
from l0tre.data import select

BUDGET = 1000  # forward and backward passes for each image
TARGET = 3


def main() -> tuple[l0tre.Attacked, l0tre.Attacked]:
    """Attack, look at the details, ask the network about one input again, then aim at one class."""
    network = l0tre.load("sdnn")
    # The digits are sorted by class: one each of 0, 2, 4, 6 and 8.
    digits = select(
        l0tre.load_data("mnist5k", input_shape=network.input_shape, resize=True), indices=range(0, 5000, 1000)
    )

    # With l0tre.attack instead you get the adversarial inputs alone.
    result = l0tre.attack_details(network, digits.images, digits.labels, budget=BUDGET)
    for row, index in enumerate(digits.indices):
        if not result.found[row]:
            print(f"digit {index}: nothing found")
            continue
        passes = int(result.forwards[row] + result.backwards[row])
        print(
            f"digit {index}: {int(result.labels[row])} becomes {int(result.decisions[row])} with "
            f"{int(result.distance[row])} pixels, found by {result.methods[row]} ({passes:,} passes)"
        )
    print(f"mean {result.mean:.2f}, median {result.median:g} {result.unit}s in {result.seconds:.1f} s")

    changed = (result.adversarial[0] != digits.images[0]).nonzero()
    for channel, row, column in changed.tolist():
        before, after = digits.images[0, channel, row, column], result.adversarial[0, channel, row, column]
        print(f"  row {row}, column {column}: {before:.2f} -> {after:.2f}")
    print(f"  asked again, the network says {int(network.scores(result.adversarial[:1]).argmax())}")

    # Targeted: the labels are the classes to reach, one for each image.
    targets = torch.full((len(digits.images),), TARGET)
    aimed = l0tre.attack_details(network, digits.images, targets, targeted=True, budget=BUDGET)
    print(f"to class {TARGET}: {aimed.distance.tolist()} {aimed.unit}s (-1: not found)")
    return result, aimed


if __name__ == "__main__":
    main()
