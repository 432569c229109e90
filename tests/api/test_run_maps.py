"""Sensitivity maps of the images of a run, in its folder and on its page."""

from pathlib import Path

import torch
from torch import nn

import l0tre
from l0tre.api.run_maps import add_maps
from l0tre.report import evaluation_page, read_run
from l0tre.store import read_maps
from tests.tools import NO_ATTACK


def test_maps_tell_how_far_a_pixel_lowers_the_score(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(9, 3)
    network = nn.Sequential(nn.Flatten(), dense)
    images = torch.rand(3, 1, 3, 3)
    result = l0tre.evaluate(network, images, max_t=1, out=tmp_path / "run", **NO_ATTACK)
    assert add_maps(tmp_path / "run", 2, network) == 2
    maps = read_maps(tmp_path / "run")
    easiest = sorted(result.images, key=lambda image: (image.upper, image.lower, image.index))[:2]
    assert set(maps) == {image.index for image in easiest}
    weights = dense.weight.detach()
    for image in easiest:  # a linear score falls furthest at an end of a pixel's range
        weight, value = weights[image.label], images[image.index].flatten()
        drop = torch.maximum(weight * value, weight * (value - 1)).clamp_min(0)
        assert torch.allclose(maps[image.index].flatten(), drop, atol=1e-5)
    gallery = evaluation_page(read_run(tmp_path / "run")).gallery
    assert gallery is not None
    assert [len(extra.get("map", [])) for extra in gallery.extras].count(9) == 2
    (tmp_path / "run" / "maps.npz").write_bytes(b"damaged")
    assert read_maps(tmp_path / "run") == {}
