"""Files of torch.export that are damaged, malformed or attacks: refused in one line, and nothing in them is run."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import ExportedProgram

from l0tre.errors import ModelError
from l0tre.model.graph import run
from l0tre.model.pt2_import import import_pt2
from tests.model.pt2_files import HINT, check, edited, export, records, save, torch_bytes, write


@pytest.fixture(scope="module")
def linear() -> tuple[nn.Module, ExportedProgram]:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    return module, export(module, (4,), None)


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
