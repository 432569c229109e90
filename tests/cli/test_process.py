"""Real processes: exit codes, signals, pipes. Nothing here depends on how fast the machine is."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.processes import FORKS, PATIENCE, Started, run_l0tre, start_l0tre
from tests.cli.running import Files, l0tre

pytestmark = pytest.mark.slow

ENDLESS = "import torch\n\n\ndef f(x):\n    return torch.tensor([9.0, 0.0]) + 0 * x.flatten(1)[:, :2]\n"


def start_endless(files: Files, folder: Path) -> tuple[Started, Path]:
    """A process whose search takes hours, at work on a run."""
    (folder / "endless.py").write_text(ENDLESS)
    np.savez(folder / "images.npz", x=files.images[:2])
    out = folder / "run"
    words: list[str | Path] = [
        f"{folder / 'endless.py'}:f",
        folder / "images.npz",
        "--max-t",
        "8",
        "--memory",
        "64K",
        "--out",
        out,
    ]
    started = start_l0tre(folder / "output", "evaluate", *words)
    deadline = time.monotonic() + PATIENCE
    while not (out / "run.db").exists() or l0tre("show", out).code != 0:
        assert started.process.is_alive(), started.end()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return started, out


@FORKS
def test_an_error_is_one_line_and_exit_code_2(files: Files, tmp_path: Path) -> None:
    result = run_l0tre(tmp_path / "output", "evaluate", files.model, "missing.npz")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: 'missing.npz' is no file")
    assert result.err.count("\n") == 1


@FORKS
def test_exit_codes_of_verify(files: Files, tmp_path: Path) -> None:
    result = run_l0tre(tmp_path / "output", "verify", files.model, files.data, "--radius", "16", "--quiet")
    assert (result.code, result.out, result.err) == (1, "unsafe\n", "")


@FORKS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_a_whole_run_that_goes_on(files: Files, tmp_path: Path, number: signal.Signals) -> None:
    started, out = start_endless(files, tmp_path)
    with started:
        started.send(number)
        ended = started.end()
    assert ended.code == 130
    assert ended.err == ""
    assert "stopped before the end" in ended.out
    stored = json.loads((out / "result.json").read_text())
    assert stored["global"]["finished"] is False
    assert stored["global"]["queries"] > 0
    shown = json.loads(l0tre("show", out, "--json").out)
    assert shown == stored
    for _ in range(2):  # one step each; one that decides a level asks the network nothing, the next one does
        result = l0tre("evaluate", out, "--resume", "--trust-run", "--time-budget", "0", "--json")
        assert result.code == 0
    after = json.loads(result.out)
    assert after["global"]["queries"] > stored["global"]["queries"]
    assert after["global"]["lower"] >= stored["global"]["lower"]


@FORKS
def test_a_killed_process_leaves_a_run_that_goes_on(files: Files, tmp_path: Path) -> None:
    started, out = start_endless(files, tmp_path)
    with started:
        started.send(signal.SIGKILL)
        assert started.end().code == -signal.SIGKILL
    before = json.loads(l0tre("show", out, "--json").out)
    for _ in range(2):  # as above
        assert l0tre("evaluate", out, "--resume", "--trust-run", "--time-budget", "0", "--quiet").code == 0
    after = json.loads((out / "result.json").read_text())
    assert after["global"]["queries"] > before["global"]["queries"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
@pytest.mark.parametrize("words", [["--help"], ["show", "RUN", "--json"]], ids=" ".join)
def test_a_closed_pipe_is_no_traceback(words: list[str], run: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "l0tre", *(str(run) if word == "RUN" else word for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=PATIENCE)
    assert "Traceback" not in stderr
    assert process.returncode == 2


def break_verify() -> None:
    import l0tre.cli.setup as module

    def prepare(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    module.prepare = prepare  # type: ignore[assignment]


@FORKS
def test_a_defect_of_ours_never_looks_like_an_answer(files: Files, tmp_path: Path) -> None:
    result = run_l0tre(tmp_path / "output", "verify", files.model, files.data, "--radius", "1", before=break_verify)
    assert result.code == 2
    assert "ZeroDivisionError" in result.err
    assert "defect" in result.err


# A signal at the moment that a module begins to be imported, and what was printed until then.
INTERRUPTED = """
import os, signal, sys
class Watch:
    def find_spec(self, name, *_):
        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Watch())
from l0tre.cli import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("module", ["l0tre.cli.app", "torch", "torch.functional", "l0tre.evaluation"])
def test_ctrl_c_before_the_work_is_silent(files: Files, module: str) -> None:
    """Also inside imports, which catch what is raised in them."""
    code = INTERRUPTED.format(module=module)
    words = [sys.executable, "-c", code, "evaluate", files.model, files.data, "--max-t", "1", "--attack", "0"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@FORKS
def test_one_signal_ends_what_loads_a_model(files: Files, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "def net():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        f"    Path({str(tmp_path / 'after')!r}).touch()\n"
    )
    result = run_l0tre(tmp_path / "output", "evaluate", f"{slow}:net", files.data)
    assert (result.code, result.out, result.err) == (130, "", "")
    assert not (tmp_path / "after").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals")
def test_a_process_under_nohup_outlives_its_terminal() -> None:
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from l0tre.cli.signals import stop_on_signal\n"
        "with stop_on_signal() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGHUP); print(stop())\n"
        "    os.kill(os.getpid(), signal.SIGTERM); print(stop())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split()) == (0, ["False", "True"])


def test_onnxruntime_leaves_nothing_behind(files: Files, tmp_path: Path) -> None:
    """Its telemetry stores a device identifier below the home when it is imported."""
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home.pop("ORT_DISABLE_TELEMETRY", None)
    code = f"from l0tre.errors import require; require('onnxruntime', 'onnx').InferenceSession({files.model!r})"
    words = [sys.executable, "-c", code]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE, env=home)
    assert (result.returncode, result.stderr) == (0, "")
    assert [str(path) for path in tmp_path.rglob("*") if "icrosoft" in str(path) or "onnx" in str(path)] == []


def test_its_telemetry_is_off_before_it_is_imported() -> None:
    code = (
        "import os, sys; from l0tre.errors import require\n"
        "os.environ.pop('ORT_DISABLE_TELEMETRY', None); seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'onnxruntime': seen.append(os.environ.get('ORT_DISABLE_TELEMETRY'))\n"
        "sys.meta_path.insert(0, Watch()); require('onnxruntime', 'onnx'); print(seen)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "['1']\n"
