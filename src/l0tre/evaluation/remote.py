"""An evaluation whose tasks are done by the workers of a cluster."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from l0tre.evaluation.driver import MakeExecutor
from l0tre.evaluation.problem import Problem
from l0tre.evaluation.runner import TaskRunner
from l0tre.memory import default_budget
from l0tre.model.ship import moved, pack, unpack
from l0tre.scheduling.executor import Executor, Runner, ShouldStop, StopCondition
from l0tre.scheduling.ray_executor import RayExecutor
from l0tre.scheduling.session import Cluster, sharing

__all__ = ["ray_executors"]


@dataclass(frozen=True)
class _Shipped:
    """A problem on its way.

    Attributes:
        problem: Without images, as bytes.
        images: float32 ``[images, values]``; an array, which all workers of a machine share.
        evidence: Whether proofs keep what a certificate needs.
    """

    problem: bytes
    images: np.ndarray
    evidence: bool


def ray_executors(ray: Any, cluster: Cluster) -> MakeExecutor:
    """What makes workers of a cluster for an evaluation."""

    def make(problem: Problem, ending: StopCondition, evidence: bool) -> Executor:
        memory = max(1, problem.settings.memory_bytes // sharing(ray, cluster))
        light = replace(
            problem,
            network=replace(problem.network, double=None),  # the import was checked with it
            images=torch.empty(0),
            settings=replace(problem.settings, memory_bytes=memory),
        )
        images = np.ascontiguousarray(problem.images.cpu().numpy())
        shipped = _Shipped(pack(light, problem.network.name), images, evidence)
        return RayExecutor(ray, cluster, make_runner, shipped, ending)

    return make


def make_runner(shipped: _Shipped, device: str, over: ShouldStop) -> Runner:
    """A worker's runner, see ``scheduling.worker.Make``."""
    problem: Problem = unpack(shipped.problem)
    network = moved(problem.network, torch.device(device))
    where, settings = network.device, problem.settings
    problem = replace(
        problem,
        network=network,
        images=torch.from_numpy(shipped.images).to(where),
        specification=problem.specification.to(where),
        domain=problem.domain.to(where),
        grid=problem.grid.to(where),
        settings=replace(settings, memory_bytes=min(settings.memory_bytes, default_budget(where))),
    )
    return TaskRunner(problem, over, _say_nothing, evidence=shipped.evidence)


def _say_nothing(_: str) -> None:
    """What a level will cost is not said by workers, who know a few images each."""
