"""Attacks on blocks of images: independent of each other, so that several workers can do them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l0tre.attacks.drive import Progress, block_size, carry_out
from l0tre.attacks.meter import Meter
from l0tre.attacks.task import AttackTask, towards
from l0tre.domain import Domain
from l0tre.memory import default_budget
from l0tre.model.network import Network
from l0tre.model.ship import moved, pack, unpack
from l0tre.objective import AllRivals

__all__ = ["Block", "BlockFound", "BlockRunner", "Job", "cut", "make_block_runner", "ship", "view_of"]


@dataclass(frozen=True)
class Job:
    """What all blocks have in common, on the network's device.

    Attributes:
        network: What is attacked.
        images: float32 ``[images, values]``, the originals.
        enough: int64 ``[images]``, see :class:`l0tre.attacks.task.AttackTask`.
        domain: What may change.
        levels: As for :class:`l0tre.attacks.task.AttackTask`.
        methods: Keys of ``METHODS``.
        budget: Forward and backward passes for each image.
        seed: Of all chance; every block begins with it.
        memory_bytes: That batches may take.
    """

    network: Network
    images: Tensor
    enough: Tensor
    domain: Domain
    levels: int
    methods: tuple[str, ...]
    budget: int
    seed: int
    memory_bytes: int


@dataclass(frozen=True)
class Block:
    """Images that are attacked together: what some leave of their budget is for the others.

    Attributes:
        rows: Places of the images.
        leave: The class that each of them must leave, in the view of the network if there is a ``target``.
        target: The class to reach; ``None`` for any other.
    """

    rows: tuple[int, ...]
    leave: tuple[int, ...]
    target: int | None


@dataclass(frozen=True)
class BlockFound:
    """What came out for a block; one row for each of its images.

    Attributes:
        rows: Places of the images.
        best: float32 ``[rows, values]``, on the CPU; the original where nothing was found.
        methods: The method behind each; empty where nothing was found.
        forwards: int64 ``[rows]``, forward passes spent.
        backwards: int64 ``[rows]``, backward passes spent.
    """

    rows: tuple[int, ...]
    best: np.ndarray
    methods: tuple[str, ...]
    forwards: np.ndarray
    backwards: np.ndarray


def view_of(network: Network, target: int | None) -> Network:
    """The network that a block attacks."""
    return network if target is None else towards(network, target)


def cut(network: Network, rows: Tensor, leave: Tensor, target: int | None, memory_bytes: int, most: int) -> list[Block]:
    """Images as blocks, in order.

    Args:
        network: What is attacked.
        rows: int64 ``[n]``, places of the images.
        leave: int64 ``[n]``, see :class:`Block`.
        target: Likewise.
        memory_bytes: Bytes that a block may take.
        most: Images of a block, at the most.
    """
    size = min(most, block_size(view_of(network, target), memory_bytes))
    if not len(rows):
        return []
    return [
        Block(tuple(some.tolist()), tuple(classes.tolist()), target)
        for some, classes in zip(rows.split(size), leave.split(size), strict=True)
    ]


class BlockRunner:
    """Attacks one block after the other."""

    def __init__(self, job: Job, halted: Callable[[], bool], progress: Progress | None = None) -> None:
        self.job = job
        self.halted = halted
        self.progress = progress

    def work(self, block: Block) -> Iterator[BlockFound]:
        """Attack a block; one report, also if it is left early. See ``scheduling.Runner``."""
        job, device = self.job, self.job.images.device
        rows = torch.tensor(block.rows, device=device)
        leave = AllRivals(torch.tensor(block.leave, device=device))
        task = AttackTask(job.images[rows], leave, job.domain, job.enough[rows], job.levels)
        meter = Meter(view_of(job.network, block.target), len(rows), job.memory_bytes, self.halted)
        outcome = carry_out(meter, task, job.methods, job.budget, job.seed, self.progress)
        yield BlockFound(
            block.rows,
            outcome.best.cpu().numpy(),
            outcome.methods,
            meter.forwards.cpu().numpy(),
            meter.backwards.cpu().numpy(),
        )


@dataclass(frozen=True)
class _Shipped:
    """A job on its way: all but the images as bytes, and these as an array, which all workers of a machine share."""

    job: bytes
    images: np.ndarray


def ship(job: Job, sharing: int) -> _Shipped:
    """A job for workers, so many of which share the memory."""
    light = replace(
        job,
        network=replace(job.network, double=None),  # the import was checked with it
        images=torch.empty(0),
        memory_bytes=max(1, job.memory_bytes // sharing),
    )
    return _Shipped(pack(light, job.network.name), np.ascontiguousarray(job.images.cpu().numpy()))


def make_block_runner(shipped: _Shipped, device: str, over: Callable[[], bool]) -> BlockRunner:
    """A worker's runner, see ``scheduling.worker.Make``."""
    job: Any = unpack(shipped.job)
    network = moved(job.network, torch.device(device))
    where = network.device
    job = replace(
        job,
        network=network,
        images=torch.from_numpy(shipped.images).to(where),
        enough=job.enough.to(where),
        domain=job.domain.to(where),
        memory_bytes=min(job.memory_bytes, default_budget(where)),
    )
    return BlockRunner(job, over)
