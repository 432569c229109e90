"""Help and version come without torch; ``python -m l0tre`` is the command."""

import subprocess
import sys

import pytest

import l0tre as package

# A child that runs the command line and then says on standard error whether torch was loaded.
WATCHED = """
import sys
from l0tre.cli import main
try:
    main()
finally:
    sys.stderr.write(str("torch" in sys.modules))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        [],
        ["evaluate", "--help"],
        ["attack", "-h"],
        ["zoo", "train", "--help"],
        ["reproduce", "case-1", "--help"],
    ],
    ids=" ".join,
)
def test_nothing_waits_for_torch(words: list[str]) -> None:
    result = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "False")
    assert result.stdout


def test_a_word_that_is_not_known_is_refused_without_torch() -> None:
    words = ["evaluate", "model.onnx", "--frob"]
    result = subprocess.run([sys.executable, "-c", WATCHED, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "--frob" in result.stderr
    assert result.stderr.endswith("False")


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, l0tre; dir(l0tre); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_reading_a_run_loads_no_prover() -> None:
    """What is stored of a proof is data: bounds, open nodes, counts."""
    engines = [
        f"l0tre.{name}" for name in ("attacks", "certify.prover", "certify.boxes", "certify.cells", "certify.relax")
    ]
    code = f"import sys, l0tre.store; sys.exit(str([name for name in {engines} if name in sys.modules] or ''))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr.strip() == ""


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-m", "l0tre"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (version.returncode, version.stdout) == (0, f"l0tre {package.__version__}\n")
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert "Usage: l0tre [OPTIONS] COMMAND" in helped.stdout
    wrong = subprocess.run([*command, "frobnicate"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.endswith("see l0tre --help\n")
