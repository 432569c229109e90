"""l0tre saliency, as a user types it."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import l0tre as library
from l0tre.maps.files import read_map
from tests.cli.processes import FORKS, run_l0tre
from tests.cli.running import Files, check_error, l0tre


def test_a_picture_and_arrays_are_written(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "new" / "map.png"
    result = l0tre("saliency", files.model, files.data, "--index", "2", "--out", out, "--pairs", "--attack", "--signed")
    assert result.code == 0, result
    assert "lowers it by" in result.out
    assert "beyond the sum" in result.out
    assert "16 of 16 pixels, 2 values each" in result.out
    with Image.open(out) as picture:
        assert picture.width > 600
    found, image, _ = read_map(out.with_suffix(".npz"))
    with np.load(files.data) as data:
        own = data[next(iter(data))][2]
    np.testing.assert_allclose(image.numpy(), own)
    reference = library.sensitivity(files.model, own[None], colours="corners", device="cpu").drop[0]
    np.testing.assert_allclose(found.drop, reference, rtol=1e-4, atol=1e-6)


def test_several_networks_stand_side_by_side(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "map.png"
    words = ("saliency", files.model, files.model, files.data, "--out", out, "--json", "--target", "1")
    result = l0tre(*words)
    assert result.code == 0, result
    facts = json.loads(result.out)
    first, second = facts["maps"]
    assert first["strongest"] == second["strongest"]
    assert {Path(fact["arrays"]).name for fact in facts["maps"]} == {"map-1.npz", "map-2.npz"}
    again = json.loads(l0tre(*words, "--resume").out)
    assert again["maps"][0]["evaluations"] == first["evaluations"]


def test_layers_are_listed_and_neurons_drawn(files: Files, tmp_path: Path) -> None:
    listed = json.loads(l0tre("saliency", files.model, files.data, "--layers", "--json").out)
    layer = next(layer for layer in listed if layer["kind"] in ("conv", "linear"))
    name = f"{layer['position']}:0"
    names = tmp_path / "names.txt"
    names.write_text("zero\none\ntwo\n")
    result = l0tre("saliency", files.model, files.data, "--neuron", name, "--out", tmp_path / "n.png", "--quiet")
    assert (result.code, result.out) == (0, "")
    assert (tmp_path / "n.npz").is_file()
    named = l0tre("saliency", files.model, files.data, "--target", "one", "--names", names, "--out", tmp_path / "m.png")
    assert "score of class one" in named.out
    alone = l0tre("saliency", files.model, "--layers", "--json")  # no image is needed to list layers
    assert json.loads(alone.out) == listed


def test_pixels_are_chosen_one_after_the_other(files: Files, tmp_path: Path) -> None:
    words = ("saliency", files.model, files.data, "--together", "3", "--out", tmp_path / "map.png")
    page = tmp_path / "map.html"
    assert "together they lower it by" in l0tre(*words, "--pairs", "--report", page).out
    for part in ("together they lower it by", "beyond the sum"):
        assert part in page.read_text(encoding="utf-8")
    fact = json.loads(l0tre(*words, "--json").out)["maps"][0]
    drops = [each["drop_so_far"] for each in fact["together"]]
    assert drops == sorted(drops)
    assert drops[0] == pytest.approx(fact["strongest"][0]["drop"], rel=1e-5)


def test_a_photograph_is_an_image(files: Files, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(photo)
    result = l0tre(
        "saliency", files.model, photo, "--resize", "--coarse", "--strongest", "4", "--out", tmp_path / "m.png"
    )
    assert result.code == 0, result
    assert "measured" in result.out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "a network and an image are needed"),
        (("DATA", "--out", "map.jpg"), "--out map.jpg is no picture"),
        (("DATA", "--target", "9"), "--target is 9"),
        (("DATA", "--target", "1", "--neuron", "1:0"), "give one of them"),
        (("DATA", "--neuron", "nowhere:1"), "saliency with --layers"),
        (("DATA", "--strongest", "0"), "--strongest is 0"),
        (("DATA", "--epsilon", "0"), "epsilon is 0"),
        (("DATA", "--together", "-1"), "--together is -1"),
        (("DATA", "--resume", "--out", "missing.png"), "cannot be read as a saliency map"),
        (("DATA", "--names", "missing.txt"), "--names missing.txt cannot be read"),
    ],
)
def test_bad_input_is_one_line(files: Files, words: tuple[str, ...], part: str) -> None:
    typed = [str(files.data) if word == "DATA" else word for word in words]
    check_error(l0tre("saliency", files.model, *typed), part)


def _stop_early() -> None:
    """Press Ctrl-C as soon as a cluster is asked for, long before its workers are ready."""

    def press() -> None:
        while "ray" not in sys.modules:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


@pytest.mark.slow
@FORKS
@pytest.mark.xdist_group("cluster")
def test_stopped_before_workers_begin_nothing_is_written(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "map.png"
    words: list[str | Path] = ["saliency", files.model, files.data, "--cluster", "local", "--out", out]
    ended = run_l0tre(tmp_path / "output", *words, before=_stop_early)
    assert ended.code == 130, ended
    assert "before anything was measured" in ended.err
    assert not out.exists()
