import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.pt2_import import import_pt2
from tests.model.pt2_files import IMAGE, check, edited, export, records, save, torch_bytes, write


class Mixed(nn.Module):
    """Most of what the format can hold: buffers of both kinds, constants, tied weights, all sorts of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 4, padding="same")
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, bias=False)
        self.third = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, bias=False)
        self.third.weight = self.second.weight
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.linear = nn.Linear(32, 5)
        self.drop = nn.Dropout(inplace=True)
        self.register_buffer("shift", torch.randn(5))
        self.register_buffer("hidden", torch.rand(3, 4).T[:, 1:2, None], persistent=False)
        self.constant = torch.rand(5) + 1
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first((x - 0.3) / torch.tensor([0.5, 0.7]).view(1, 2, 1, 1))), inplace=True)
        x = x + F.hardtanh(F.leaky_relu(x, 0.1), 0.2, 2.0) * self.get_buffer("hidden")
        x = torch.cat([self.pool(self.second(x)), F.max_pool2d(self.third(x).clamp(min=-0.1), 2)], dim=1)
        x = self.drop(x.view(x.size(0), -1))
        x = self.linear(x) * self.constant + self.get_buffer("shift")
        return F.log_softmax(1 - x.sigmoid() + x.tanh(), dim=1)


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return Mixed().eval()


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("batch", [None, 1, 3])
def test_round_trip(tmp_path: Path, batch: int | None, decomposed: bool) -> None:
    module = mixed()
    check(save(export(module, IMAGE, batch, decomposed), tmp_path / "net.pt2"), module, IMAGE)


class Pools(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.adaptive_avg_pool2d(x, (4, 2)), F.avg_pool2d(x, (2, 4)), F.adaptive_max_pool2d(x, (4, 2))], 1)
        return F.pad(F.relu6(x), (0, 1), value=0.5).permute(0, 2, 3, 1).mean((1, 2))


SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3, bias=False)), (6,)),
    "pools": (Pools, IMAGE),
    "global pool": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(1)), IMAGE),
    "flat": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), (2, 3)),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_small_networks(tmp_path: Path, name: str, decomposed: bool) -> None:
    torch.manual_seed(1)
    make, shape = SMALL[name]
    module = make()
    check(save(export(module, shape, 1, decomposed), tmp_path / "net.pt2"), module, shape)


def test_half_precision(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).half()
    program = torch.export.export(module, (torch.zeros(2, 6, dtype=torch.half),))
    with pytest.raises(UnsupportedOperationError, match="float16, which rounds"):
        import_pt2(save(program, tmp_path / "net.pt2"))


@pytest.fixture(scope="module")
def linear() -> tuple[nn.Module, ExportedProgram]:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return module, export(module, (4,), None)


def test_the_layout_of_torch_2_6(tmp_path: Path) -> None:
    from torch._export.serde.serialize import serialize

    module = mixed()
    artifact = serialize(export(module, IMAGE, 2))
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("version", "8.8")
    check(path, module, IMAGE)


def test_the_layout_of_torch_2_8(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    module, program = linear
    content = records(save(program, tmp_path / "net.pt2"))
    kept = {name: data for name, data in content.items() if "/data/" not in name}
    kept["net/data/weights/model.pt"] = torch_bytes(dict(module.state_dict()))
    kept["net/data/constants/model.pt"] = torch_bytes({})
    check(write(tmp_path / "other.pt2", kept), module, (4,))


def test_pickled_plain_tensors_are_read(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    module, program = linear
    path = edited(tmp_path, program, "weights_config.json", lambda c: c["config"]["0.weight"].update(use_pickle=True))
    weight = nn.Parameter(module.get_parameter("0.weight").detach().clone())
    content = records(path)
    entry = json.loads(content["net/data/weights/model_weights_config.json"])["config"]["0.weight"]
    content[f"net/data/weights/{entry['path_name']}"] = torch_bytes(weight)
    check(write(tmp_path / "pickled.pt2", content), module, (4,))


class Several(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("count").add_(1)
        return x * self.get_buffer("count")


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_programs_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with pytest.raises(UnsupportedOperationError, match=r"aten\.sin\.default"):
        import_pt2(save(export(Applied(torch.sin), (4,), 2), path))
    with pytest.raises(ModelError, match="2 outputs"):
        import_pt2(save(export(Applied(lambda x: (x, -x)), (4,), 2), path))
    with pytest.raises(ModelError, match="2 inputs"):
        import_pt2(save(torch.export.export(Several(), (torch.zeros(2, 4), torch.zeros(2, 4))), path))
    sizes = ({1: Dim("width", max=64)},)
    with pytest.raises(ModelError, match="may be dynamic"):
        import_pt2(save(torch.export.export(Applied(torch.relu), (torch.zeros(2, 4),), dynamic_shapes=sizes), path))
    with pytest.raises(ModelError, match="batch"):
        import_pt2(save(torch.export.export(Applied(torch.relu), (torch.zeros(4),)), path))
    with pytest.raises(ModelError, match="in place"):
        import_pt2(save(export(Counting(), (4,), 2), path))
    with pytest.raises(ModelError, match="changes its own buffers"):
        import_pt2(save(export(Counting(), (4,), 2, decomposed=True), path))
    for batch in (1, 3, None):
        with pytest.raises(UnsupportedOperationError, match="batch dimension"):
            import_pt2(save(export(Applied(lambda x: x.flatten().relu()), (4,), batch), path))


def test_views_of_what_was_made_contiguous(tmp_path: Path) -> None:
    """A file says of a copy that it is contiguous, which is about memory and left out."""

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 2, 1).contiguous().view(x.shape[0], 6)

    for decomposed in (False, True):
        program = export(Turned(), (2, 3), None, decomposed)
        check(save(program, tmp_path / f"{decomposed}.pt2"), Turned(), (2, 3))
