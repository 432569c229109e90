"""What tunes speed: another value changes how much is done at a time, and no bound."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

import l0tre
from l0tre.evaluation.problem import GuaranteeWish
from l0tre.memory import Batcher
from l0tre.tuning import DEFAULT_TUNING, PerDevice, Tuning
from tests.tools import NO_ATTACK, plain_network, tiny_module

# As little at a time as there can be (single boxes would take long).
LEAST = Tuning(
    record_seconds=0.0,
    grace_seconds=0.0,
    turn_seconds=0.0,
    task_seconds=0.0,
    slice_seconds=0.0,
    trial_images=1,
    attack_images=PerDevice(1, 1),
    batch_bytes=PerDevice(1, 1),
    least_rows=1,
    grid_step_bytes=1,
    grid_step_points=(PerDevice(1, 1),) * 3,
    window_bytes=PerDevice(1, 1),
    layout_sets=0,
    paired_groups=1,
    sampling_share=0.0,
    matrix_work=0,
    matrix_size=0,
    matrix_rows=0,
    matrix_rows_64=0,
    matrix_entries=0,
    table_part=2**20,
    cell_images=PerDevice(1, 1),
    least_cells=PerDevice(2, 2),
    box_images=PerDevice(1, 1),
    box_sets=2**10,
    box_values=2,
    form_bytes=PerDevice(2**16, 2**16),
    window_share=0.01,
    meeting_share=0.0,
    block_sets=1,
    set_bytes=2**20,
    cell_patience=1,
    hopeless=float("inf"),
    box_step_seconds=0.0,
    first_pass_seconds=0.0,
    first_pass_images=1,
    boxes=PerDevice(8, 8),
    tried_boxes=1,
)


def bounds(result: l0tre.Snapshot) -> list[tuple[int, int]]:
    assert result.finished
    return [(image.lower, image.upper) for image in result]


def snapshots(tuning: Tuning, **options: Any) -> list[l0tre.Snapshot]:
    """Of three images: two that one pixel flips, one that none does."""
    torch.manual_seed(2)
    layers = (nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4), nn.ReLU(), nn.Linear(4, 3))
    for parameter in layers[0].parameters():
        parameter.data *= 1.6
    layers[3].weight.data *= 1.4
    images = torch.rand(3, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    options = {"max_t": 2, **NO_ATTACK, **options}
    return list(l0tre.anytime(nn.Sequential(*layers), images, device="cpu", tuning=tuning, **options))


def test_the_least_of_everything_differs_from_the_defaults() -> None:
    same = [field.name for field in fields(Tuning) if getattr(LEAST, field.name) == getattr(DEFAULT_TUNING, field.name)]
    assert not same


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["certified", "grid", "lipschitz"])
def test_bounds_do_not_depend_on_how_much_is_done_at_a_time(guarantee: GuaranteeWish) -> None:
    large, small = (snapshots(tuning, guarantee=guarantee) for tuning in (DEFAULT_TUNING, LEAST))
    assert bounds(small[-1]) == bounds(large[-1])
    assert max(lower for lower, _ in bounds(large[-1])) > 0
    assert len(small) > len(large)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"guarantee": "grid"}, {"record_seconds": 0.0, "grid_step_points": (PerDevice(1, 1),) * 3}),
        ({"guarantee": "grid", "attack_queries": 50}, {"attack_images": PerDevice(1, 1)}),
        ({"guarantee": "certified"}, {"record_seconds": 0.0, "box_step_seconds": 0.0, "boxes": PerDevice(1, 1)}),
    ],
)
def test_smaller_steps_are_more_steps(options: dict[str, Any], change: dict[str, Any]) -> None:
    large, small = (snapshots(tuning, **options) for tuning in (DEFAULT_TUNING, replace(DEFAULT_TUNING, **change)))
    assert len(small) > len(large)
    assert [lower for lower, _ in bounds(small[-1])] == [lower for lower, _ in bounds(large[-1])]


def test_forward_batches_take_so_many_bytes_but_some_rows_at_least() -> None:
    module, shape = tiny_module("dense", 0)
    network = plain_network(module, shape, sample_bytes=100)
    tuning = Tuning(batch_bytes=PerDevice(1000, 1), least_rows=3)
    assert Batcher(network, 2**20, tuning).rows == 10
    assert Batcher(network, 2**20, replace(tuning, least_rows=40)).rows == 40
    assert Batcher(network, 2000, replace(tuning, least_rows=40)).rows == 20


def test_the_number_for_a_device() -> None:
    assert [PerDevice(3, 5).on(torch.device(name)) for name in ("cpu", "cuda", "cuda:1")] == [3, 5, 5]
