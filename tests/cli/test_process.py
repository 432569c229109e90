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

from tests.cli.running import Files, l0tre

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from l0tre.cli import main; main()"]
PATIENCE = 240  # seconds until a process counts as stuck
ENDLESS = "import torch\n\n\ndef f(x):\n    return torch.tensor([9.0, 0.0]) + 0 * x.flatten(1)[:, :2]\n"


def run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def start_endless(files: Files, folder: Path) -> tuple["subprocess.Popen[str]", Path]:
    """A process whose search takes hours, at work on a run."""
    (folder / "endless.py").write_text(ENDLESS)
    np.savez(folder / "images.npz", x=files.images[:2])
    out = folder / "run"
    words = [f"{folder / 'endless.py'}:f", folder / "images.npz", "--max-t", "8", "--memory", "64K", "--out", out]
    process = subprocess.Popen(
        [*COMMAND, "evaluate", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while not (out / "run.db").exists() or l0tre("show", out).code != 0:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, out


def test_an_error_is_one_line_and_exit_code_2(files: Files) -> None:
    result = run("evaluate", files.model, "missing.npz")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: 'missing.npz' is no file")
    assert result.stderr.count("\n") == 1


def test_exit_codes_of_verify(files: Files) -> None:
    result = run("verify", files.model, files.data, "--radius", "16", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (1, "unsafe\n", "")


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_with_a_whole_run_that_goes_on(files: Files, tmp_path: Path, number: signal.Signals) -> None:
    process, out = start_endless(files, tmp_path)
    try:
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr == ""
    assert "stopped before the end" in stdout
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


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_process_leaves_a_run_that_goes_on(files: Files, tmp_path: Path) -> None:
    process, out = start_endless(files, tmp_path)
    process.kill()
    process.communicate(timeout=PATIENCE)
    before = json.loads(l0tre("show", out, "--json").out)
    for _ in range(2):  # as above
        assert l0tre("evaluate", out, "--resume", "--trust-run", "--time-budget", "0", "--quiet").code == 0
    after = json.loads((out / "result.json").read_text())
    assert after["global"]["queries"] > before["global"]["queries"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_closed_pipe_is_no_traceback(files: Files) -> None:
    process = subprocess.Popen(
        [*COMMAND, "evaluate", files.model, files.data, "--json"],
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


def test_a_defect_of_ours_never_looks_like_an_answer() -> None:
    code = "import l0tre.cli.setup as a; a.prepare = lambda *c: 1 / 0; from l0tre.cli import main; main()"
    words = [sys.executable, "-c", code, "verify", "sdnn", "digits", "--radius", "1"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "defect" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_before_the_work_is_silent(files: Files, tmp_path: Path) -> None:
    """Also inside imports, which catch what is raised in them."""
    ready = tmp_path / "ready"
    code = f"from l0tre.cli import main; from pathlib import Path; Path({str(ready)!r}).touch(); main()"
    words = [sys.executable, "-c", code, "evaluate", files.model, files.data, "--max-t", "1", "--attack", "0"]

    def start() -> "subprocess.Popen[str]":
        ready.unlink(missing_ok=True)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not ready.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process

    began = time.monotonic()
    process = start()
    process.communicate(timeout=PATIENCE)
    whole = time.monotonic() - began
    for share in (0.1, 0.4, 0.7):
        process = start()
        time.sleep(share * whole)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
        # It was over before, or Python itself was ending, whose own answer is to die of the signal.
        assert process.returncode in (130, 0, -signal.SIGINT)
        assert stderr == ""


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_one_signal_ends_what_loads_a_model(files: Files, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "def net():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        f"    Path({str(tmp_path / 'after')!r}).touch()\n"
    )
    result = run("evaluate", f"{slow}:net", files.data)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
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
    words = [*COMMAND, "inspect", files.model, "--json"]
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
