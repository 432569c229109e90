"""The networks of the zoo: one entry of :data:`NETWORKS` each, with a function that builds it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from torch import nn

from l0tre.zoo.normalise import Normalise
from l0tre.zoo.recipes import (
    KERAS,
    L2_ADVERSARIAL,
    LINF_ADVERSARIAL,
    MATLAB,
    RESNET,
    SDNN,
    SDNN_UNPADDED,
    TRADES,
    Recipe,
)
from l0tre.zoo.residual import resnet

__all__ = ["NETWORKS", "Entry", "beside_paper"]

_PAPER = (
    "Ruan et al., Global Robustness Evaluation of Deep Neural Networks with Provable Guarantees for the L0 Norm, "
    "arXiv 1804.05805"
)

# Mean and standard deviation of all pixels of the 55,000 MNIST digits that sdnn is trained on, at 14 x 14.
_DIGITS_14_MEAN, _DIGITS_14_STD = 0.1306, 0.2801

# The same of the 60,000 MNIST training digits as they are.
_DIGITS_MEAN, _DIGITS_STD = 0.1307, 0.3081


@dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Attributes:
        name: Its key in :data:`NETWORKS`.
        build: Gives the network with fresh weights, drawn from torch's global random numbers. It maps
            ``[batch, *input_shape]`` with values in [0, 1] to ``[batch, classes]`` scores before any softmax.
        input_shape: Shape of one input, ``(channels, height, width)``.
        classes: Number of scores.
        description: One line for people.
        reference: Where the architecture comes from.
        data: The data set it is trained on, a name that :func:`l0tre.load_data` takes.
        recipe: How it is trained.
        paper_accuracy: Share of test images that the paper's own weights classify correctly, from 0 to 1; None for
            a network that is not the paper's.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    classes: int
    description: str
    reference: str
    data: str
    recipe: Recipe
    paper_accuracy: float | None


def beside_paper(entry: Entry) -> str:
    """The accuracy of the paper's own weights in brackets, to stand behind ours; nothing for other networks."""
    return "" if entry.paper_accuracy is None else f" (the paper: {entry.paper_accuracy:.2%})"


def _sdnn(padding: int) -> nn.Module:
    layers: list[nn.Module] = [Normalise([_DIGITS_14_MEAN], [_DIGITS_14_STD])]
    for channels, wider in ((1, 8), (8, 16), (16, 32)):
        # A 2 x 2 window with padding 1 makes the image one pixel larger (14 -> 15 -> 16 -> 17), without it smaller.
        layers += [nn.Conv2d(channels, wider, 2, padding=padding), nn.BatchNorm2d(wider), nn.ReLU()]
    size = 14 + 3 * (2 * padding - 1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * size * size, 10))


def _dnn(
    widths: Sequence[int],
    *,
    normed: Sequence[int] = (),
    pool: bool = False,
    hidden: int = 0,
    dropout: tuple[float, float] = (0.0, 0.0),
) -> nn.Module:
    """3 x 3 convolutions on 28 x 28 digits, then one or two dense layers.

    Args:
        widths: Channels of the convolutions.
        normed: Those of them that are followed by batch normalisation.
        pool: Whether 2 x 2 max pooling follows the convolutions.
        hidden: Neurons of the first of two dense layers; 0 for a single one.
        dropout: Share dropped before the first and after the hidden dense layer.
    """
    layers: list[nn.Module] = [Normalise([_DIGITS_MEAN], [_DIGITS_STD])]
    channels, size = 1, 28
    for wider in widths:
        norm = [nn.BatchNorm2d(wider)] if wider in normed else []
        layers += [nn.Conv2d(channels, wider, 3), *norm, nn.ReLU()]
        channels, size = wider, size - 2
    if pool:
        layers.append(nn.MaxPool2d(2))
        size //= 2
    layers += [*_dropout(dropout[0]), nn.Flatten()]
    features = channels * size * size
    if hidden:
        layers += [nn.Linear(features, hidden), nn.ReLU(), *_dropout(dropout[1])]
    return nn.Sequential(*layers, nn.Linear(hidden or features, 10))


def _dropout(share: float) -> list[nn.Module]:
    return [nn.Dropout(share)] if share else []


def _attack(channels: int, size: int, widths: tuple[int, int], hidden: int) -> nn.Module:
    """Two pairs of 3 x 3 convolutions with pooling, three dense layers; no normalisation, as the authors' own file."""
    layers: list[nn.Module] = []
    for wider in widths:
        layers += [nn.Conv2d(channels, wider, 3), nn.ReLU(), nn.Conv2d(wider, wider, 3), nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = wider, (size - 4) // 2
    layers += [nn.Flatten(), nn.Linear(channels * size * size, hidden), nn.ReLU(), nn.Dropout(0.5)]
    network = nn.Sequential(*layers, nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    for part in network:
        if isinstance(part, nn.Conv2d | nn.Linear):  # first weights as Keras draws them
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)  # type: ignore[arg-type]
    return network


def _conv_big() -> nn.Module:
    """Convolutions of 3 x 3 and, halving the map, of 4 x 4, twice; three dense layers."""
    layers: list[nn.Module] = []
    for channels, wider in ((1, 32), (32, 64)):
        layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(wider, wider, 4, stride=2, padding=1), nn.ReLU()]
    dense = [nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


def _robust(name: str, build: Callable[[], nn.Module], description: str, recipe: Recipe) -> Entry:
    reference = "a network to measure on, not one of the paper's"
    return Entry(name, build, (1, 28, 28), 10, description, reference, "mnist", recipe, None)


def _digits_28(name: str, build: Callable[[], nn.Module], description: str, accuracy: float) -> Entry:
    reference = f"{name.upper()} of {_PAPER}"
    return Entry(name, build, (1, 28, 28), 10, description, reference, "mnist", MATLAB, accuracy)


_ENTRIES = (
    Entry(
        name="sdnn",
        build=partial(_sdnn, padding=1),
        input_shape=(1, 14, 14),
        classes=10,
        description="three 2 x 2 convolutions with batch norm and one dense layer, for MNIST digits at 14 x 14",
        reference=f"sDNN of {_PAPER}; padding 1 as in the authors' published weights",
        data="mnist",
        recipe=SDNN,
        paper_accuracy=0.9873,
    ),
    Entry(
        name="sdnn-unpadded",
        build=partial(_sdnn, padding=0),
        input_shape=(1, 14, 14),
        classes=10,
        description="sdnn without padding",
        reference=f"sDNN of {_PAPER}; the table read without padding",
        data="mnist",
        recipe=SDNN_UNPADDED,
        paper_accuracy=0.9873,
    ),
    _digits_28(
        "dnn-0",
        partial(_dnn, (32, 64), pool=True, hidden=128, dropout=(0.25, 0.5)),
        "two convolutions, pooling, two dense layers",
        0.9916,
    ),
    _digits_28("dnn-1", partial(_dnn, (32,)), "one convolution, one dense layer", 0.9775),
    _digits_28("dnn-2", partial(_dnn, (32, 64)), "two convolutions, one dense layer", 0.9795),
    _digits_28("dnn-3", partial(_dnn, (32, 64), normed=(64,)), "dnn-2 with batch norm", 0.9838),
    _digits_28("dnn-4", partial(_dnn, (32, 64), normed=(64,), hidden=128), "dnn-3 with two dense layers", 0.9906),
    _digits_28(
        "dnn-5", partial(_dnn, (32, 64), normed=(64,), hidden=128, dropout=(0.5, 0.0)), "dnn-4 with dropout", 0.9916
    ),
    _digits_28(
        "dnn-6",
        partial(_dnn, (32, 64, 128), normed=(128,), hidden=128, dropout=(0.5, 0.0)),
        "three convolutions, two dense layers",
        0.9913,
    ),
    _digits_28(
        "dnn-7",
        partial(_dnn, (16, 32, 64, 128), normed=(32, 64, 128), hidden=256, dropout=(0.5, 0.5)),
        "four convolutions, two dense layers",
        0.9941,
    ),
    Entry(
        name="mnist-attack",
        build=partial(_attack, 1, 28, (32, 64), 200),
        input_shape=(1, 28, 28),
        classes=10,
        description="four convolutions, two poolings, three dense layers",
        reference=f"the MNIST network of the attacks of {_PAPER}",
        data="mnist",
        recipe=KERAS,
        paper_accuracy=0.9936,
    ),
    Entry(
        name="cifar10-attack",
        build=partial(_attack, 3, 32, (64, 128), 256),
        input_shape=(3, 32, 32),
        classes=10,
        description="four convolutions, two poolings, three dense layers",
        reference=f"the CIFAR-10 network of the attacks of {_PAPER}",
        data="cifar10",
        recipe=replace(KERAS, seed=1),  # of the seeds 0 to 3 the first within 0.5 points of the paper's accuracy
        paper_accuracy=0.7830,
    ),
    _robust(
        "mnist-attack-l2",
        partial(_attack, 1, 28, (32, 64), 200),
        "mnist-attack, trained against L2 perturbations",
        L2_ADVERSARIAL,
    ),
    _robust(
        "mnist-attack-trades",
        partial(_attack, 1, 28, (32, 64), 200),
        "mnist-attack, trained with TRADES against L-infinity perturbations",
        TRADES,
    ),
    _robust(
        "mnist-convbig",
        _conv_big,
        "four convolutions, three dense layers, trained against L-infinity perturbations",
        LINF_ADVERSARIAL,
    ),
    Entry(
        name="cifar10-resnet20",
        build=resnet,
        input_shape=(3, 32, 32),
        classes=10,
        description="a residual network of 20 layers, shortcuts without weights",
        reference="He et al., Deep Residual Learning for Image Recognition, section 4.2",
        data="cifar10",
        recipe=RESNET,
        paper_accuracy=None,
    ),
)

NETWORKS: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
