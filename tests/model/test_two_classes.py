from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ModelError
from tests.tools import NO_ATTACK


def module(last: nn.Module | None, *, flat: bool) -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)]
    if last is not None:
        parts.append(last)
    return nn.Sequential(*parts, *([nn.Flatten(0)] if flat else [])).eval()


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(("last", "cut"), [(None, 0.0), (nn.Sigmoid(), 0.5)])
def test_one_number_is_read_as_a_probability_or_a_logit(last: Any, cut: float, flat: bool) -> None:
    source = module(last, flat=flat)
    network = l0tre.load(source, input_shape=(3,))
    x = torch.rand(50, 3)
    assert network.classes == 2
    assert torch.equal(network.scores(x).argmax(1), (source(x).reshape(-1) > cut).long())
    assert ("probability" if cut else "logit") in network.reading
    if not flat:
        result = l0tre.evaluate(network, x[:3], max_t=1, **NO_ATTACK)
        assert {image.guarantee for image in result} == {"certified"}
        assert "one number for two classes" in result.config["model"]["reading"]


def test_functions_and_files_too(tmp_path: Path) -> None:
    black_box = l0tre.load(lambda x: x[:, 0] - 0.5, input_shape=(3,))
    assert black_box.scores(torch.tensor([[0.9, 0, 0], [0.1, 0, 0]])).argmax(1).tolist() == [1, 0]
    torch.onnx.export(module(nn.Sigmoid(), flat=False), (torch.rand(1, 3),), tmp_path / "n.onnx", verbose=False)
    network = l0tre.load(tmp_path / "n.onnx")
    x = torch.rand(20, 3)
    expected = (module(nn.Sigmoid(), flat=False)(x)[:, 0] > 0.5).long()
    assert torch.equal(network.scores(x).argmax(1), expected)
    assert network.exact is not None


def test_a_network_of_many_scores_never_gives_one_number() -> None:
    """Neither at points that it is not loaded with: three numbers for three inputs are no row of three scores."""

    def erratic(x: Tensor) -> Tensor:
        scores = torch.stack([x.sum(1), 1 - x.sum(1), x[:, 0]], 1)
        return scores[:, 0] if bool((x == 0.125).all()) else scores

    network = l0tre.load(erratic, input_shape=(4,))
    with pytest.raises(ModelError, match=r"scores of shape \(3,\)"):
        network.scores(torch.full((3, 4), 0.125))
