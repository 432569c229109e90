"""The graph that is proved is the model: what would hide a difference, and what shows it."""

from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import CertificateError, ModelError
from l0tre.model.confirm import check_points, differs
from l0tre.model.graph import Graph
from l0tre.model.network import Network


def network(*end: nn.Module) -> Network:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)]
    return l0tre.load(nn.Sequential(*layers, *end), input_shape=(1, 4, 4), device="cpu")


def nudged(graph: Graph, by: float) -> Graph:
    """The graph with one bias of its last layer changed by a share of itself."""
    last = graph.operations[-1]
    bias = last.tensors["bias"].clone()
    bias[-1] += by * bias[-1].abs()
    return Graph((*graph.operations[:-1], replace(last, tensors={**last.tensors, "bias": bias})))


@pytest.mark.parametrize("end", [(), (nn.Softmax(1),), (nn.LogSoftmax(1),)])
def test_a_constant_rounded_to_float32_is_seen(end: tuple[nn.Module, ...]) -> None:
    loaded = network(*end)
    points = check_points(torch.zeros(1, 4, 4), torch.ones(1, 4, 4))
    assert loaded.exact is not None
    assert differs(loaded, points) == ""
    for by in (2.0**-24, -(2.0**-24), float("nan")):
        assert "different scores" in differs(replace(loaded, exact=nudged(loaded.exact, by)), points)


def test_points_lie_all_over_a_domain() -> None:
    low, high = torch.tensor([900.0, -3.0]), torch.tensor([1100.0, -3.0])
    images = torch.tensor([[1000.0, -3.0]])
    points = check_points(low, high, images)
    assert ((points >= low) & (points <= high)).all()
    assert {900.0, 1000.0, 1100.0} <= set(points[:, 0].tolist())
    assert len(points[:, 0].unique()) > 5


class Elsewhere(nn.Module):
    """Whose evaluation in float64 is made another function outside [0, 1] below."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


def test_other_domains_are_looked_at() -> None:
    loaded = l0tre.load(Elsewhere(), input_shape=(3,), device="cpu")
    double = loaded.double
    assert double is not None
    odd = replace(loaded, double=lambda x: double(x) + (x > 40).any(1, keepdim=True) * torch.tensor([0.0, 1e-6]))
    x = torch.full((1, 3), 0.5)
    assert l0tre.evaluate(odd, x, max_t=1).images[0].guarantee == "certified"
    wide = l0tre.make_domain((3,), low=0.0, high=50.0)
    result = l0tre.evaluate(odd, x, max_t=1, domain=wide)
    assert result.images[0].guarantee == "grid"
    assert "different scores" in result.config["guarantee"]["note"]
    with pytest.raises(ModelError, match="different scores"):
        l0tre.evaluate(odd, x, max_t=1, domain=wide, guarantee="certified")


def test_the_checker_compares_again(tmp_path: Path) -> None:
    loaded = network()
    torch.manual_seed(1)
    image = torch.rand(1, 4, 4)
    label = int(loaded.scores(image[None]).argmax())
    domain = l0tre.make_domain((1, 4, 4), low=(image - 1e-3).clamp(min=0).numpy(), high=(image + 1e-3).numpy())
    path = tmp_path / "one.l0cert"
    assert l0tre.verify(loaded, image, label, radius=1, domain=domain, certificate=path).answer == "safe"
    certificate = l0tre.read_certificate(path)
    l0tre.check(certificate, loaded, image, domain)
    assert loaded.exact is not None
    other = replace(loaded, exact=nudged(loaded.exact, 2.0**-24))  # the fingerprint is that of the source
    with pytest.raises(CertificateError, match="is not Sequential: in float64"):
        l0tre.check(certificate, other, image, domain)


class Fussy(nn.Module):
    """Takes float32 only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32, please")
        y: Tensor = self.linear(x)
        return y


def test_without_a_second_evaluation_nothing_is_certified() -> None:
    loaded = l0tre.load(Fussy(), input_shape=(3,), device="cpu")
    assert loaded.exact is None
    assert "float32, please" in loaded.note
    result = l0tre.evaluate(loaded, torch.rand(1, 3), max_t=1)
    assert result.images[0].guarantee == "grid"
    assert "float32, please" in result.config["guarantee"]["note"]


def test_casts_inside_a_module_are_no_reason_to_refuse_it() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.plain = torch.tensor([0.1, 0.2, 0.3])  # no parameter: ``double`` does not see it

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x.float() - self.plain.float()).float()
            return y + torch.tensor(0.1)

    assert l0tre.load(Careful(), input_shape=(3,), device="cpu").exact is not None


def test_a_half_cast_in_a_file_leaves_the_grid_of_onnxruntime(tmp_path: Path) -> None:
    body = "h = Cast<to = 10>(x) f = Cast<to = 1>(h) y = Gemm(f, w, b)"
    text = (
        '<ir_version: 8, opset_import: ["": 17]> test (float[n, 1] x) => (float[n, 2] y) '
        f"<float[1, 2] w = {{0, 1}}, float[2] b = {{1.5004, 1.0}}> {{ {body} }}"
    )
    path = tmp_path / "half.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    loaded = l0tre.load(str(path), device="cpu")
    assert loaded.graph is None
    assert "FLOAT16" in loaded.note
    domain = l0tre.make_domain((1,), low=0.0, high=0.50036)
    bounds = l0tre.evaluate(loaded, torch.zeros(1, 1), [0], domain=domain, max_t=1).images[0]
    assert (bounds.guarantee, bounds.lower, bounds.upper) == ("grid", 0, 1)


@pytest.mark.parametrize("node", ["Gelu(x)", 'Gelu<approximate = "tanh">(x)', "HardSwish(x)"])
def test_curves_are_confirmed_although_onnx_rounds_their_constants(tmp_path: Path, node: str) -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 20]> test (float[n, 3] x) => (float[n, 2] y) '
        "<float[3, 2] w = {0.3, 1, -2, 0.7, 0.4, -1.3}, float[2] b = {0.5, 1.0}> "
        f"{{ f = {node} y = Gemm(f, w, b) }}"
    )
    path = tmp_path / "curve.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    loaded = l0tre.load(str(path), device="cpu")
    assert (loaded.exact is not None, loaded.note) == (True, "")
    far = torch.tensor([[-40.0, -3.0, 2.9], [1e-9, 0.7, -2.2]])
    assert differs(loaded, far) == ""
