"""Bound any Python function that maps a batch to scores; nothing is known about its inside.

Run: ``python examples/black_box.py`` (needs the extra ``data``, works offline).
"""

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import l0tre

Array = npt.NDArray[np.float32]


def nearest_mean(images: Array, labels: npt.NDArray[np.int64]) -> Array:
    """The mean image of each class, ``[10, 8, 8]``: all that this classifier learns."""
    return np.stack([images[labels == label].mean(0) for label in range(10)]).astype(np.float32)


def main() -> l0tre.Snapshot:
    """Classify digits by the nearest mean image and bound that classifier."""
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32), digits.target
    means = nearest_mean(images[20:], labels[20:])

    def scores(batch: Array) -> Array:
        """Minus the squared distance to each mean: ``[batch, 8, 8]`` to ``[batch, 10]``."""
        distances: Array = np.square(np.asarray(batch)[:, None] - means).sum((2, 3))
        return -distances

    network = l0tre.load(scores, input_shape=(8, 8))
    result = l0tre.evaluate(network, images[:20], labels[:20], max_t=2, epsilon=0.5)
    for bounds in result:
        print(f"digit {bounds.index} (a {bounds.label}): lower {bounds.lower}, upper {bounds.upper} pixels")
    for left_out in result.excluded:
        print(f"digit {left_out.index} left out: {left_out.reason}")
    print(f"mean: lower {result.lower:.2f}, upper {result.upper:.2f} ({result.queries:,} queries)")
    return result


if __name__ == "__main__":
    main()
