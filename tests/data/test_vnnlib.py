import json
from pathlib import Path

import pytest
import torch

from l0tre.data.vnnlib import read_vnnlib
from l0tre.errors import DataError
from tests.cli.running import check_error, l0tre

HEAD = "".join(f"(declare-const X_{i} Real)\n" for i in range(2)) + "".join(
    f"(declare-const Y_{i} Real)\n" for i in range(3)
)
BOX = "(assert (>= X_0 0.1)) ; comment )\n(assert (<= X_0 0.3))\n(assert (<= X_1 1))\n(assert (>= X_1 0))\n"
UNSAFE = "(assert (or\n (and (>= Y_0 Y_2))\n (and (<= Y_2 Y_1))\n))\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_classification_property(tmp_path: Path) -> None:
    found = read_vnnlib(write(tmp_path / "p.vnnlib", HEAD + BOX + UNSAFE))
    assert (found.low.tolist(), found.high.tolist()) == ([0.1, 0], [0.3, 1])
    assert (found.label, found.classes) == (2, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + BOX, "no classification property"),
        (HEAD + BOX + "(assert (or (and (>= Y_0 Y_2))))", "no classification property"),
        (HEAD + BOX + "(assert (>= Y_0 Y_2))(assert (>= Y_1 Y_2))", "two things about scores"),
        (HEAD + BOX + "(assert (or (and (>= Y_0 Y_2) (>= Y_1 Y_2))))", "no comparison"),
        (HEAD + BOX + "(assert (<= Y_0 3))", "bounds a score by a number"),
        (HEAD + UNSAFE + "(assert (<= X_0 1))", "X_0 has no bounds on both sides"),
        (HEAD + BOX + "(assert (< X_0 1))", "asserts '<'"),
        (HEAD + BOX + UNSAFE + ")", "not opened"),
        (HEAD + BOX + UNSAFE + "(", "not closed"),
    ],
)
def test_other_properties_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_vnnlib(write(tmp_path / "p.vnnlib", text))


def test_verify_takes_the_box_as_the_domain(tmp_path: Path) -> None:
    torch.manual_seed(0)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nnet = nn.Linear(2, 3)\n"
        "net.weight.data = torch.tensor([[1.0, 0], [0, 0], [0, 0]])\nnet.bias.data = torch.tensor([0, 0, 0.5])\n"
    )
    words = (f"{tmp_path / 'net.py'}:net", write(tmp_path / "p.vnnlib", HEAD + BOX + UNSAFE), "--input-shape", "2")
    safe = l0tre("verify", *words, "--radius", "2", "--format", "vnncomp")
    assert (safe.code, safe.out) == (0, "unsat\n")
    wide = write(tmp_path / "wide.vnnlib", HEAD + BOX.replace("(<= X_0 0.3)", "(<= X_0 0.8)") + UNSAFE)
    assert l0tre("verify", words[0], wide, *words[2:], "--radius", "1").code == 1
    check_error(l0tre("verify", *words, "--radius", "1", "--high", "2"), "its own ranges")
    more = "(declare-const X_2 Real)(assert (>= X_2 0))(assert (<= X_2 1))"
    third = write(tmp_path / "third.vnnlib", HEAD + more + BOX + UNSAFE)
    check_error(l0tre("verify", words[0], third, *words[2:], "--radius", "1"), "3 inputs")


def test_a_box_whose_middle_violates_the_property_is_answered(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nnet = nn.Linear(2, 3)\n"
        "net.weight.data = torch.tensor([[1.0, 0], [0, 0], [0, 0]])\nnet.bias.data = torch.tensor([0, 0, 0.5])\n"
    )
    box = BOX.replace("(<= X_0 0.3)", "(<= X_0 2.1)")
    words = (
        f"{tmp_path / 'net.py'}:net",
        write(tmp_path / "p.vnnlib", HEAD + box + UNSAFE),
        *("--input-shape", "2", "--radius", "1"),
    )
    answer = l0tre("verify", *words, "--format", "vnncomp")
    assert (answer.code, answer.out.split("\n")[:2]) == (1, ["sat", "((X_0 1.100000023841858)"])
    assert "(Y_0 1.100000023841858)" in answer.out
    page = tmp_path / "page.html"
    said = l0tre("verify", *words, "--report", page)
    assert "violates the property as it is: class 0 (margin -0.6)" in said.out
    assert "violates the property as it is" in page.read_text()
    facts = json.loads(l0tre("verify", *words, "--json").out)
    assert (facts["answer"], facts["lower"], facts["upper"]) == ("unsafe", -1, 0)
    # Another class with the same score violates, too: the middle of [0.1, 0.9] is 0.5.
    tied = write(tmp_path / "tied.vnnlib", HEAD + BOX.replace("(<= X_0 0.3)", "(<= X_0 0.9)") + UNSAFE)
    assert l0tre("verify", words[0], tied, *words[2:], "--format", "vnncomp").out.startswith("sat\n")
