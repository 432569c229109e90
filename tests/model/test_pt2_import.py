import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import run_calls
from l0tre.model.double import double_module
from l0tre.model.graph import run
from l0tre.model.pt2_import import import_pt2, read_pt2

IMAGE = (2, 8, 8)
HINT = r"torch\.export\.save"


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


def test_the_layout_of_torch_2_8(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    module, program = linear
    content = records(save(program, tmp_path / "net.pt2"))
    kept = {name: data for name, data in content.items() if "/data/" not in name}
    kept["net/data/weights/model.pt"] = torch_bytes(dict(module.state_dict()))
    kept["net/data/constants/model.pt"] = torch_bytes({})
    check(write(tmp_path / "other.pt2", kept), module, (4,))


def edited(tmp_path: Path, program: ExportedProgram, ending: str, edit: Callable[[Any], object]) -> Path:
    """A copy of a saved program with one JSON record changed."""
    content = records(save(program, tmp_path / "net.pt2"))
    (record,) = (entry for entry in content if entry.endswith(ending))
    parsed = json.loads(content[record])
    edit(parsed)
    return write(tmp_path / "edited.pt2", {**content, record: json.dumps(parsed).encode()})


def test_pickled_plain_tensors_are_read(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    module, program = linear
    path = edited(tmp_path, program, "weights_config.json", lambda c: c["config"]["0.weight"].update(use_pickle=True))
    weight = nn.Parameter(module.get_parameter("0.weight").detach().clone())
    content = records(path)
    entry = json.loads(content["net/data/weights/model_weights_config.json"])["config"]["0.weight"]
    content[f"net/data/weights/{entry['path_name']}"] = torch_bytes(weight)
    check(write(tmp_path / "pickled.pt2", content), module, (4,))


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("torch_format", [True, False])
@pytest.mark.parametrize("layout", ["weight", "2.6", "2.8"])
def test_code_in_a_file_is_not_run(
    tmp_path: Path, linear: tuple[nn.Module, ExportedProgram], layout: str, torch_format: bool
) -> None:
    mark = tmp_path / "mark"
    attack = Attack(mark)
    payload = torch_bytes({"0.weight": attack}) if torch_format else pickle.dumps(attack)
    path = edited(tmp_path, linear[1], "weights_config.json", lambda c: c["config"]["0.weight"].update(use_pickle=True))
    content = records(path)
    if layout == "weight":
        content["net/data/weights/weight_0"] = payload
    elif layout == "2.8":
        content["net/data/weights/model.pt"] = payload
    else:
        program = content["net/models/model.json"]
        content = {"serialized_exported_program.json": program, "serialized_constants.pt": torch_bytes({})}
        content["serialized_state_dict.pt"] = payload
    # the records that are not needed hold the same
    content["net/data/sample_inputs/model.pt"] = payload
    path = write(tmp_path / "attack.pt2", content)
    with pytest.raises(ModelError, match="might run code"):
        import_pt2(path)
    assert not mark.exists()
    if not torch_format:
        pickle.loads(payload)  # noqa: S301 - shows that the attack works when it is let through
        assert mark.exists()


def test_other_files_are_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    module = nn.Linear(4, 3)
    torch.save(module, path)
    with pytest.raises(ModelError, match=f"pickled checkpoint.*{HINT}"):
        import_pt2(path)
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(ModelError, match=HINT):
        import_pt2(path)
    torch.jit.trace(module, torch.zeros(1, 4)).save(str(path))
    with pytest.raises(ModelError, match=f"TorchScript.*{HINT}"):
        import_pt2(path)
    path.write_bytes(bytes(range(256)) * 10)
    with pytest.raises(ModelError, match=HINT):
        import_pt2(path)
    write(path, {"some/file": b"text"})
    with pytest.raises(ModelError, match=f"other zip.*{HINT}"):
        import_pt2(path)
    with pytest.raises(ModelError, match=f"there is no file.*{HINT}"):
        import_pt2(tmp_path / "none.pt2")
    with pytest.raises(ModelError, match=HINT):
        import_pt2(tmp_path)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_refused_or_harmless(
    tmp_path: Path, linear: tuple[nn.Module, ExportedProgram], data: st.DataObject
) -> None:
    whole = tmp_path / "whole.pt2"
    content = (whole if whole.exists() else save(linear[1], whole)).read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    changed = content[:position] + bytes([content[position] ^ 0x15]) + content[position + 1 :]
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content[:position] if cut else changed)
    x = torch.randn(3, 4)
    try:
        scores = run(import_pt2(path).to("cpu"), x)
    except ModelError:
        return
    assert not cut
    torch.testing.assert_close(scores, linear[0](x), atol=1e-5, rtol=1e-5)


def test_compressed_and_double_records_are_refused(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    content = records(save(linear[1], tmp_path / "net.pt2"))
    with pytest.raises(ModelError, match="compressed"):
        import_pt2(write(tmp_path / "small.pt2", content, zipfile.ZIP_DEFLATED))
    path = write(tmp_path / "double.pt2", content)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("net/models/model.json", b"{}")
    with pytest.raises(ModelError, match="same name"):
        import_pt2(path)


META_EDITS: dict[str, dict[str, Any]] = {
    "too long": {"sizes": [{"as_int": 30}, {"as_int": 4}]},
    "too far": {"storage_offset": {"as_int": 1}},
    "before the start": {"storage_offset": {"as_int": -1}},
    "backwards": {"strides": [{"as_int": -4}, {"as_int": 1}]},
    "negative": {"sizes": [{"as_int": -3}, {"as_int": -4}]},
    "endless": {"sizes": [{"as_int": 2**40}, {"as_int": 4}], "strides": [{"as_int": 0}, {"as_int": 1}]},
    "other shape": {"sizes": [{"as_int": 4}, {"as_int": 3}], "strides": [{"as_int": 3}, {"as_int": 1}]},
    "no number": {"sizes": [{"as_int": "3"}, {"as_int": 4}]},
    "symbol": {"sizes": [{"as_expr": {"expr_str": "__import__('os')"}}, {"as_int": 4}]},
    "fewer strides": {"strides": [{"as_int": 1}]},
    "type": {"dtype": 9},
    "layout": {"layout": 1},
}


@pytest.mark.parametrize("name", META_EDITS)
def test_sizes_that_do_not_match_the_bytes(
    tmp_path: Path, linear: tuple[nn.Module, ExportedProgram], name: str
) -> None:
    def edit(config: Any) -> None:
        config["config"]["0.weight"]["tensor_meta"].update(META_EDITS[name])

    with pytest.raises(ModelError):
        import_pt2(edited(tmp_path, linear[1], "weights_config.json", edit))


def test_strings_of_the_program_are_not_evaluated(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    """The sizes of a dynamic batch are expressions, which torch.export.load would evaluate."""
    mark = tmp_path / "mark"
    expression = f"__import__('pathlib').Path({str(mark)!r}).touch()"

    def edit(model: Any) -> None:
        for meta in model["graph_module"]["graph"]["tensor_values"].values():
            for size in meta["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = expression
        model["guards_code"] = [expression]

    check(edited(tmp_path, linear[1], "models/model.json", edit), linear[0], (4,))
    assert not mark.exists()


MODEL_EDITS: dict[str, Callable[[Any], object]] = {
    "operator": lambda m: m["graph_module"]["graph"]["nodes"][0].update(target="torch.ops.aten.sin.default"),
    "no operator": lambda m: m["graph_module"]["graph"]["nodes"][0].update(target="os.system"),
    "missing operator": lambda m: m["graph_module"]["graph"]["nodes"][0].update(target="aten"),
    "target": lambda m: m["graph_module"]["graph"]["nodes"][0].update(target=7),
    "arguments": lambda m: m["graph_module"]["graph"]["nodes"][0].update(inputs=[]),
    "argument": lambda m: m["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": "z"}}),
    "name": lambda m: m["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg={"as_tensor": {"name": [1]}}),
    "output": lambda m: m["graph_module"]["signature"].update(output_specs=[]),
    "output name": lambda m: m["graph_module"]["signature"]["output_specs"][0]["user_output"].update(
        arg={"as_tensor": {"name": ""}}
    ),
    "graph": lambda m: m.pop("graph_module"),
    "nodes": lambda m: m["graph_module"]["graph"].update(nodes=5),
}


@pytest.mark.parametrize("name", MODEL_EDITS)
def test_malformed_programs(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram], name: str) -> None:
    with pytest.raises(ModelError) as caught:
        import_pt2(edited(tmp_path, linear[1], "models/model.json", MODEL_EDITS[name]))
    assert "\n" not in str(caught.value)


def test_deep_nesting(tmp_path: Path, linear: tuple[nn.Module, ExportedProgram]) -> None:
    content = records(save(linear[1], tmp_path / "net.pt2"))
    content["net/models/model.json"] = b"[" * 100_000
    with pytest.raises(ModelError, match=HINT):
        import_pt2(write(tmp_path / "deep.pt2", content))


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
