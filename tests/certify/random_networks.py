"""Tiny random networks of every layer type with random domains, and networks of a distance known by construction."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0tre
from l0tre.domain import Domain, make_domain
from l0tre.layout import channel_axis
from l0tre.model.graph import Graph
from l0tre.model.network import Network, margins

__all__ = ["KINDS", "SMOOTH", "Case", "planted", "random_case"]

Shape = tuple[int, ...]
Draw = random.Random


@dataclass(frozen=True)
class Case:
    """A network, an input that it decides clearly, and what may change.

    Attributes:
        module: Scores of a batch in the domain's units, normalisation included, in evaluation mode.
        graph: The same operations, float32, as imported; a final softmax is dropped.
        network: The loaded network that the graph belongs to.
        image: float32 ``domain.shape``, inside the domain.
        label: The network's decision there.
        domain: The groups and their ranges.
        kind: A key of ``KINDS``, or ``"planted"``.
    """

    module: nn.Module
    graph: Graph
    network: Network
    image: Tensor
    label: int
    domain: Domain
    kind: str


class Body(nn.Module):
    """Two branches on the same features, combined; an identity as the second makes it a shortcut."""

    def __init__(self, first: nn.Module, second: nn.Module, how: str) -> None:
        super().__init__()
        self.first, self.second, self.how = first, second, how

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x), self.second(x)
        return torch.cat([a, b], 1) if self.how == "concat" else a + b if self.how == "add" else a - b


class Arithmetic(nn.Module):
    """Constants of every kind, single numbers and one for each value."""

    def __init__(self, shape: Shape, how: str) -> None:
        super().__init__()
        self.register_buffer("factor", torch.rand(shape) + 0.5)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        factor = self.get_buffer("factor")
        if self.how == "affine":
            return (2.0 * x - 0.5) * factor / 0.75
        if self.how == "reverse":
            return -(1.0 - x) + factor
        return F.pad(x - factor, (1, 0), value=0.5)


class Layout(nn.Module):
    """Moves values about; ``order`` is a permutation of the sample's dimensions, counted from 1."""

    def __init__(self, order: Sequence[int], shape: Shape | None = None) -> None:
        super().__init__()
        self.order, self.shape = tuple(order), shape

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, *self.order)
        return x if self.shape is None else x.reshape(-1, *self.shape)


class Normalised(nn.Module):
    """A module behind ``(x - mean) / std``."""

    def __init__(self, inner: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner((x - self.get_buffer("mean")) / self.get_buffer("std"))
        return scores


def _bend(draw: Draw) -> nn.Module:
    """A piecewise linear activation."""
    return draw.choice([nn.ReLU(), nn.ReLU(), nn.LeakyReLU(draw.choice([0.01, 0.3])), nn.ReLU6(), nn.Hardtanh(-0.5, 2)])


def _size(features: nn.Module, shape: Shape) -> Shape:
    """Shape of one sample after some layers."""
    with torch.no_grad():
        return tuple(features.eval()(torch.zeros(1, *shape)).shape[1:])


def _conv(draw: Draw, shape: Shape, width: int = 0) -> nn.Conv2d:
    """A convolution that fits images of a shape; ``width`` asks for that many channels and an unchanged size."""
    channels, height, wide = shape
    if width:
        return nn.Conv2d(channels, width, 3, padding=1)
    groups = draw.choice([1, channels])
    padding, dilation = draw.randint(0, 1), draw.choice([1, 1, 2])
    kernel = tuple(min(draw.randint(1, 3), (size + 2 * padding - 1) // dilation + 1) for size in (height, wide))
    out = channels if groups > 1 else draw.randint(2, 3)
    stride = draw.choice([1, 1, 2])
    return nn.Conv2d(channels, out, (kernel[0], kernel[1]), stride, padding, dilation, groups, bias=draw.random() < 0.8)


def _image(draw: Draw) -> Shape:
    return (draw.choice([1, 3]), *draw.choice([(2, 2), (2, 3), (3, 3), (3, 4)]))


def _dense(draw: Draw) -> tuple[nn.Module, Shape]:
    wide = draw.randint(3, 8)
    layers: list[nn.Module] = [nn.Linear(wide, 6), _bend(draw)]
    if draw.random() < 0.5:
        layers += [nn.Linear(6, 5), _bend(draw)]
    return nn.Sequential(*layers), (wide,)


def _batch_norm(draw: Draw) -> tuple[nn.Module, Shape]:
    if draw.random() < 0.5:
        wide = draw.randint(3, 8)
        return nn.Sequential(nn.Linear(wide, 6), nn.BatchNorm1d(6), _bend(draw), nn.Dropout(0.5)), (wide,)
    shape = _image(draw)
    conv = _conv(draw, shape)
    return nn.Sequential(nn.BatchNorm2d(shape[0]), conv, nn.BatchNorm2d(conv.out_channels), _bend(draw)), shape


def _convolution(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw)
    first = nn.Sequential(_conv(draw, shape), _bend(draw))
    if draw.random() < 0.5:
        return first, shape
    return nn.Sequential(first, _conv(draw, _size(first, shape)), nn.ReLU(), nn.Dropout2d(0.3)), shape


def _pool(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw)
    conv = _conv(draw, shape, 2) if draw.random() < 0.7 else nn.Identity()
    pool = nn.MaxPool2d(2, draw.choice([1, 2]), draw.randint(0, 1))
    return nn.Sequential(conv, _bend(draw), pool), shape


def _average(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw)
    padding = draw.randint(0, 1)
    window = nn.AvgPool2d(2, draw.choice([1, 2]), padding, count_include_pad=draw.random() < 0.5)
    pool = draw.choice([window, nn.AdaptiveAvgPool2d(1)])
    return nn.Sequential(_conv(draw, shape, 4), _bend(draw), pool), shape


def _residual(how: str, draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw) if draw.random() < 0.5 else (draw.randint(3, 8),)
    inner = _conv(draw, shape, shape[0]) if len(shape) == 3 else nn.Linear(shape[0], shape[0])
    return nn.Sequential(Body(nn.Sequential(inner, _bend(draw)), nn.Identity(), how), nn.ReLU()), shape


def _concat(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw)
    first, second = (nn.Sequential(_conv(draw, shape, 2), _bend(draw)) for _ in range(2))
    return Body(first, draw.choice([second, nn.Identity()]), "concat"), shape


def _arithmetic(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = _image(draw)[1:]
    start = Arithmetic(shape, draw.choice(["affine", "reverse", "pad"]))
    plane = _size(start, shape)
    order = draw.choice([(1, 2), (2, 1)])
    turned = (plane[order[0] - 1], plane[order[1] - 1])
    ahead = nn.Sequential(start, nn.Linear(plane[1], plane[1]), _bend(draw), Layout(order, (1, *turned)))
    return nn.Sequential(ahead, nn.Conv2d(1, 2, 2), nn.ReLU()), shape


def _channels_last(draw: Draw) -> tuple[nn.Module, Shape]:
    shape = (5, 2, draw.choice([1, 3]))
    return nn.Sequential(Layout((3, 1, 2)), _conv(draw, (shape[2], 5, 2)), _bend(draw)), shape


def _linear(draw: Draw) -> tuple[nn.Module, Shape]:
    return nn.Identity(), draw.choice([(draw.randint(3, 8),), _image(draw)])


def _smooth(curve: type[nn.Module], draw: Draw) -> tuple[nn.Module, Shape]:
    if draw.random() < 0.5:
        wide = draw.randint(3, 8)
        return nn.Sequential(nn.Linear(wide, 6), curve(), nn.Linear(6, 5), draw.choice([curve(), nn.ReLU()])), (wide,)
    shape = _image(draw)
    return nn.Sequential(_conv(draw, shape), curve()), shape


KINDS: Mapping[str, Callable[[Draw], tuple[nn.Module, Shape]]] = {
    "dense": _dense,
    "batch_norm": _batch_norm,
    "convolution": _convolution,
    "max_pool": _pool,
    "average": _average,
    "residual": partial(_residual, "add"),
    "difference": partial(_residual, "sub"),
    "concat": _concat,
    "arithmetic": _arithmetic,
    "channels_last": _channels_last,
    "linear": _linear,
    "sigmoid": partial(_smooth, nn.Sigmoid),
    "tanh": partial(_smooth, nn.Tanh),
}
SMOOTH = frozenset({"sigmoid", "tanh"})  # kinds that are not piecewise linear


@cache
def random_case(seed: int) -> Case:
    """A tiny random network of at most 12 groups with a random domain; consecutive seeds go through all kinds.

    Args:
        seed: Decides everything; the global random state is left alone.

    Returns:
        The case; do not change its tensors, it is kept.
    """
    draw = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        features, shape = KINDS[kind](draw)
        head = nn.Linear(_size(nn.Sequential(features, nn.Flatten()), shape)[0], draw.choice([2, 3, 3, 4]))
        end = draw.choice([nn.Identity(), nn.Identity(), nn.Softmax(1), nn.LogSoftmax(1)])
        inner = nn.Sequential(features, nn.Flatten(), head, end)
        _enliven(inner)
        mean, std = _normalisation(draw, shape)
        domain = _domain(draw, shape)
        image = _inside(draw, domain)
        module = _outer(inner, mean, std, shape).eval().requires_grad_(False)
        label = _settle(draw, module, head, image, domain)
    return _case(inner, module, mean, std, image, label, domain, kind)


def planted(
    pixels: Sequence[int], values: Sequence[float], shape: Shape = (1, 4, 4), radius: float = 0.1, start: float = 0.5
) -> Case:
    """A network whose decision changes only where all chosen pixels are near chosen values at once.

    Class 1 wins over class 0 exactly where the distances of the pixels' values (all channels) from the chosen ones add
    up to less than ``radius``. All values are ``start``, too far from any chosen value, so the distance is the number
    of pixels, and the smallest margin of all of them together is ``-radius``.

    Args:
        pixels: Row-major pixel numbers, without repetition.
        values: One for each pixel, in [0, 1], further than ``radius`` from ``start``.
        shape: ``(C, H, W)``.
        radius: Size of the spot, in the domain's units.
        start: Every value of the image.

    Returns:
        The case; the label is 0.

    Raises:
        ValueError: If a chosen value is too near ``start``, so that fewer pixels would do.
    """
    if min(abs(value - start) for value in values) <= radius:
        raise ValueError(f"values {list(values)} must be further than {radius} from {start}")
    plane = shape[1] * shape[2]
    spots = [(c * plane + p, v) for p, v in zip(pixels, values, strict=True) for c in range(shape[0])]
    distances, spot, head = nn.Linear(shape[0] * plane, 2 * len(spots)), nn.Linear(2 * len(spots), 1), nn.Linear(1, 3)
    with torch.no_grad():
        distances.weight.zero_()
        for number, (position, value) in enumerate(spots):
            for row, sign in ((2 * number, 1.0), (2 * number + 1, -1.0)):
                distances.weight[row, position] = sign
                distances.bias[row] = -sign * value
        spot.weight.fill_(-1.0)
        spot.bias.fill_(2 * radius)
        head.weight.copy_(torch.tensor([[0.0], [1.0], [0.5]]))
        head.bias.copy_(torch.tensor([radius, 0.0, -0.5 * radius]))
    module = nn.Sequential(nn.Flatten(), distances, nn.ReLU(), spot, nn.ReLU(), head).eval().requires_grad_(False)
    return _case(module, module, None, None, torch.full(shape, start), 0, make_domain(shape), "planted")


Numbers = list[float] | float | None


def _case(
    inner: nn.Module,
    module: nn.Module,
    mean: Numbers,
    std: Numbers,
    image: Tensor,
    label: int,
    domain: Domain,
    kind: str,
) -> Case:
    network = l0tre.load(inner, mean=mean, std=std, input_shape=domain.shape, device="cpu")
    assert network.graph is not None, network.note
    return Case(module, network.graph, network, image, label, domain, kind)


def _enliven(module: nn.Module) -> None:
    """Enough gain for small distances, and batch norms that do something."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.weight.data *= 2.0
        elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor, low in (
                (layer.running_mean, -0.3),
                (layer.running_var, 0.3),
                (layer.weight, 0.5),
                (layer.bias, -0.5),
            ):
                assert tensor is not None
                tensor.data.uniform_(low, low + 1.0)


def _normalisation(draw: Draw, shape: Shape) -> tuple[Numbers, Numbers]:
    choice = draw.choice(["none", "none", "one", "each"])
    if choice == "none":
        return None, None
    axis = 0 if len(shape) == 1 else channel_axis(shape)
    if choice == "one" or axis is None:
        return draw.uniform(0.0, 0.5), draw.uniform(0.3, 1.0)
    return [draw.uniform(0.0, 0.5) for _ in range(shape[axis])], [draw.uniform(0.3, 1.0) for _ in range(shape[axis])]


def _outer(inner: nn.Module, mean: Numbers, std: Numbers, shape: Shape) -> nn.Module:
    if mean is None or std is None:
        return inner
    axis = 0 if isinstance(mean, float) or len(shape) == 1 else channel_axis(shape)
    spread = (-1, *[1] * (len(shape) - 1 - (axis or 0)))
    return Normalised(inner, *(torch.tensor(numbers).reshape(spread) for numbers in (mean, std)))


def _domain(draw: Draw, shape: Shape) -> Domain:
    low: float | Tensor = 0.0
    high: float | Tensor = 1.0
    ranges = draw.choice(["unit", "unit", "wide", "each"])
    if ranges == "wide":
        low, high = -1.0, 1.5
    elif ranges == "each":
        low = torch.rand(shape) * 0.6 - 0.4
        # A tenth of the values have no room at all.
        room = torch.where(torch.rand(shape) < 0.1, 0.0, 0.4 + torch.rand(shape))
        room.view(-1)[0] = 0.5  # with the first value, something can always change
        high = low + room
    mask = torch.rand(shape) < 0.8 if draw.random() < 0.3 else torch.ones(shape, dtype=torch.bool)
    mask.view(-1)[0] = True
    if draw.random() < 0.25:
        numbers = torch.randint(-1, 4, shape)
        numbers.view(-1)[0] = 0
        return make_domain(shape, groups=numbers, mask=mask, low=low, high=high)
    return make_domain(shape, mask=mask, low=low, high=high)


def _inside(draw: Draw, domain: Domain) -> Tensor:
    """An image in the domain: anywhere, on its boundary, or partly so."""
    share = torch.rand(domain.low.shape)
    ends = draw.choice([0.0, 0.0, 0.5, 1.0])
    share = torch.where(torch.rand(share.shape) < ends, share.round(), share)
    flat = domain.low + share * (domain.high - domain.low)
    return torch.minimum(torch.maximum(flat, domain.low), domain.high).reshape(domain.shape)


def _settle(draw: Draw, module: nn.Module, head: nn.Linear, image: Tensor, domain: Domain) -> int:
    """The decision at the image, made as firm as is drawn: near it, single groups or only several can change it."""
    logits: list[Tensor] = []
    hook = head.register_forward_hook(lambda _m, _i, out: logits.append(out))
    x = domain.low + torch.rand(200, len(domain.low)) * (domain.high - domain.low)
    module(torch.cat([image[None], x.reshape(-1, *image.shape)]))
    hook.remove()
    scores = logits[0]
    label = int(scores[0].argmax())
    gaps = margins(scores, torch.full((len(scores),), label))
    # The margin here becomes a share of what random inputs lose, so that distances of 1, 2, 3 and more occur.
    wanted = draw.choice([0.2, 0.4, 0.6, 0.8, 1.1, 1.4]) * float(gaps[0] - gaps.min()) + 0.01
    head.bias.data[label] += wanted - float(gaps[0])
    return label
