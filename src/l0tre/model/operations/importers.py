"""Importers that stand in the files of their operations, by the source's name of the operator."""

from l0tre.model.operations import elu, silu, slice

__all__ = ["ATEN", "ONNX"]

ATEN = {**elu.ATEN, **silu.ATEN, **slice.ATEN}
ONNX = {**elu.ONNX, **silu.ONNX, **slice.ONNX}
