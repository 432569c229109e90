"""The same bounds on the CPU and on a GPU: ``python -m benchmarks.agree``."""

import torch
from torch import nn

import l0tre
from benchmarks.networks import dnn_0, sdnn
from l0tre.evaluation.problem import GuaranteeWish


def main() -> None:
    """Compare a few images of two networks."""
    cases: tuple[tuple[str, nn.Module, tuple[int, ...], int, GuaranteeWish], ...] = (
        ("sDNN", sdnn(), (1, 14, 14), 2, "grid"),
        ("DNN-0", dnn_0(), (1, 28, 28), 1, "grid"),
        ("sDNN", sdnn(), (1, 14, 14), 1, "certified"),
    )
    for name, module, shape, max_t, guarantee in cases:
        images = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1))
        results = {}
        for device in ("cpu", "cuda"):
            network = l0tre.load(module, input_shape=shape, device=device)
            result = l0tre.evaluate(network, images, max_t=max_t, memory_bytes=2**31, guarantee=guarantee)
            results[device] = [(image.lower, image.upper) for image in result.images]
        verdict = "agree" if results["cpu"] == results["cuda"] else f"DIFFER: {results}"
        print(f"{name}, t <= {max_t}, {guarantee}: {verdict} {results['cuda']}")


if __name__ == "__main__":
    main()
