"""Networks and images for ``benchmarks.targets``: layers in words, weights from files, the zoo or a short training."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

IMAGES = 100  # of each network: the first that it classifies correctly
EPOCHS = 3  # of the networks that are trained here
BATCH = 100
MNIST = (0.1307, 0.3081)

ATTACK = "conv {0} 3, conv {0} 3, pool, conv {1} 3, conv {1} 3, pool, dense {2}, dense {2}, dense 10"
CONV_SMALL = "conv 16 4 2, conv 32 4 2, dense 100, dense 10"

# By name the file or, where none is, trained here, whether inputs are normalised as MNIST's are, and the layers. Each
# convolution (channels, kernel, stride, padding) and dense layer but the last is followed by a ReLU.
MADE: dict[str, tuple[str, bool, str]] = {
    "convsmall-pgd": ("MNIST_ConvSmallPGD.onnx", True, CONV_SMALL),
    "6x200-pgd": ("MNIST_6x200_PGD.onnx", True, "dense 200, " * 5 + "dense 10"),
    "cifar-convsmall-pgd": ("CIFAR_ConvSmallPGD.onnx", False, "scale, " + CONV_SMALL),
    "l0tre-mnist-attack": ("l0tre_mnist_attack.onnx", False, ATTACK.format(32, 64, 200)),
    "convsmall-plain": ("", True, CONV_SMALL),
    "convmed-plain": ("", True, "conv 16 4 2 1, conv 32 4 2 1, dense 1000, dense 10"),
}
ZOO: dict[str, str] = {
    "mnist-attack": ATTACK.format(32, 64, 200),
    "mnist-attack-l2": ATTACK.format(32, 64, 200),
    "mnist-attack-trades": ATTACK.format(32, 64, 200),
    "cifar10-attack": ATTACK.format(64, 128, 256),
    "mnist-convbig": "conv 32 3 1 1, conv 32 4 2 1, conv 64 3 1 1, conv 64 4 2 1, dense 512, dense 512, dense 10",
    "cifar10-resnet20": "",  # built by the zoo
}


class _Scale(nn.Module):
    """``x * scale + shift``, channel by channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Sequence[float], shift: Sequence[float]) -> None:
        super().__init__()
        for name, numbers in (("scale", scale), ("shift", shift)):
            self.register_buffer(name, torch.tensor(numbers).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def _made(layers: str, shape: tuple[int, ...], normalised: bool) -> nn.Sequential:
    """A network with fresh weights."""
    channels, size = shape[0], shape[1]
    parts: list[nn.Module] = []
    if normalised:
        parts.append(_Scale([1 / MNIST[1]], [-MNIST[0] / MNIST[1]]))
    width = 0  # of the last dense layer
    for layer in layers.split(", "):
        kind, *numbers = layer.split()
        given = [int(number) for number in numbers]
        if kind == "scale":
            parts.append(_Scale([1.0] * channels, [0.0] * channels))
        elif kind == "pool":
            parts.append(nn.MaxPool2d(2))
            size //= 2
        elif kind == "conv":
            wider, kernel, stride, padding = [*given, *(1, 0)[len(given) - 2 :]]
            parts += [nn.Conv2d(channels, wider, kernel, stride, padding), nn.ReLU()]
            channels, size = wider, (size + 2 * padding - kernel) // stride + 1
        else:
            if not width:
                parts.append(nn.Flatten())
            parts += [nn.Linear(width or channels * size * size, given[0]), nn.ReLU()]
            width = given[0]
    return nn.Sequential(*parts[:-1])


def build(name: str, weights: Sequence[Tensor]) -> nn.Module:
    """A network with its weights, in evaluation mode."""
    normalised, layers = MADE[name][1:] if name in MADE else (False, ZOO[name])
    if layers:
        module: nn.Module = _made(layers, (3, 32, 32) if "cifar" in name else (1, 28, 28), normalised)
    else:
        from l0tre import zoo

        module = zoo.build(name, seed=0)
    state = module.state_dict()
    module.load_state_dict(dict(zip(state, weights, strict=True)))
    return module.eval()


def gather(path: Path, models: Path, data: Path, names: Iterable[str]) -> None:
    """Write networks and their images into one file, beside those that are there."""
    arrays: dict[str, np.ndarray] = {}
    if path.exists():
        with np.load(path) as stored:
            arrays.update(stored)
    for name in names:
        weights = _weights_of(name, models, data)
        images, labels = _images(data, "cifar" in name)
        inputs = torch.from_numpy(images).float() / 255
        module = build(name, weights)
        with torch.inference_mode():
            scores = torch.cat([module(part) for part in inputs.split(BATCH)])
        right = (scores.argmax(1).numpy() == labels).nonzero()[0]
        print(f"{name}: {len(right)} of {len(labels)} correct")
        for number, weight in enumerate(weights):
            arrays[f"{name}/{number}"] = weight.numpy()
        arrays[f"{name}/images"], arrays[f"{name}/labels"] = images[right[:IMAGES]], labels[right[:IMAGES]]
    save: Callable[..., None] = (
        np.savez_compressed
    )  # any array could be named as one of its options, for all mypy knows
    save(path, **arrays)


def _images(data: Path, colour: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first thousand test images ``[1000, C, H, W]`` in 0 to 255, and their labels."""
    with np.load(data / ("cifar10_test.npz" if colour else "mnist.npz")) as stored:
        images, labels = (stored[key][:1000] for key in ("test_x", "test_y"))
    images = images if colour else images[..., None]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.reshape(-1)


def _weights_of(name: str, models: Path, data: Path) -> list[Tensor]:
    """The tensors of a network's state, in order."""
    import l0tre
    from l0tre import zoo

    if name in ZOO:
        return list(zoo.load(name).state_dict().values())
    file, normalised, layers = MADE[name]
    if not file:
        return _trained(layers, normalised, data)
    graph = l0tre.load(str(models / file), device="cpu").exact
    assert graph is not None
    found = [_Scale([1 / MNIST[1]], [-MNIST[0] / MNIST[1]])] if normalised else []
    weights = [part for scale in found for part in scale.state_dict().values()]
    for operation in graph.operations:
        keys = [key for key in ("scale", "shift", "weight", "bias") if key in operation.tensors]
        weights += [operation.tensors[key].float() for key in keys]
    return weights


def _trained(layers: str, normalised: bool, data: Path) -> list[Tensor]:
    """Trained plainly with Adam, on one thread from one seed, for a few epochs on MNIST."""
    with np.load(data / "mnist.npz") as stored:
        images, labels = (torch.from_numpy(stored[key]) for key in ("train_x", "train_y"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = _made(layers, (1, 28, 28), normalised)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    inputs, targets = images[:, None].float() / 255, labels.long()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(module(inputs[rows]), targets[rows]).backward()
            optimiser.step()
    torch.set_num_threads(threads)
    return list(module.state_dict().values())
