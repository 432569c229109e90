"""What networks are made of: the table of all ideas, one small function for each.

Each appends operations to a draft. To add an operation: its entry in the three tables of operations (``torch_ops``,
``exact_ops``, ``onnx_ops``), a function that uses it in ``layers`` or ``extremes``, and its entry here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fuzz import extremes, layers
from fuzz.net import Draft

__all__ = ["IDEAS", "Idea"]


@dataclass(frozen=True)
class Idea:
    """Something that a network can begin with or go on with.

    Attributes:
        write: Appends it to a draft.
        needs: The samples that it takes.
        bounded: Whether l0tre is expected to bound it; else only a grid can be searched.
        first: Whether it comes at a network's beginning only.
        alone: Whether nothing but the scores follows.
    """

    write: Callable[[Draft], None]
    needs: Literal["image", "vector", "any"] = "any"
    bounded: bool = True
    first: bool = False
    alone: bool = False


IDEAS: Mapping[str, Idea] = {
    "conv": Idea(partial(layers.behind, layers.bend), "image"),
    "linear": Idea(partial(layers.behind, layers.relu), "vector"),
    "dense_map": Idea(layers.linear, "any"),
    "leaky_relu": Idea(partial(layers.behind, layers.leaky_relu)),
    "clip": Idea(partial(layers.behind, layers.clip)),
    "sigmoid": Idea(partial(layers.curve, "sigmoid")),
    "tanh": Idea(partial(layers.curve, "tanh")),
    "elu": Idea(partial(layers.curve, "elu")),
    "softplus": Idea(partial(layers.curve, "softplus")),
    "silu": Idea(partial(layers.curve, "silu")),
    "gelu": Idea(partial(layers.curve, "gelu")),
    "gelu_tanh": Idea(partial(layers.curve, "gelu_tanh")),
    "hard_swish": Idea(partial(layers.curve, "hard_swish")),
    "slice": Idea(layers.take),
    "batch_norm": Idea(layers.batch_norm),
    "uncentred": Idea(extremes.uncentred),
    "constants": Idea(layers.constants),
    "division": Idea(extremes.division, first=True),
    "max_pool": Idea(layers.max_pool, "image"),
    "avg_pool": Idea(layers.avg_pool, "image"),
    "mean": Idea(layers.mean),
    "pad": Idea(layers.pad),
    "reshape": Idea(layers.reshape),
    "transpose": Idea(layers.transpose),
    "residual_sum": Idea(partial(layers.residual, "add")),
    "residual_difference": Idea(partial(layers.residual, "sub")),
    "concat": Idea(layers.concat),
    "nothing": Idea(layers.nothing),
    "cancel": Idea(extremes.cancel),
    "powers": Idea(extremes.powers),
    "chain": Idea(extremes.chain, first=True),
    "replicate": Idea(extremes.replicate),
    "spot": Idea(extremes.spot, first=True),
    "picture": Idea(partial(layers.picture, deep=False), "image", first=True, alone=True),
    "deep_picture": Idea(partial(layers.picture, deep=True), "image", first=True, alone=True),
    "layout": Idea(layers.layout, first=True),
    "product": Idea(layers.product, bounded=False),
    "rounded": Idea(layers.rounded, bounded=False),
    "inner_softmax": Idea(partial(layers.inner_softmax, "softmax"), bounded=False),
    "inner_log_softmax": Idea(partial(layers.inner_softmax, "log_softmax"), bounded=False),
}
