"""Programs of torch.export as files, and their records one by one."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from l0tre.model.calls import run_calls
from l0tre.model.double import double_module
from l0tre.model.graph import run
from l0tre.model.pt2_import import import_pt2, read_pt2

IMAGE = (2, 8, 8)
HINT = r"torch\.export\.save"


def export(module: nn.Module, shape: tuple[int, ...], batch: int | None, decomposed: bool = False) -> ExportedProgram:
    dynamic = ({0: Dim("batch")},) if batch is None else None
    program = torch.export.export(module.eval(), (torch.zeros(batch or 2, *shape),), dynamic_shapes=dynamic)
    return program.run_decompositions() if decomposed else program


def save(program: ExportedProgram, path: Path) -> Path:
    torch.export.save(program, path)
    return path


def check(path: Path, module: nn.Module, shape: tuple[int, ...]) -> None:
    graph = import_pt2(path)
    assert graph.input_shape == shape
    for batch in (1, 5):
        x = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = module.eval()(x)
            exact = double_module(module)(x.double())
        torch.testing.assert_close(run(graph.to("cpu"), x), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(run(graph, x.double()), exact, atol=1e-12, rtol=1e-12)
        program = read_pt2(path)
        torch.testing.assert_close(run_calls(program, x), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(run_calls(program, x.double()), exact, atol=1e-12, rtol=1e-12)


def records(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def torch_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def edited(tmp_path: Path, program: ExportedProgram, ending: str, edit: Callable[[Any], object]) -> Path:
    """A copy of a saved program with one JSON record changed."""
    content = records(save(program, tmp_path / "net.pt2"))
    (record,) = (entry for entry in content if entry.endswith(ending))
    parsed = json.loads(content[record])
    edit(parsed)
    return write(tmp_path / "edited.pt2", {**content, record: json.dumps(parsed).encode()})
