"""Boxes of certificates, written for other verifiers: HiGHS agrees with each, and finds what is wrong in wrong ones."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import l0tre
from l0tre.certify.checker.certificate import Certificate, SetCertificate
from l0tre.data.vnnlib import read_vnnlib
from l0tre.errors import ConfigError
from tests.certify.checker.second_opinion import Property, least_lead, read_property
from tests.cli.running import l0tre as command

TOLERANCE = 1e-5  # of the solver


def written(tmp_path: Path, seed: int, *, dense: bool) -> tuple[Path, torch.Tensor]:
    """A small network of ReLUs as a file, and an image; those of odd seeds change a lot."""
    generator = torch.Generator().manual_seed(seed)
    gain = 4.0 if seed % 2 else 1.0
    layers = [(12, 6), (8, 12), (3, 8)] if dense else [(3, 1, 3, 3), (6, 18), (3, 6)]
    nodes, constants, current = [], [], "x"
    for number, size in enumerate(layers):
        fan = torch.Size(size[1:]).numel()
        for name, shape in ((f"w{number}", size), (f"b{number}", size[:1])):
            values = gain * torch.randn(shape, generator=generator) / fan**0.5
            constants.append(numpy_helper.from_array(values.numpy(), name))
        names, output = [current, f"w{number}", f"b{number}"], f"y{number}"
        if len(size) == 4:
            nodes.append(helper.make_node("Conv", names, ["map"], strides=[2, 2], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Flatten", ["map"], [output]))
        else:
            nodes.append(helper.make_node("Gemm", names, [output], transB=1))
        current = output
        if number < 2:
            current = f"z{number}"
            nodes.append(helper.make_node("Relu", [output], [current]))
    shape = (6,) if dense else (1, 5, 4)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", *form))
        for name, form in (("x", shape), (current, (3,)))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "small", ends[:1], ends[1:], constants), opset_imports=[helper.make_opsetid("", 13)]
    )
    model.ir_version = 8
    path = tmp_path / f"net{seed}.onnx"
    onnx.save(model, str(path))
    return path, torch.rand(shape, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("dense", [True, False])
def test_another_solver_agrees_with_every_box(tmp_path: Path, dense: bool) -> None:
    agreed = unsafe = 0
    for seed in range(4):
        path, image = written(tmp_path, seed, dense=dense)
        file = tmp_path / f"{seed}.l0cert"
        network = l0tre.load(path, device="cpu")
        verdict = l0tre.verify(network, image, radius=1, certificate=file)
        made = l0tre.read_certificate(file) if verdict.answer == "safe" else None
        if made is None:  # the same boxes, of which one at least must be found to be wrong
            other = l0tre.verify(network, image, radius=1, domain=narrow(image), certificate=file)
            assert other.answer == "safe"
            honest = l0tre.read_certificate(file)
            assert isinstance(honest, SetCertificate)
            made = replace(honest, sets=np.zeros(0, np.int64), depths=np.zeros(0, np.uint8))
        count = l0tre.export_vnnlib(made, network, image, tmp_path / str(seed))
        leads = [least_lead(path, read_property(tmp_path / str(seed) / f"{k:04d}.vnnlib")) for k in range(count)]
        if verdict.answer == "safe":
            margin = l0tre.check(made, network, image).margin
            assert min(leads) > margin - TOLERANCE  # never below what the checker says
            agreed += 1
        else:
            assert min(leads) < TOLERANCE
            unsafe += 1
    assert agreed
    assert unsafe


def narrow(image: torch.Tensor) -> l0tre.Domain:
    """Ranges so small that nothing can happen in them."""
    return l0tre.make_domain(tuple(image.shape), low=(image - 1e-6).clamp(0, 1), high=(image + 1e-6).clamp(0, 1))


def test_the_program_is_the_network(tmp_path: Path) -> None:
    for dense in (True, False):
        path, image = written(tmp_path, 3, dense=dense)
        network = l0tre.load(path, device="cpu")
        flat = image.double().flatten().numpy()
        scores = network.replay(image).double().flatten()
        label = int(scores.argmax())
        lead = float(scores[label] - max(s for place, s in enumerate(scores.tolist()) if place != label))
        assert abs(least_lead(path, Property(flat, flat, label)) - lead) < 1e-5
        box = flat.copy()
        box[2] = 1.0
        least = least_lead(path, Property(np.where(box == 1.0, 0.0, flat), box, label))
        inputs = image.flatten().repeat(101, 1)
        inputs[:, 2] = torch.linspace(0, 1, 101)
        found = network.scores(inputs.reshape(-1, *image.shape)).double()
        gaps = found[:, [label]] - found
        gaps[:, label] = torch.inf
        assert -1e-5 < float(gaps.min()) - least < 0.2


def test_leaves_of_trees_are_boxes_of_their_own(tmp_path: Path) -> None:
    path, image = written(tmp_path, 0, dense=True)
    file = tmp_path / "one.l0cert"
    network = l0tre.load(path, device="cpu", mean=0.25, std=0.5)
    domain = narrow(image)
    assert l0tre.verify(network, image, radius=1, domain=domain, certificate=file).answer == "safe"
    made = l0tre.read_certificate(file)
    assert isinstance(made, SetCertificate)
    trees = replace(made, sets=np.array([1, 4]), depths=np.array([1, 2, 2, 1, 1], np.uint8))
    assert l0tre.export_vnnlib(trees, network, image, tmp_path / "boxes", domain) == 9
    found = [read_vnnlib(tmp_path / "boxes" / f"{place:04d}.vnnlib") for place in range(9)]
    sides = sorted(float((one.high - one.low).max()) for one in found)
    assert sides[:2] == pytest.approx([1e-6] * 2, rel=0.2)  # quarters of 2e-6, behind a normalisation by a half
    lowest = np.min([one.low for one in found], 0)
    assert (lowest <= (domain.low.double().numpy() - 0.25) / 0.5).all()
    assert np.allclose(lowest, (domain.low.numpy() - 0.25) / 0.5, atol=1e-12)
    with (tmp_path / "boxes" / "instances.csv").open() as table:
        assert next(csv.reader(table)) == [str(path), "0000.vnnlib", "300"]
    assert l0tre.export_vnnlib(trees, network, image, tmp_path / "few", domain, sample=0.2) == 2


def test_proofs_by_cells_are_boxes_for_one_change(tmp_path: Path) -> None:
    path, image = written(tmp_path, 0, dense=True)
    file, domain = tmp_path / "cells.l0cert", narrow(image)
    for radius in (1, 2):
        cells = l0tre.Tuning(box_sets=0)
        assert l0tre.verify(path, image, radius=radius, domain=domain, certificate=file, tuning=cells).answer == "safe"
        made = l0tre.read_certificate(file)
        assert isinstance(made, Certificate)
        if radius == 1:
            assert l0tre.export_vnnlib(made, path, image, tmp_path / "boxes", domain) == 6
        else:
            with pytest.raises(ConfigError, match="only t = 1"):
                l0tre.export_vnnlib(made, path, image, tmp_path / "boxes", domain)


def test_the_command_writes_them(tmp_path: Path) -> None:
    path, image = written(tmp_path, 0, dense=True)
    np.savez(tmp_path / "one.npz", images=image[None].numpy())
    words = (str(path), str(tmp_path / "one.npz"))
    narrowed = ("--low", str(tmp_path / "low.npy"), "--high", str(tmp_path / "high.npy"))
    np.save(tmp_path / "low.npy", narrow(image).low.numpy())
    np.save(tmp_path / "high.npy", narrow(image).high.numpy())
    file = str(tmp_path / "one.l0cert")
    assert command("verify", *words, *narrowed, "--radius", "1", "--certificate", file).code == 0
    result = command("check", file, *words, *narrowed, "--vnnlib", str(tmp_path / "boxes"), "--sample", "50%")
    assert result.code == 0
    assert len(list((tmp_path / "boxes").glob("*.vnnlib"))) == 3
