"""Networks written in Python: all forms that work, and how those that do not are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.running import Files, check_error, l0tre

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

W = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


@dataclass
class Settings:
    width: int = 16


def plain(x):
    return x.flatten(1) @ torch.from_numpy(W)


def with_numpy(x):
    return x.reshape(len(x), -1).astype(np.float32) @ W


def double(x):
    return plain(x).double()


def as_list(x):
    return plain(x).tolist()


def with_gradient(x):
    return torch.nn.Parameter(plain(x).clone())


class Net(nn.Module):
    def __init__(self, settings: Settings = Settings()):
        super().__init__()
        self.linear = nn.Linear(settings.width, 3, bias=False)
        self.linear.weight.data = torch.from_numpy(W.T.copy())

    def forward(self, x):
        return self.linear(x.flatten(1))


class Scorer:
    def __call__(self, x):
        return plain(x)

    def method(self, x):
        return plain(x)


net = Net().train()
scorer = Scorer()


def make_net():
    return Net()


def make_function(name="plain"):
    return globals()[name]
"""
FORMS = [
    "plain",
    "with_numpy",
    "double",
    "as_list",
    "with_gradient",
    "Net",
    "net",
    "make_net",
    "make_function",
    "scorer",
    "scorer.method",
    "Scorer",
]

BAD = """
import sys

import torch
from torch import nn

W = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
number = 3


def plain(x):
    return x.flatten(1) @ W


def all_nan(x):
    return plain(x) * float("nan")


def nan_at_edges(x):
    scores = plain(x) * 1e-3 + torch.tensor([9.0, 0, 0])
    scores[(x.flatten(1) == 1).sum(1) >= 2] = float("nan")
    return scores


def raises(x):
    raise ValueError("first line\\nsecond line")


def raises_at_edges(x):
    if (x == 1).any():
        raise ValueError("too bright")
    return plain(x)


def shrinks_at_edges(x):
    return plain(x)[:1] if (x == 1).any() else plain(x)


def first_only(x):
    return plain(x)[:1]


def squeezed(x):
    return plain(x).squeeze()


def image_like(x):
    return x


def training(x):
    return nn.BatchNorm1d(16)(x.flatten(1))[:, :3]


def pair(x):
    return plain(x), 1


def words(x):
    return "cat"


def nothing(x):
    return None


def imaginary(x):
    return torch.complex(plain(x), plain(x))


def noisy(x):
    return plain(x) + torch.rand(len(x), 3)


class Dropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x.flatten(1), 0.5, training=True)


class Dictionary(nn.Module):
    def forward(self, x):
        return {"logits": x.flatten(1)}


class NeedsWidth(nn.Module):
    def __init__(self, width):
        super().__init__()


def make_nothing():
    return 3


def make_trouble():
    raise RuntimeError("no weights")


def make_exit():
    sys.exit(3)


def wrapped(*args, **kwargs):
    return plain(*args, **kwargs)
"""


@pytest.fixture
def unlabelled(files: Files, tmp_path: Path) -> Path:
    np.savez(tmp_path / "images.npz", x=files.images)
    return tmp_path / "images.npz"


def bounds(*words: str | Path) -> list[tuple[int, int]]:
    result = l0tre("evaluate", *words, "--max-t", "1", "--json")
    assert (result.code, result.err) == (0, ""), result.err
    return [(image["lower"], image["upper"]) for image in json.loads(result.out)["images"]]


@pytest.mark.slow
def test_every_form_of_the_same_network_has_the_same_bounds(tmp_path: Path, unlabelled: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    found = {form: bounds(f"{tmp_path / 'good.py'}:{form}", unlabelled) for form in FORMS}
    assert len(set(found["plain"])) > 1
    for form in FORMS:
        assert found[form] == found["plain"], form


def test_a_module_in_the_current_folder(tmp_path: Path, unlabelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_data").mkdir()
    (tmp_path / "beside_the_data" / "__init__.py").write_text("")
    (tmp_path / "beside_the_data" / "nets.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    assert bounds("beside_the_data.nets:Net", "images.npz") == bounds("beside_the_data/nets.py:Net", unlabelled)


def test_a_file_may_import_its_neighbours(tmp_path: Path, unlabelled: Path) -> None:
    (tmp_path / "neighbour_of_model.py").write_text(GOOD)
    (tmp_path / "model.py").write_text("from neighbour_of_model import Net\n\ndef make():\n    return Net()\n")
    assert bounds(f"{tmp_path / 'model.py'}:make", unlabelled)


def test_the_shape_of_the_input_can_be_given(files: Files, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    flat = tmp_path / "flat.npz"
    np.savez(flat, x=files.images.reshape(6, 16))
    place = f"{tmp_path / 'good.py'}:plain"
    assert bounds(place, flat, "--input-shape", "1x4x4") == bounds(place, flat)
    check_error(l0tre("evaluate", place, flat, "--input-shape", "1x5x5"), "plain", "(2, 1, 5, 5)")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all_nan", ["NaN or infinite"]),
        ("nan_at_edges", ["NaN or infinite", "2 changed"]),
        ("raises", ["raises", "ValueError: first line second line"]),
        ("raises_at_edges", ["raises_at_edges", "ValueError: too bright"]),
        ("shrinks_at_edges", ["(1, 3)", "classes"]),
        ("first_only", ["(1, 3)", "(8, classes)"]),
        ("squeezed", ["(3,)", "(1, classes)"]),
        ("image_like", ["(8, 1, 4, 4)", "(8, classes)"]),
        ("training", ["ValueError", "training"]),
        ("pair", ["tuple", "scores"]),
        ("words", ["str", "scores"]),
        ("nothing", ["NoneType", "scores"]),
        ("imaginary", ["complex", "scores"]),
        ("noisy", ["different scores", "dropout"]),
        ("Dropout", ["different scores", "dropout"]),
        ("Dictionary", ["dict", "tensor of scores"]),
        ("NeedsWidth", ["NeedsWidth", "needs arguments", "instance"]),
        ("make_nothing", ["int", "nn.Module"]),
        ("make_trouble", ["make_trouble", "RuntimeError: no weights"]),
        ("make_exit", ["make_exit", "SystemExit"]),
        ("wrapped", ["wrapped", "requires no argument"]),
        ("number", ["int", "nn.Module"]),
        ("absent", ["'absent'", "all_nan"]),
        ("", ["file.py:name"]),
        ("Dropout.absent", ["'Dropout.absent'"]),
    ],
)
def test_bad_functions_and_modules(tmp_path: Path, unlabelled: Path, name: str, words: list[str]) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    check_error(l0tre("evaluate", f"{tmp_path / 'bad.py'}:{name}", unlabelled), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise RuntimeError('one\\ntwo')", ["cannot run", "RuntimeError: one two"]),
        ("import sys; sys.exit(0)", ["cannot run", "SystemExit"]),
        ("def f(:", ["cannot run", "SyntaxError", "line 1"]),
        ("import no_such_module_anywhere", ["no_such_module_anywhere"]),
        ("", ["no public functions"]),
    ],
)
def test_files_that_cannot_be_run(tmp_path: Path, unlabelled: Path, text: str, words: list[str]) -> None:
    (tmp_path / "model.py").write_text(text)
    check_error(l0tre("evaluate", f"{tmp_path / 'model.py'}:f", unlabelled), "model.py", *words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("no/such/file.py:f", ["no/such/file.py"]),
        ("no_such_module_anywhere:f", ["no_such_module_anywhere"]),
        ("..relative:f", ["..relative"]),
        ("os:getcwd", ["str", "nn.Module"]),
        ("math:pi", ["float", "nn.Module"]),
        (":f", ["package.module:name"]),
        ("math:", ["package.module:name"]),
        ("model.py", ["file.py:name"]),
    ],
)
def test_references_that_lead_nowhere(unlabelled: Path, place: str, words: list[str]) -> None:
    check_error(l0tre("evaluate", place, unlabelled), *words)


def test_a_function_that_changes_its_input_does_not_change_the_data(tmp_path: Path, unlabelled: Path) -> None:
    rest = "    x[x < 0.5] = 0\n    return x.reshape(len(x), -1) @ W\n"
    text = f"{GOOD}\n\ndef careless(x):\n    x = x.numpy()\n{rest}\n\ndef careful(x):\n    x = x.numpy().copy()\n{rest}"
    (tmp_path / "model.py").write_text(text)
    careless, careful = (
        l0tre("evaluate", f"{tmp_path / 'model.py'}:{name}", unlabelled, "--out", tmp_path / name, "--json")
        for name in ("careless", "careful")
    )
    pairs = zip(json.loads(careless.out)["images"], json.loads(careful.out)["images"], strict=True)
    for one, other in pairs:
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    with np.load(tmp_path / "careless" / "inputs.npz") as stored, np.load(unlabelled) as given:
        assert (stored["images"] == given["x"]).all()
