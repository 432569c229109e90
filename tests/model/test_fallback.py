"""Networks with operations that are not known: run by their own source, with the guarantee grid."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.attacks.meter import has_gradients
from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import Call, Program, Ref, check_harmless
from tests.tools import NO_ATTACK


class Mixed(nn.Module):
    """Layer normalisation, attention and products of values, none of which can be bounded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(8, 3)
        self.keys = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.norm(x)
        mixed = torch.softmax(self.keys(rows) @ rows.transpose(1, 2), 2) @ rows
        scores: torch.Tensor = self.out((mixed * rows.cos()).flatten(1))
        return scores


def export(path: Path) -> Path:
    module, x = Mixed().eval(), torch.rand(2, 2, 4)
    batch = torch.export.Dim("batch", min=1, max=1024)
    if path.suffix == ".pt2":
        torch.export.save(torch.export.export(module, (x,), dynamic_shapes=({0: batch},)), path)
    else:
        torch.onnx.export(module, (x,), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_the_source_itself_takes_over(tmp_path: Path, suffix: str) -> None:
    network = l0tre.load(export(tmp_path / f"net{suffix}"))
    assert network.graph is None
    assert network.input_shape == (2, 4)
    assert "as it is" in network.note
    x = torch.rand(5, 2, 4)
    torch.testing.assert_close(network.scores(x), Mixed().eval()(x).detach(), rtol=1e-4, atol=1e-5)
    result = l0tre.evaluate(network, x, max_t=1, **NO_ATTACK)
    assert {image.guarantee for image in result} == {"grid"}
    assert "cannot be certified" in result.config["guarantee"]["note"]
    with pytest.raises(ModelError, match="certified"):
        l0tre.evaluate(network, x, guarantee="certified")
    assert has_gradients(network) == (suffix == ".pt2")
    found = l0tre.attack_details(network, x, budget=300)
    assert found.forwards.sum() > 0


@pytest.mark.parametrize(
    "target",
    [
        "aten.from_file.default",
        "aten.add_.Tensor",
        "prims.add.default",
        "_operator.pow",
        "aten.segment_reduce.default",
        "aten._foreach_add.Scalar",
    ],
)
def test_programs_that_do_more_than_compute_are_refused(target: str) -> None:
    arguments: Any = (Ref("x"), Ref("x"))
    program = Program([Call(target, "y", arguments)], {}, "x", (2,), None, "y")
    with pytest.raises(UnsupportedOperationError, match=target):
        check_harmless(program)


class Balance(nn.Module):
    """Adds all values to one number without an axis, which nothing can split."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.flatten(1).sum(1)
        return torch.stack([total, 4.2 - total], 1)


def test_a_number_without_an_axis_is_no_crash() -> None:
    network = l0tre.load(Balance(), input_shape=(6,))
    assert network.graph is None
    assert "gives one number without an axis of its own" in network.note
    result = l0tre.evaluate(network, torch.rand(3, 6), max_t=1, **NO_ATTACK)
    assert {image.guarantee for image in result} == {"grid"}
