"""Elementwise operations on differences as one kernel of a GPU, in place of three to five.

torch adds a small tensor to a large one slowly where the large one has the batch in front, and the layers between
convolutions are nothing but that. Here the unchanged image's values are read once for many rows. Triton comes with
torch on the systems that have it; where it is missing or does not work, nothing here is used.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from l0tre.model.graph import run_operation
from l0tre.model.operations import Operation

__all__ = ["fused_change", "works"]

BLOCK, ROWS = 1024, 16  # values and rows that one program goes through
# Kinds of operations by the number that the kernel knows them by.
NUMBERS = {"relu": 0, "clip": 0, "silu": 1, "sigmoid": 2, "hard_swish": 3}


@lru_cache(maxsize=1)
def _kernel() -> tuple[Any, Any]:
    import triton
    import triton.language as tl

    # Triton reads the source of what it compiles and looks names up where that was defined.
    globals().update(triton=triton, tl=tl)

    @triton.jit  # type: ignore[untyped-decorator]
    def change_of_curve(  # type: ignore[no-untyped-def]
        change, before, result, rows, length, scale, low, high,
        kind: tl.constexpr, block: tl.constexpr, count: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0) * block + tl.arange(0, block)
        real = place < length
        x = tl.load(before + place, mask=real, other=0.0).to(tl.float32)
        if kind == 0:
            floor, ceiling = (low - x) * scale, (high - x) * scale
            gone = (x - tl.minimum(tl.maximum(x, low), high)) * scale
        elif kind == 1:
            own = x / (1.0 + tl.exp(-x))
        elif kind == 2:
            own = 1.0 / (1.0 + tl.exp(-x))
        else:
            own = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
        first = tl.program_id(1) * count
        for step in range(count):
            row = (first + step).to(tl.int64)
            here = real & (row < rows)
            d = tl.load(change + row * length + place, mask=here, other=0.0).to(tl.float32)
            if kind == 0:
                found = tl.minimum(tl.maximum(d, floor), ceiling) + gone
            else:
                y = x + d / scale
                if kind == 1:
                    found = (y / (1.0 + tl.exp(-y)) - own) * scale
                elif kind == 2:
                    found = (1.0 / (1.0 + tl.exp(-y)) - own) * scale
                else:
                    found = (y * tl.minimum(tl.maximum(y + 3.0, 0.0), 6.0) / 6.0 - own) * scale
            tl.store(result + row * length + place, found.to(result.dtype.element_ty), mask=here)

    return triton, change_of_curve


def fused_change(operation: Operation, change: Tensor, before: Tensor, scale: float) -> Tensor | None:
    """What an elementwise operation makes of a change of its input.

    Args:
        operation: Any elementwise operation.
        change: On a GPU, ``scale`` times the change: ``[rows, *shape]``.
        before: float32 ``[1, *shape]``, what the operation reads for the unchanged image.
        scale: See ``change``.

    Returns:
        ``scale`` times the change of the output, as ``change``; ``None`` where there is no kernel for it.
    """
    if operation.kind not in NUMBERS or not change.is_cuda or not works(change.device):
        return None
    return _launch(operation, change, before, scale)


def _launch(operation: Operation, change: Tensor, before: Tensor, scale: float) -> Tensor:
    triton, kernel = _kernel()
    last = change.ndim == 4 and change.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    change, before = change.contiguous(memory_format=layout), before.contiguous(memory_format=layout)
    result = torch.empty_like(change)
    rows, length = len(change), before.numel()
    low, high = 0.0, float("inf")
    if operation.kind == "clip":
        low, high = operation.number("low"), operation.number("high")
    with torch.cuda.device(change.device):
        kernel[triton.cdiv(length, BLOCK), triton.cdiv(rows, ROWS)](
            change,
            before,
            result,
            rows,
            length,
            scale,
            low,
            high,
            kind=NUMBERS[operation.kind],
            block=BLOCK,
            count=ROWS,
        )
    return result


@lru_cache(maxsize=8)
def works(device: torch.device) -> bool:
    """Whether the kernel can be built on this machine and gives what torch gives."""
    if torch.device(device).type != "cuda":
        return False
    generator = torch.Generator().manual_seed(0)
    before, change = (torch.randn(rows, 3, 5, 7, generator=generator).to(device) for rows in (1, 19))
    try:
        for kind in NUMBERS:
            operation = Operation(kind, (0,), (3, 5, 7), attributes={"low": -0.5, "high": 0.5})
            want = run_operation(operation, before + change) - run_operation(operation, before)
            for value in (change, change.contiguous(memory_format=torch.channels_last)):
                found = _launch(operation, value * 4, before, 4.0) / 4
                if not torch.allclose(found, want, atol=1e-5):
                    return False
    except Exception:  # no Triton, no compiler, a driver that it does not know: whatever it is, torch does it, too
        return False
    return True
