"""Mean and standard deviation, per channel wherever the channels are."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l0tre.errors import ModelError
from l0tre.model.graph import GraphBuilder, run
from l0tre.model.normalise import make_normalisation, prepend


def test_nothing_given_is_no_normalisation() -> None:
    assert make_normalisation(None, None, (3, 4, 4)) is None


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 8, 8), 1), ((8, 8, 3), 3), ((3, 3, 3), 1), ((3,), 1), ((3, 8, 3), 1), ((4, 4, 4), 1)]
)
def test_one_number_for_each_channel(shape: tuple[int, ...], axis: int) -> None:
    count = shape[axis - 1]
    mean, std = [0.1 * (i + 1) for i in range(count)], [0.5 + i for i in range(count)]
    normalise = make_normalisation(mean, std, shape)
    assert normalise is not None
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    y = normalise(x)
    for channel in range(count):
        wanted = (x.select(axis, channel) - mean[channel]) / std[channel]
        assert torch.allclose(y.select(axis, channel), wanted)


def test_one_of_the_two_is_enough() -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for mean, std, wanted in ((0.5, None, x - 0.5), (None, 2.0, x / 2)):
        normalise = make_normalisation(mean, std, (1, 4, 4))
        assert normalise is not None
        assert torch.allclose(normalise(x), wanted)


@pytest.mark.parametrize(
    ("mean", "std", "shape", "word"),
    [
        ([0.1, 0.2], None, (3, 8, 8), "2 numbers.*one number, or 3: one for each channel"),
        ([0.1] * 8, None, (3, 8, 8), "8 numbers"),  # as many as columns
        ([0.1] * 8, None, (8, 8), "8 numbers.*one number$"),
        ([0.1] * 2, None, (1, 8, 8), "2 numbers.*one number$"),
        ([0.1] * 2, None, (5,), "one for each feature"),
        ([], None, (1, 8, 8), "0 numbers"),
        (None, [0.1, 0.2], (3, 8, 8), "std has 2 numbers"),
        (float("nan"), None, (1, 8, 8), "mean nan"),
        (None, float("inf"), (1, 8, 8), "std inf"),
        (None, 0.0, (1, 8, 8), "above 0"),
        (None, [1.0, -1.0, 1.0], (3, 8, 8), "above 0"),
    ],
)
def test_numbers_that_do_not_fit(mean: Any, std: Any, shape: tuple[int, ...], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        make_normalisation(mean, std, shape)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    mean=st.lists(st.floats(-2, 2, width=32), min_size=3, max_size=3),
    std=st.lists(st.floats(0.0625, 4, width=32), min_size=3, max_size=3),
)
def test_the_graph_with_normalisation_computes_the_same(mean: list[float], std: list[float]) -> None:
    builder = GraphBuilder((3, 2, 2))
    weight = torch.rand(5, 12, generator=torch.Generator().manual_seed(0))
    flat = builder.add("reshape", (0,), shape=(12,))
    graph = builder.build(builder.add("linear", (flat,), {"weight": weight}))
    normalise = make_normalisation(mean, std, (3, 2, 2))
    assert normalise is not None
    x = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(
        run(prepend(normalise, graph).to("cpu"), x), run(graph.to("cpu"), normalise(x)), atol=1e-3, rtol=1e-4
    )
