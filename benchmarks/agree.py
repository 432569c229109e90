"""The same bounds on the CPU and on a GPU: ``python -m benchmarks.agree``."""

import torch

import l0tre
from benchmarks.networks import dnn_0, sdnn


def main() -> None:
    """Compare a few images of two networks."""
    for name, module, shape, max_t in (("sDNN", sdnn(), (1, 14, 14), 2), ("DNN-0", dnn_0(), (1, 28, 28), 1)):
        images = torch.rand(8, *shape, generator=torch.Generator().manual_seed(1))
        results = {}
        for device in ("cpu", "cuda"):
            network = l0tre.load(module, input_shape=shape, device=device)
            result = l0tre.evaluate(network, images, max_t=max_t, memory=2**31)
            results[device] = [(image.lower, image.upper) for image in result.images]
        verdict = "agree" if results["cpu"] == results["cuda"] else f"DIFFER: {results}"
        print(f"{name}, t <= {max_t}: {verdict} {results['cuda']}")


if __name__ == "__main__":
    main()
