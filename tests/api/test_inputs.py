"""One image or a batch of one, and shapes that come from the images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.data import from_arrays, select
from l0tre.errors import CertificateError, ConfigError, DataError


class Margin(nn.Module):
    """Class 0 while the first value is the largest part of a sum; any input with 16 values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[0] = 1.0
            self.linear.bias.copy_(torch.tensor([0.0, 6.5]))

    def forward(self, x: Tensor) -> Tensor:
        """Scores from a batch."""
        scores: Tensor = self.linear(x.flatten(1))
        return scores


IMAGE = torch.full((1, 4, 4), 0.5)  # the sum is 8, and two pixels take one off: radius 2 is safe, 4 is not


def scores(x: np.ndarray) -> np.ndarray:
    """A function without a graph, from numpy to numpy."""
    total = x.reshape(len(x), -1).sum(1)
    return np.stack([total, np.full_like(total, 6.5)], 1)


@pytest.mark.parametrize(
    "image",
    [IMAGE, IMAGE[None], IMAGE[0], IMAGE.numpy(), IMAGE[None].numpy(), from_arrays(IMAGE[None])],
    ids=["image", "batch", "plane", "array", "array batch", "data set"],
)
@pytest.mark.parametrize("loaded", [True, False], ids=["network", "module"])
def test_verify_takes_one_image_or_a_batch_of_one(image: l0tre.Dataset | Tensor, loaded: bool) -> None:
    module = Margin().eval()
    network = l0tre.load(module, input_shape=(1, 4, 4), device="cpu") if loaded else module
    assert l0tre.verify(network, image, radius=2, device="cpu").answer == "safe"
    verdict = l0tre.verify(network, image, radius=4, device="cpu")
    assert (verdict.answer, verdict.unit) == ("unsafe", "pixel")


@pytest.mark.parametrize("image", [torch.full((16,), 0.5), torch.full((1, 16), 0.5)], ids=["vector", "batch"])
@pytest.mark.parametrize("loaded", [True, False], ids=["network", "module"])
def test_verify_takes_one_vector_or_a_batch_of_one(image: Tensor, loaded: bool) -> None:
    module = Margin().eval()
    network = l0tre.load(module, input_shape=(16,), device="cpu") if loaded else module
    verdict = l0tre.verify(network, image, 0, radius=2, device="cpu")
    assert (verdict.answer, verdict.unit) == ("safe", "feature")


def test_several_images_are_no_image() -> None:
    network = l0tre.load(Margin().eval(), input_shape=(1, 4, 4), device="cpu")
    for several in (IMAGE.expand(3, 1, 4, 4), IMAGE.expand(3, 1, 4, 4).numpy(), from_arrays(IMAGE.expand(3, 1, 4, 4))):
        with pytest.raises(DataError, match="3 inputs were given"):
            l0tre.verify(network, several, radius=1)
    one = select(from_arrays(IMAGE.expand(3, 1, 4, 4), [0, 0, 0]), indices=[1])
    assert l0tre.verify(network, one, radius=2).answer == "safe"
    with pytest.raises(DataError, match="its own labels"):
        l0tre.verify(network, one, 1, radius=2)


def test_a_radius_beyond_all_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`radius` is 17, but only 16 pixels may change: give at most 16"):
        l0tre.verify(Margin().eval(), IMAGE, radius=17)
    with pytest.raises(ConfigError, match="`radius` is 0"):
        l0tre.verify(Margin().eval(), IMAGE, radius=0)


@pytest.mark.parametrize("source", [Margin().eval(), scores], ids=["module", "function"])
def test_the_shape_of_the_input_is_that_of_the_images(source: nn.Module) -> None:
    images = IMAGE[None].expand(2, 1, 4, 4)
    assert [bounds.groups for bounds in l0tre.evaluate(source, images, max_t=1, guarantee="grid")] == [16, 16]
    assert [bounds.groups for bounds in next(l0tre.anytime(source, images, max_t=1, guarantee="grid"))] == [16, 16]
    assert l0tre.attack(source, images, budget=50).shape == images.shape
    assert l0tre.attack_details(source, images, budget=50).unit == "pixel"
    assert l0tre.sensitivity(source, images).drop.shape == (2, 16)
    both = l0tre.compare({"a": source, "b": source}, images, max_t=1, guarantee="grid")
    assert [standing.groups for standing in both.standings] == [16, 16]
    assert l0tre.verify(source, images[0], radius=1, guarantee="grid").answer == "safe"


def test_a_data_set_is_brought_into_the_shape_of_the_network() -> None:
    network = l0tre.load(Margin().eval(), input_shape=(16,), device="cpu")
    data = select(from_arrays(IMAGE[None].expand(3, 1, 4, 4)), indices=[2, 0])
    result = l0tre.evaluate(network, data, max_t=1)
    assert [(bounds.index, bounds.groups) for bounds in result] == [(2, 16), (0, 16)]


def test_a_certificate_is_checked_from_its_file(tmp_path: Path) -> None:
    module, path = Margin().eval(), tmp_path / "one.l0cert"
    assert l0tre.verify(module, IMAGE, radius=2, certificate=path, device="cpu").answer == "safe"
    for certificate in (path, str(path), l0tre.read_certificate(path)):
        for image in (IMAGE, IMAGE[None], IMAGE.numpy(), from_arrays(IMAGE[None])):
            result = l0tre.check(certificate, module, image, device="cpu")
            assert (result.radius, result.label) == (2, 0)
    assert repr(result).startswith("CheckResult(valid: radius 2, label 0, ")
    network = l0tre.load(module, input_shape=(1, 4, 4), device="cpu")
    assert l0tre.check(path, network, IMAGE, l0tre.make_domain((1, 4, 4)), memory_bytes=2**16).radius == 2
    with pytest.raises(CertificateError, match="another input"):
        l0tre.check(path, network, IMAGE + 0.25)
    with pytest.raises(CertificateError, match="cannot be read"):
        l0tre.check(tmp_path / "missing.l0cert", network, IMAGE)
    with pytest.raises(CertificateError):
        l0tre.check(path, network, IMAGE, l0tre.make_domain((1, 4, 4), high=2.0))


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_budget_that_is_none_is_refused_before_any_work(tmp_path: Path, seconds: float) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="`time_budget` is"):
        l0tre.anytime(Margin().eval(), IMAGE[None], time_budget=seconds, out=out)
    assert not out.exists()
    l0tre.evaluate(Margin().eval(), IMAGE[None], max_t=1, out=out)
    with pytest.raises(ConfigError, match="`time_budget` is"):
        l0tre.resume_anytime(out, Margin().eval(), time_budget=seconds)
