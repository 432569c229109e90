import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from l0tre.errors import ModelError
from l0tre.model.aten import UnsupportedOperationError
from l0tre.model.calls import Call, Program, Ref, graph_from_calls, run_calls
from l0tre.model.double import double_module
from l0tre.model.graph import Graph, run
from l0tre.model.module_import import export_module, import_module

IMAGE = (3, 8, 8)


class Function(nn.Module):
    """A module that applies a function, with a few parameters at hand."""

    def __init__(self, function: Callable[[Tensor, "Function"], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.widening = nn.Conv2d(3, 4, 3, padding=1)
        self.square = nn.Conv2d(3, 3, 3, padding=1)
        self.linear = nn.Linear(8, 5)
        self.table = nn.Parameter(torch.randn(8, 6))
        self.plane = nn.Parameter(torch.rand(1, 3, 8, 8) + 0.5)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("hidden", torch.tensor([0.5, 1.5, 2.5]), persistent=False)
        self.plain = torch.tensor([1.0, -2.0, 3.0]).view(3, 1, 1)

    def conv(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.widening.weight, self.widening.bias, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self)


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random statistics of batch norms, so that a wrong formula shows."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator))
            part.running_var.copy_(torch.rand(part.running_var.shape, generator=generator) + 0.2)
            if part.affine:
                part.weight.data.copy_(torch.randn(part.weight.shape, generator=generator))
                part.bias.data.copy_(torch.randn(part.bias.shape, generator=generator))
    return module


def same_function(graph: Graph, module: nn.Module, shape: tuple[int, ...]) -> None:
    module = copy.deepcopy(module).eval()
    for batch in (1, 5):
        x = 2 * torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            expected = module(x.clone())
            exact = double_module(module)(x.double())
        actual = run(graph.to("cpu"), x)
        assert actual.shape == expected.shape == (batch, *graph.output_shape)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(run(graph, x.double()), exact, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(run_calls(export_module(module, shape), x.double()), exact, atol=1e-12, rtol=1e-12)


def check(module: nn.Module, shape: tuple[int, ...]) -> Graph:
    graph = import_module(module, shape)
    assert graph.input_shape == shape
    same_function(graph, module, shape)
    return graph


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4, bias=False)), (6,)),
    "in-place relu and dropout": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(12, 7), nn.ReLU(inplace=True), nn.Dropout(inplace=True), nn.Linear(7, 3)
        ),
        (3, 4),
    ),
    "activations": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.2, inplace=True), nn.Sigmoid(), nn.Tanh(), nn.Hardtanh()),
        (6,),
    ),
    "relu6": (lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU6(), nn.Linear(6, 6), nn.Hardtanh(-0.5, 2.0)), (6,)),
    "batch norm 1d": (lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()), (6,)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=0.1), nn.ReLU(inplace=True)), IMAGE),
    "plain batch norm": (lambda: nn.BatchNorm2d(3, affine=False), IMAGE),
    "max pools": (
        lambda: nn.Sequential(nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d((2, 1), stride=1, dilation=(2, 1))),
        IMAGE,
    ),
    "average pools": (
        lambda: nn.Sequential(nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), nn.AvgPool2d((2, 1), padding=0)),
        IMAGE,
    ),
    "padded average pool": (lambda: nn.AvgPool2d(3, 1, padding=1), IMAGE),
    "ceil mode that changes nothing": (lambda: nn.MaxPool2d(2, ceil_mode=True), IMAGE),
    "global average": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)), IMAGE),
    "adaptive average": (lambda: nn.AdaptiveAvgPool2d((4, 2)), IMAGE),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2d((4, None)), IMAGE),
    "zero padding": (lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.ConstantPad2d(1, 0.7)), IMAGE),
    "same padding": (lambda: nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2)), IMAGE),
    "valid padding": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), IMAGE),
    "softmax": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(dim=1)), (6,)),
    "log softmax": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LogSoftmax(dim=-1)), (6,)),
    "unflatten": (lambda: nn.Sequential(nn.Linear(6, 12), nn.Unflatten(1, (3, -1)), nn.Linear(4, 2)), (6,)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), (6,)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)), (6,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_families(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODULES[name]
    check(randomise(make()), shape)


def residual(x: Tensor, m: Function) -> Tensor:
    y = F.relu(m.square(x), inplace=True)
    y += x
    return torch.sub(F.relu(y), m.square(y), alpha=2.0)


def in_place_seen_by_the_old_name(x: Tensor, m: Function) -> Tensor:
    y = m.conv(x)
    z = y.relu_()
    z.mul_(2.0)
    return y + 3 * z


def in_place_not_seen_by_the_copy(x: Tensor, m: Function) -> Tensor:
    y = m.conv(x)
    z = y.clone()
    y.relu_()
    return y + 3 * z


def normalised_in_place(x: Tensor, m: Function) -> Tensor:
    mean = m.get_buffer("mean").view(1, 3, 1, 1)
    return m.conv(x.clone().sub_(mean).div_(m.get_buffer("hidden")[None, :, None, None]))


FUNCTIONS: dict[str, Callable[[Tensor, Function], Tensor]] = {
    "residual": residual,
    "in-place, old name": in_place_seen_by_the_old_name,
    "in-place, copy": in_place_not_seen_by_the_copy,
    "in-place normalisation": normalised_in_place,
    "view": lambda x, _: x.view(x.size(0), -1),
    "view without a size": lambda x, _: x.view(-1, 192).reshape(x.shape[0], 3, -1).flatten(1, 2),
    "flatten": lambda x, m: torch.flatten(m.linear(x), 1),
    "squeeze": lambda x, _: x.mean(1, keepdim=True).squeeze(1).unsqueeze(-1).squeeze((1, 3)),
    "concat": lambda x, m: torch.cat([m.conv(x), x.relu(), x], dim=1),
    "concat on the last": lambda x, m: torch.cat((x, m.square(x)), -1),
    "mean pooling": lambda x, m: m.conv(x).mean((2, 3)),
    "means": lambda x, _: x.mean(-1) + x.mean(dim=2, keepdim=False),
    "matmul": lambda x, m: x @ m.table,
    "linear with computed weight": lambda x, m: F.linear(x, (m.table * 2 + m.table.exp()).T, m.table.sum(0) / 3),
    "permute": lambda x, m: m.linear(x.permute(0, 2, 3, 1).transpose(-1, 2).contiguous()),
    "clamps": lambda x, _: x.clamp(min=0) + x.clamp(-0.5, 0.5) * x.clamp(max=0.3) + x.clamp_min(-1.0),
    "scalars": lambda x, _: (1 - x) / 4 + 0.5 * (x - 3) - (-x),
    "alpha": lambda x, m: torch.add(x, m.square(x), alpha=0.3) - torch.sub(x, m.plain, alpha=2),
    "constants": lambda x, m: (m.plain - x) * m.plane / m.plain + torch.tensor([[[0.5]]]) - m.plane,
    "gate": lambda x, m: x * torch.sigmoid(m.square(x)).mean((2, 3), keepdim=True),
    "functional": lambda x, m: F.log_softmax(F.max_pool2d(F.leaky_relu(m.conv(x), 0.3), 2).flatten(1), dim=1),
    "functional pools": lambda x, _: F.adaptive_avg_pool2d(F.pad(F.avg_pool2d(x, 2), (1, 1, 0, 0)), 1),
    "casts": lambda x, m: m.conv(x.float().to(torch.float32)).detach(),
    "only what is needed": lambda x, m: (x.cumsum(1), m.linear(x))[1],
    "input": lambda x, _: x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    torch.manual_seed(1)
    check(Function(FUNCTIONS[name]), IMAGE)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    torch.manual_seed(2)

    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    groups = data.draw(st.sampled_from([1, 2, 4]))
    conv = nn.Conv2d(
        4, 4, pair(1, 3), pair(1, 3), pair(0, 2), pair(1, 2), groups, bias=data.draw(st.booleans())
    )  # fmt: skip
    check(conv, (4, 7, 9))


def test_a_module_for_one_batch_size() -> None:
    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] != 1:
                raise ValueError("one at a time")
            return x.reshape(1, -1).relu()

    graph = import_module(Single(), (2, 3))
    x = torch.randn(4, 2, 3)
    assert torch.equal(run(graph.to("cpu"), x), x.flatten(1).relu())


class Rounds(nn.Module):
    """Computes in one type and gives its values on in another one."""

    def __init__(self, inner: torch.dtype, outer: torch.dtype, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 4).to(inner), nn.Linear(4, 3).to(outer)
        self.inner, self.outer, self.last = inner, outer, last

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x.to(self.inner)).to(self.outer)
        z: Tensor = y if self.last else self.second(y)
        return z


@pytest.mark.parametrize("inner", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("last", [False, True])
def test_what_rounds_values_is_refused(inner: torch.dtype, last: bool) -> None:
    with pytest.raises(UnsupportedOperationError, match="round"):
        import_module(Rounds(inner, torch.float32, last), (6,))


def test_weights_in_float64_keep_their_values() -> None:
    module = Rounds(torch.float64, torch.float64)
    graph = import_module(module, (6,))
    assert torch.equal(graph.operations[1].tensors["weight"], module.first.weight)
    x = torch.randn(3, 6)
    torch.testing.assert_close(run(graph, x.double()), module(x).detach(), atol=1e-14, rtol=1e-14)
    # A cast that rounds nothing is none.
    check(Rounds(torch.float32, torch.float32), (6,))


def test_the_module_is_left_alone() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2))
    module[4].eval()
    module(torch.randn(3, *IMAGE)).sum().backward()
    before = copy.deepcopy(module.state_dict())
    grads = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    graph = import_module(module, IMAGE)
    assert [part.training for part in module] == [True, True, True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    after = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert len(after) == len(grads)
    assert all(torch.equal(a, b) for a, b in zip(after, grads, strict=True))
    assert all(parameter.requires_grad for parameter in module.parameters())
    with torch.no_grad():
        next(module.parameters()).zero_()  # the graph does not share memory with the module
    assert graph.operations[1].tensors["weight"].abs().sum() > 0


def test_the_exporter_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_module(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), (6,))
        with pytest.raises(UnsupportedOperationError):
            import_module(Function(lambda x, _: x if x.sum() > 0 else -x), (6,))
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


REFUSED: dict[str, tuple[Callable[[Tensor, Function], Tensor], str]] = {
    "layer normalisation": (lambda x, _: F.layer_norm(x, (8,)), "aten.layer_norm.default divides by a spread"),
    "attention": (
        lambda x, _: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
        "aten.bmm.default multiplies values that both",
    ),
    "unknown operation": (lambda x, _: x.cumsum(1), "aten.cumsum.default is not supported.*conv2d, .*linear"),
    "sine": (lambda x, m: m.linear(x).sin(), "aten.sin.default"),
    "mean of the batch": (lambda x, _: x - x.mean(0, keepdim=True), "aten.mean.dim.*batch"),
    "mean of everything": (lambda x, _: x * x.mean(), "aten.mean.default"),
    "softmax of the batch": (lambda x, _: x.softmax(0), "softmax.*batch"),
    "moved batch": (lambda x, _: x.transpose(0, 1), "batch"),
    "merged batch": (lambda x, _: x.flatten(0, 1), "batch dimension"),
    "split batch": (lambda x, _: x.reshape(-1, 8), "batch dimension"),
    "concat of the batch": (lambda x, _: torch.cat([x, x]), "aten.cat.default.*batch"),
    "padding of the batch": (lambda x, _: F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0)), "batch"),
    "size of the batch": (lambda x, _: x * x.size(0), "plain number"),
    "unaligned samples": (lambda x, _: x + x.mean((1, 2)), "shapes"),
    "product of inputs": (lambda x, _: x @ x, "constant weight"),
    "quotient": (lambda x, _: 1 / (x * x + 1), "aten.reciprocal.default"),
    "batch statistics": (lambda x, _: F.batch_norm(x, None, None, training=True), "batch_norm.*statistics"),
    "random": (lambda x, _: F.dropout(x, training=True), "dropout.*random"),
    "integers": (lambda x, m: m.linear(x.to(torch.int64).to(torch.float32)), "int64"),
    "pool indices": (lambda x, _: F.max_pool2d(x, 2, return_indices=True)[1].float(), "does not compute"),
    "constant": (lambda _, m: m.table, "does not depend"),
    "control flow": (lambda x, _: x if x.sum() > 0 else -x, "torch.export cannot trace Function: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_graph_cannot_express_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as caught:
        import_module(Function(function), IMAGE)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, UnsupportedOperationError) or name == "constant"


def changed_behind_a_view(x: Tensor, m: Function) -> Tensor:
    y = m.conv(x)
    flat = y.view(y.size(0), -1)
    y.relu_()
    return flat


def changed_buffer(x: Tensor, m: Function) -> Tensor:
    m.get_buffer("mean").add_(1)
    return x * m.get_buffer("mean").view(3, 1, 1)


@pytest.mark.parametrize("function", [changed_behind_a_view, changed_buffer])
def test_changes_in_place_that_cannot_be_followed(function: Callable[[Tensor, Function], Tensor]) -> None:
    with pytest.raises(UnsupportedOperationError, match="in place"):
        import_module(Function(function), IMAGE)


def test_inputs_and_outputs_are_counted() -> None:
    with pytest.raises(ModelError, match="2 results"):
        import_module(Function(lambda x, _: (x, -x)), IMAGE)  # type: ignore[arg-type, return-value]
    with pytest.raises(UnsupportedOperationError, match="cannot trace Bilinear"):
        import_module(nn.Bilinear(3, 3, 2), (3,))
    with pytest.raises(ModelError, match="empty"):
        import_module(nn.Linear(3, 2), ())
    with pytest.raises(UnsupportedOperationError, match="cannot trace Linear"):
        import_module(nn.Linear(3, 2), (4,))


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_squeezing_and_static_batches(batch: int | None) -> None:
    """Without an exporter: a batch of one is lost by squeeze, any other batch is not."""
    call = Call("aten.squeeze.default", "y", (Ref("x"),))
    program = Program([call], {}, "x", (1, 4), batch, "y")
    if batch == 1:
        with pytest.raises(UnsupportedOperationError, match="batch dimension"):
            graph_from_calls(program)
    else:
        assert graph_from_calls(program).output_shape == (4,)


def test_constants_of_absurd_size_are_refused() -> None:
    calls = [
        Call("aten.expand.default", "c", (Ref("w"), [2**20, 2**20])),
        Call("aten.add.Tensor", "y", (Ref("x"), Ref("c"))),
    ]
    with pytest.raises(UnsupportedOperationError, match="elements"):
        graph_from_calls(Program(calls, {"w": torch.zeros(1)}, "x", (4,), 1, "y"))
