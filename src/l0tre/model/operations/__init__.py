"""The operations of a graph: one file for each kind or tight family, and the table of them all."""

from collections.abc import Mapping

from l0tre.model.operations.arithmetic import ADD, MUL, SUB
from l0tre.model.operations.avg_pool import AVG_POOL
from l0tre.model.operations.clip import CLIP
from l0tre.model.operations.conv import CONV
from l0tre.model.operations.elu import ELU, SOFTPLUS
from l0tre.model.operations.kind import OperationKind
from l0tre.model.operations.linear import LINEAR
from l0tre.model.operations.max_pool import MAX_POOL
from l0tre.model.operations.mean import MEAN
from l0tre.model.operations.operation import Attribute, Operation
from l0tre.model.operations.relu import LEAKY_RELU, RELU
from l0tre.model.operations.scale import SCALE
from l0tre.model.operations.shape import CONCAT, PAD, RESHAPE, TRANSPOSE
from l0tre.model.operations.sigmoid import SIGMOID, TANH
from l0tre.model.operations.silu import GELU, GELU_TANH, HARD_SWISH, SILU
from l0tre.model.operations.slice import SLICE
from l0tre.model.operations.softmax import LOG_SOFTMAX, SOFTMAX

__all__ = ["KINDS", "Attribute", "Operation"]

KINDS: Mapping[str, OperationKind] = {
    "conv": CONV,
    "linear": LINEAR,
    "scale": SCALE,
    "relu": RELU,
    "leaky_relu": LEAKY_RELU,
    "sigmoid": SIGMOID,
    "tanh": TANH,
    "clip": CLIP,
    "elu": ELU,
    "softplus": SOFTPLUS,
    "silu": SILU,
    "gelu": GELU,
    "gelu_tanh": GELU_TANH,
    "hard_swish": HARD_SWISH,
    "max_pool": MAX_POOL,
    "avg_pool": AVG_POOL,
    "mean": MEAN,
    "reshape": RESHAPE,
    "transpose": TRANSPOSE,
    "pad": PAD,
    "slice": SLICE,
    "add": ADD,
    "sub": SUB,
    "mul": MUL,
    "concat": CONCAT,
    "softmax": SOFTMAX,
    "log_softmax": LOG_SOFTMAX,
}
