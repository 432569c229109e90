"""Other people's run folders, models, certificates and names: one line, exit code 2, never a verdict of theirs."""

import ctypes
import io
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from l0tre.certify.checker.certificate import read_certificate, write_certificate
from l0tre.cli.plain import plain
from tests.cli.processes import FORKS, Ended, run_l0tre
from tests.cli.running import Files, check_error, l0tre

CODE = "from pathlib import Path\nPath({marker!r}).touch()\n\n\ndef f(x):\n    return x.flatten(1)[:, :3]\n"


@pytest.fixture
def coded(files: Files, tmp_path: Path) -> tuple[Path, str, Path]:
    """A run of a model that is Python code, its name, and a file that appears whenever the code runs."""
    marker, model = tmp_path / "marker", tmp_path / "net.py"
    model.write_text(CODE.format(marker=str(marker)))
    np.savez(tmp_path / "images.npz", x=files.images)
    name, run = f"{model}:f", tmp_path / "run"
    words = ("--out", run, "--time-budget", "0", "-q", "--attack", "0")
    assert l0tre("evaluate", name, tmp_path / "images.npz", *words).code == 0
    marker.unlink()
    return run, name, marker


def test_no_code_runs_because_a_run_names_it(coded: tuple[Path, str, Path]) -> None:
    run, name, marker = coded
    check_error(l0tre("evaluate", run, "--resume"), name, "--model", "--trust-run")
    assert not marker.exists()
    assert l0tre("evaluate", run, "--resume", "--model", name, "--time-budget", "0", "-q").code == 0
    assert marker.exists()
    assert l0tre("evaluate", run, "--resume", "--trust-run", "-q").code == 0


@pytest.mark.parametrize("how", ["--trust-run", "--model", "package"])
def test_nothing_inside_a_run_folder_is_imported(
    how: str, coded: tuple[Path, str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, name, marker = coded
    inside = run / "net.py"
    Path(name.rpartition(":")[0]).rename(inside)
    words = ["--model", f"{inside}:f"]
    if how == "--trust-run":
        Path(name.rpartition(":")[0]).symlink_to(inside)
        words = ["--trust-run"]
    elif how == "package":
        monkeypatch.chdir(run)
        words = ["--model", "net:f"]
    check_error(l0tre("evaluate", run, "--resume", *words), "inside the run folder")
    assert not marker.exists()


def test_naming_the_model_is_for_resuming(files: Files) -> None:
    check_error(l0tre("evaluate", files.model, files.data, "--trust-run"), "--resume")
    check_error(l0tre("evaluate", files.model, files.data, "--model", "x"), "--resume")


ENDS = ["SystemExit(0)", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException('x')", "Silent()"]
PLACES = {
    "import": "raise {end}\n",
    "factory": "def f():\n    raise {end}\n",
    "call": "def f(x):\n    raise {end}\n",
    "later": "def f(x):\n    if len(x) > 20:\n        raise {end}\n    return x.flatten(1)[:, :3]\n",
    "module": "from torch import nn\n\n\nclass f(nn.Module):\n    def forward(self, x):\n        raise {end}\n",
    "copy": "from torch import nn\n\n\nclass f(nn.Module):\n    def __deepcopy__(self, memo):\n        raise {end}\n",
}
SILENT = "class Silent(BaseException):\n    def __str__(self):\n        raise SystemExit(0)\n\n\n"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_ends_the_process_is_an_error(place: str, end: str, files: Files, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SILENT + PLACES[place].format(end=end))
    np.savez(tmp_path / "images.npz", x=files.images)
    name, data = f"{tmp_path / 'net.py'}:f", tmp_path / "images.npz"
    result = l0tre("verify", name, data, "--radius", "1", "--guarantee", "grid")
    assert result.code == 2, result
    assert (result.out, result.err.count("\n"), "Traceback" in result.err) == ("", 1, False)


@pytest.fixture(scope="module")
def proof(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("proofs") / "one.l0cert"
    for index in range(6):
        words = ("--radius", "1", "--index", index, "--certificate", path, "-q")
        if l0tre("verify", files.model, files.data, *map(str, words)).code == 0:
            return path
    raise AssertionError("no image is safe")


def forged(path: Path, target: Path, **changes: Any) -> Path:
    write_certificate(target, replace(read_certificate(path), **changes))
    return target


def test_check_prints_only_what_it_found_itself(files: Files, proof: Path, tmp_path: Path) -> None:
    about = {**read_certificate(proof).about, "unit": "LIE", "model": "LIE"}
    path = forged(proof, tmp_path / "forged", arithmetic="LIE", about=about)
    for words in ([], ["--json"], ["--quiet"]):
        result = l0tre("check", path, files.model, files.data, *words)
        assert result.code == 0
        assert "LIE" not in result.out + result.err
    assert "1 pixel " in l0tre("check", path, files.model, files.data).out


@pytest.mark.parametrize("index", ["0", [0], None, 1e400, -5, 10**30])
def test_a_forged_index_is_no_traceback(index: Any, files: Files, proof: Path, tmp_path: Path) -> None:
    path = forged(proof, tmp_path / "forged", about={"index": index})
    check_error(l0tre("check", path, files.model, files.data))


def test_a_missing_certificate_is_an_error_and_no_answer(files: Files, tmp_path: Path) -> None:
    check_error(l0tre("check", tmp_path / "none", files.model, files.data), "there is no certificate")
    (tmp_path / "text").write_text("hello")
    check_error(l0tre("check", tmp_path / "text", files.model, files.data), "damaged or no certificate")


def test_a_certificate_of_another_image_does_not_hold(files: Files, proof: Path) -> None:
    other = str((int(read_certificate(proof).about["index"]) + 1) % 6)
    result = l0tre("check", proof, files.model, files.data, "--index", other)
    assert (result.code, result.out.startswith("not valid: ")) == (1, True)


NASTY = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\x00"[:-1]


def test_plain_text_cannot_steer_a_terminal() -> None:
    assert plain(NASTY) == "a\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\u202eb"
    assert plain("täglich\n\t✓ 数") == "täglich\n\t✓ 数"


def test_names_of_files_are_shown_and_not_sent(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / NASTY
    folder.mkdir()
    model, data = folder / f"{NASTY}.onnx", folder / f"{NASTY}.npz"
    model.write_bytes(Path(files.model).read_bytes())
    data.write_bytes(Path(files.data).read_bytes())
    out = tmp_path / f"run{NASTY}"
    words = ("--max-t", "1", "--limit", "2", "--attack", "0", "--guarantee", "grid")
    shown = [
        l0tre("evaluate", model, data, "--out", out, *words),
        l0tre("show", out),
        l0tre("show", out, "--json"),
        l0tre("report", out),
        l0tre("inspect", model),
        l0tre("verify", model, data, "--radius", "1"),
        l0tre("attack", model, data, "--budget", "50", "--limit", "1"),
        l0tre("compare", model, files.model, data, *words),
        l0tre("evaluate", f"{NASTY}.onnx", data),
        l0tre("evaluate", model, folder / "none"),
        l0tre(f"{NASTY}"),
        l0tre("verify", model, data, "--radius", "1", "--low", NASTY),
    ]
    for result in shown:
        for sign in "\x1b\x07\x9b\u202e":
            assert sign not in result.out + result.err
    assert "\\x1b[2J" in shown[0].out


def test_names_of_nodes_are_shown_and_not_sent(files: Files, tmp_path: Path) -> None:
    from onnx import helper

    from tests.cli.running import save_graph

    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("TopK", ["flat", "k"], ["scores", "places"], name=NASTY),
    ]
    save_graph(tmp_path / "net.onnx", nodes, {"k": np.array([3])})
    result = l0tre("evaluate", tmp_path / "net.onnx", files.data, "--guarantee", "certified")
    check_error(result, "TopK", "\\x1b")
    assert "\x1b" not in result.err


@pytest.mark.slow
@FORKS
def test_a_model_that_is_never_loaded(files: Files, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import time\n\n\ndef f(x):\n    time.sleep(1000)\n")
    np.savez(tmp_path / "images.npz", x=files.images)
    check_error(l0tre("evaluate", files.model, files.data, "--load-timeout", "0"), "--load-timeout")
    model = f"{tmp_path / 'net.py'}:f"
    words = ("verify", model, tmp_path / "images.npz", "--radius", "1", "--load-timeout", "0.2")
    result = run_l0tre(tmp_path / "output", *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "is not loaded after 0.2 s" in result.err


def obey_permissions() -> None:
    """In a process of its own: root, too, may then not write what nobody may."""
    version, override_permissions = 0x20080522, 1 << 1
    header, kept = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capget(header, kept) == 0
    for place in (0, 1):  # of the first 32 capabilities: effective, permitted
        kept[place] &= ~override_permissions
    assert ctypes.CDLL(None).capset(header, kept) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root")
def test_a_run_folder_that_cannot_be_written(files: Files, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    words = ("--max-t", "1", "--time-budget", "0", "--guarantee", "grid", "-q")
    assert l0tre("evaluate", files.model, files.data, "--out", run, *words).code == 0
    for path in (run, *run.iterdir()):
        path.chmod(0o555)
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    def command(name: str, *words: str | Path) -> Ended:
        return run_l0tre(tmp_path / name, *words, before=obey_permissions)

    shown = command("1", "show", run, "--json")
    assert (shown.code, shown.err) == (0, "")
    assert json.loads(shown.out) == json.loads(l0tre("show", run, "--json").out)
    reported = command("2", "report", run, "--out", out)
    assert (reported.code, reported.err) == (0, "")
    assert {"report.html", "result.json", "bounds.csv", "witnesses.npz"} <= {path.name for path in out.iterdir()}
    for refused in (command("3", "report", run), command("4", "evaluate", run, "--resume")):
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name in before} == before


def test_members_of_a_certificate_that_cannot_be_read(files: Files, proof: Path, tmp_path: Path) -> None:
    """With a digest that fits: encrypted, of other compressions, missing, doubled, huge, deep."""
    import hashlib

    with zipfile.ZipFile(proof) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    array = next(name for name in members if name.endswith(".npy"))

    def packed(content: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED, flag: int = 0) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", kind) as archive:
            archive.comment = b"0" * 64
            for name, data in content.items():
                archive.writestr(name, data)
        body = bytearray(stream.getvalue()[:-64])
        if flag:  # the encryption bit of the first entry of the directory
            place = body.rindex(b"PK\x01\x02", 0, body.index(b"PK\x01\x02") + 4)
            body[place + 8] |= flag
        return bytes(body) + hashlib.sha256(body).hexdigest().encode()

    huge = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(
        117
    )
    cases = [
        packed(members, zipfile.ZIP_LZMA),
        packed(members, zipfile.ZIP_BZIP2),
        packed(members, flag=1),
        packed({name: data for name, data in members.items() if name != array}),
        packed({name: data for name, data in members.items() if name != "header.json"}),
        packed({**members, array: huge + b"\n"}),
        packed({**members, array: b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"}),
        packed({**members, array: b"\x93NUMPY\x03\x00"}),
        packed({**members, "header.json": b"[" * 100_000}),
        packed({**members, "header.json": b'{"version": ' + b"1" * 10_000 + b"}"}),
        packed({**members, "header.json": b" " * (1 << 21)}),
        packed({**members, "header.json": b"\xff\xfe"}),
    ]
    for number, content in enumerate(cases):
        path = tmp_path / str(number)
        path.write_bytes(content)
        check_error(l0tre("check", path, files.model, files.data), "certificate")
