import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import l0tre
from l0tre.errors import ConfigError, ModelError
from l0tre.memory import Batcher, default_budget, parse_size
from l0tre.model.network import Network
from tests.tools import plain_network, tiny_module


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("2K", 2048), ("1.5M", 1572864), ("2GiB", 2**31), ("2 gb", 2**31), ("1T", 2**40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "G", "-1G", "2X", "nan"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="memory size"):
        parse_size(text)


def test_the_default_is_a_share_of_the_free_memory() -> None:
    assert 2**20 < default_budget(torch.device("cpu")) < 2**42


def test_rows_follow_from_the_budget() -> None:
    network = plain_network(nn.Linear(4, 3), (4,), sample_bytes=1000)
    assert Batcher(network, 10_000).rows == 10
    assert Batcher(network, 1).rows == 1


def test_rows_are_made_in_order_and_only_as_needed() -> None:
    module = nn.Linear(4, 3)
    network = plain_network(module, (4,), sample_bytes=1000)
    x = torch.rand(25, 4)
    asked = []

    def make(start: int, stop: int) -> Tensor:
        asked.append((start, stop))
        return x[start:stop]

    assert torch.allclose(Batcher(network, 10_000).run(25, make), module(x), atol=1e-6)
    assert asked == [(0, 10), (10, 20), (20, 25)]
    assert Batcher(network, 10_000).run(0, make).shape == (0, 3)


def test_running_out_of_memory_halves_the_batch_and_goes_on() -> None:
    module = nn.Linear(4, 3).requires_grad_(False)
    sizes = []

    def forward(x: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 3:
            raise torch.OutOfMemoryError("no memory")
        return module(x)  # type: ignore[no-any-return]

    network = Network(forward, forward, (4,), 3, torch.device("cpu"), None, "small", sample_bytes=1000)
    x = torch.rand(20, 4)
    batcher = Batcher(network, 16_000)
    assert torch.allclose(batcher.run(20, lambda a, b: x[a:b]), module(x), atol=1e-6)
    assert batcher.rows == 2
    assert sizes[:4] == [16, 8, 4, 2]


def test_too_little_memory_for_one_input_is_an_error() -> None:
    def forward(_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    network = Network(forward, forward, (4,), 3, torch.device("cpu"), None, "small", sample_bytes=1000)
    with pytest.raises(ModelError, match="too little memory"):
        Batcher(network, 16_000).run(2, lambda a, b: torch.zeros(b - a, 4))


GROWTH = """
import torch
from l0tre.limits import peak_host_bytes
from l0tre.memory import Batcher
from tests.tools import plain_network, tiny_module
torch.set_num_threads(1)
layers = [torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool2d(4), torch.nn.Flatten()]
network = plain_network(torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)), (3, 224, 224), sample_bytes=2**20)
batcher, image, ranks = Batcher(network, 2**25), torch.ones(1, 3 * 224 * 224), torch.arange(3 * 224 * 224)[None]

def make(first, last):
    rows = torch.zeros(last - first, dtype=torch.int64)
    near = ranks[rows] <= torch.arange(first, last)[:, None]
    return torch.where(near, image[rows], image[rows]).view(-1, 3, 224, 224)

peaks = []
for batches in (8, 80):
    with torch.inference_mode():
        batcher.run(batches * batcher.rows, make)
    peaks.append(peak_host_bytes())
print(batcher.rows, peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the allocator of glibc")
def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    """Small results between the large blocks of the batches would keep these from being used again."""
    words = [sys.executable, "-c", GROWTH]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    rows, grown = map(int, result.stdout.split())
    assert rows == 32
    assert grown < 2**27  # in 72 batches of 19 MB more


def test_a_large_function_begins_with_few_rows() -> None:
    seen: list[int] = []

    def make(start: int, stop: int) -> Tensor:
        seen.append(stop - start)
        return torch.zeros(stop - start, 5)

    module, shape = tiny_module("dense", 0)
    large = plain_network(module, shape, sample_bytes=2**24)
    Batcher(large, 2**40).run(64, make)
    assert seen[0] == 2  # what batches have room for
    assert sum(seen) == 64
    assert max(seen) <= 32
    first = len(seen)
    Batcher(l0tre.load(module, input_shape=shape), 2**40).run(64, make)
    assert seen[first] == 64
